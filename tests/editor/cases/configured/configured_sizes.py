from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[heads, 4]"], y: A[sh.Array, "f32[16, 4]"]) -> None:
    reveal_type(x)
    reveal_type(x.reshape(4, 16))
    reveal_type(x + y)


# mypy says:
# 7:17: type f32[heads, 4]
# 8:17: type f32[4,16]
# 9:17: type f32[heads, 4]
