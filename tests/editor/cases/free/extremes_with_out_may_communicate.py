from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, m]"]) -> None:
    reveal_type(sh.max(x, axis=0, out="[_]"))
    reveal_type(sh.max(x, axis=1, out="[_]"))


# mypy says:
# 7:17: type f32[m]
# 8:17: type f32[n]
