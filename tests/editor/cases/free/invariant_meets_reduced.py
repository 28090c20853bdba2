from typing import Annotated as A

import shtypes as sh


def f(i: A[sh.Array, "f32[n]{I:dp}"], r: A[sh.Array, "f32[n]"], x: A[sh.Array, "f32[n@dp]"]) -> None:
    reveal_type(i * r)
    reveal_type(i + i)
    reveal_type(i * x)
    reveal_type(sh.exp(i))


# mypy says:
# 7:17: type f32[n]
# 8:17: type f32[n]{I:dp}
# 9:17: type f32[n@dp]
# 10:17: type f32[n]{I:dp}
