from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n]"]) -> None:
    with sh.dim_axes({"n": "dp"}):
        reveal_type(sh.exp(x))


# mypy says:
# 8:21: type ?
