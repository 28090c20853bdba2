import contextlib
from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"], value: object) -> None:
    with contextlib.nullcontext(value):
        reveal_type(sh.exp(x))


# mypy says:
# 9:21: type f32[n@dp]
