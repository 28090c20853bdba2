from typing import Annotated as A

import shtypes as sh


def plain(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return x


def g(x: A[sh.Array, "f32[k@dp]"], y: A[sh.Array, "f32[k]"]) -> None:
    reveal_type(sh.lift(plain)(x))
    sh.lift(plain)(y)


# mypy says:
# 11:17: type f32[k@dp]
# 12:20: argument `x` of `sh.lift(plain)` is f32[k], not f32[n@dp]  [sharding]
# 12:20: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 12:20: fix: sh.reshard(y, "[k@dp]")   [forward: none; backward: none]
