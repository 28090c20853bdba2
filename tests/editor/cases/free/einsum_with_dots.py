from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[a, b@dp, c]"], w: A[sh.Array, "f32[c, d@tp]"]) -> None:
    reveal_type(sh.einsum("...c,cd->...d", x, w))
    reveal_type(sh.einsum("abc->cab", x))
    reveal_type(sh.einsum("abc", x))
    reveal_type(sh.einsum("abc->", x))


# mypy says:
# 7:17: type f32[a, b@dp, d@tp]
# 8:17: type f32[c, a, b@dp]
# 9:17: type f32[a, b@dp, c]
# 10:17: type f32[]{U:dp}
