from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, m]"]) -> None:
    reveal_type(sh.repeat(x, 3, axis=0))
    reveal_type(sh.tril(x))
    reveal_type(sh.diff(x))


# mypy says:
# 7:17: type f32[3*n@dp, m]
# 8:17: type f32[n@dp, m]
# 9:17: type f32[n@dp, m - 1]
