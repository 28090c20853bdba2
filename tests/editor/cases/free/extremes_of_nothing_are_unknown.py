from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[0, m@dp]"]) -> None:
    reveal_type(sh.max(x, axis=0))
    reveal_type(sh.median(x, axis=0))
    reveal_type(x.argmin(axis=0))
    reveal_type(sh.prod(x, axis=0))


# mypy says:
# 7:17: type ?
# 8:17: type ?
# 9:17: type ?
# 10:17: type f32[m@dp]
