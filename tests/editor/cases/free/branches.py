from typing import Annotated as A

import shtypes as sh


def f(flag: bool, x: A[sh.Array, "f32[n@dp, m]"]) -> None:
    if flag:
        y = x.sum(0)
    else:
        y = x.sum(1)
    reveal_type(y)


# mypy says:
# 11:17: type f32[m]{U:dp} | f32[n@dp]
