from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[8@dp]"], r: A[sh.Array, "f32[8]{R:dp}"], i: A[sh.Array, "f32[8]{I:dp}"]) -> None:
    reveal_type(sh.all_gather(x, "dp"))
    reveal_type(r)
    reveal_type(i)


# mypy says:
# 7:17: type f32[8]
# 8:17: type f32[8]{R:dp}
# 9:17: type f32[8]
