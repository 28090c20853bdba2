from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[n@(dp,tp),m]"], y: A[sh.Array, " f32[n@(dp, tp), m] "]
) -> A[sh.Array, "float32[n@(dp,tp), m]"]:
    reveal_type(x + y)
    return y


# mypy says:
# 9:17: type f32[n@(dp,tp), m]
