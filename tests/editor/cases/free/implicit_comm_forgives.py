from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"], u: A[sh.Array, "f32[n]{U:dp}"]) -> None:
    with sh.implicit_comm():
        reveal_type(sh.exp(u))
        reveal_type(x + x)
        reveal_type(u + u)


# mypy says:
# 8:21: type ?
# 9:21: type f32[n@dp]
# 10:21: type ?
