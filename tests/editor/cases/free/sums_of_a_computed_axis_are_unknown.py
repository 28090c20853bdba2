from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, m]"], axis: int) -> None:
    reveal_type(x.sum(axis))
    reveal_type(x.sum(axis=axis, keepdims=True))
    reveal_type(x.sum(where=x > 0))


# mypy says:
# 7:17: type ?
# 8:17: type ?
# 9:17: type f32[]{U:dp}
