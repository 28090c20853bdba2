from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n, n]"]) -> A[sh.Array, "f32[n]"]:
    return x[0]


def g() -> None:
    reveal_type(f(sh.zeros("f32[4, 4]")))
    f(sh.zeros("f32[4, 8]"))


# mypy says:
# 11:17: type f32[n=4]
# 12:7: argument `x` of `f` is f32[4,8], not f32[n, n]  [sharding]
# 12:7: dim 1 has size 8, and `n` is 4 by `x`
