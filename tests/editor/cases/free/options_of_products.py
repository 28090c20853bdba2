from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[8, 6]"], y: A[sh.Array, "f32[6@tp]"]) -> None:
    reveal_type(sh.outer(x, x, out="[48@dp, 48]"))
    reveal_type(sh.inner(x, x, out="[8, 8@dp]"))
    reveal_type(sh.vdot(x, x, preferred_element_type="bf16"))
    reveal_type(sh.matvec(x, y, out="[8@tp]"))
    reveal_type(sh.vecdot(y, y))
    reveal_type(sh.real(sh.complex(x, x) * (1 - 2j)))


# mypy says:
# 7:17: type f32[48@dp,48]
# 8:17: type f32[8,8@dp]
# 9:17: type bf16[]
# 10:17: type f32[8@tp]
# 11:17: type f32[]{U:tp}
# 12:17: type f32[8,6]
