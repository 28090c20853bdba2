from typing import Annotated as A

import shtypes as sh


@sh.typed
def f(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return x * 2


def g(x: A[sh.Array, "f32[k@dp]"], y: A[sh.Array, "f32[k]"]) -> None:
    reveal_type(f(x))
    f(y)


# mypy says:
# 12:17: type f32[k@dp]
# 13:7: argument `x` of `f` is f32[k], not f32[n@dp]  [sharding]
# 13:7: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 13:7: fix: sh.reshard(y, "[k@dp]")   [forward: none; backward: none]
