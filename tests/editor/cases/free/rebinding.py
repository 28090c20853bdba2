from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n, k@tp]"], w: A[sh.Array, "f32[k@tp, m]"]) -> A[sh.Array, "f32[n, m]"]:
    y = x @ w
    y = sh.all_reduce(y)
    reveal_type(y)
    return y


# mypy says:
# 9:17: type f32[n, m]
