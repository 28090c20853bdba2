from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "bf16[n@dp]"],
    y: A[sh.Array, "f32[n]"],
    i: A[sh.Array, "i32[n]"],
    b: A[sh.Array, "bool[n]"],
    c: A[sh.Array, "c64[n]"],
    h: A[sh.Array, "f16[n]"],
) -> None:
    reveal_type(x + y)
    reveal_type(x + 1.5)
    reveal_type(x * h)
    reveal_type(i + b)
    reveal_type(b * 2)
    reveal_type(b + 1.0)
    reveal_type(sh.abs(c))
    reveal_type(sh.sqrt(i))
    reveal_type(y * 1j)


# mypy says:
# 14:17: type f32[n@dp]
# 15:17: type bf16[n@dp]
# 16:17: type f32[n@dp]
# 17:17: type i32[n]
# 18:17: type i32[n]
# 19:17: type f32[n]
# 20:17: type f32[n]
# 21:17: type f32[n]
# 22:17: type c64[n]
