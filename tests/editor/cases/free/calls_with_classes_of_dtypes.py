from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "float[n]"], ids: A[sh.Array, "integer[n]"]) -> A[sh.Array, "f32[n]"]:
    raise NotImplementedError


def g(x: A[sh.Array, "bf16[k]"], i: A[sh.Array, "i8[k]"]) -> None:
    reveal_type(f(x, i))
    f(i, i)


# mypy says:
# 11:17: type f32[k]
# 12:7: argument `x` of `f` is i8[k], not float[n]  [sharding]
# 12:7: its dtype is `i8`
