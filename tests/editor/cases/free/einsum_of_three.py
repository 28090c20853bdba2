from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[4, 8@dp]"],
    y: A[sh.Array, "f32[8@dp, 16]"],
    z: A[sh.Array, "f32[16, 2@tp]"],
    n: A[sh.Array, "f32[n, m]"],
) -> None:
    reveal_type(sh.einsum("ab,bc,cd->ad", x, y, z))
    reveal_type(sh.einsum("ab,ab,ab->", n, n, n))


# mypy says:
# 12:17: type f32[4,2@tp]{U:dp}
# 13:17: type f32[]
