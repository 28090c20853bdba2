from typing import Annotated as A

import shtypes as sh


def f(i: A[sh.Array, "i32[n@dp]"], j: A[sh.Array, "i32[n]"], x: A[sh.Array, "f32[n]"]) -> None:
    reveal_type(i // j)
    reveal_type(i % 3)
    reveal_type(i << 2)
    reveal_type(i / j)
    reveal_type(i + x)
    reveal_type(i * 2.5)
    reveal_type(divmod(i, j))


# mypy says:
# 7:17: type i32[n@dp]
# 8:17: type i32[n@dp]
# 9:17: type i32[n@dp]
# 10:17: type f32[n@dp]
# 11:17: type f32[n@dp]
# 12:17: type f32[n@dp]
# 13:17: type tuple[i32[n@dp], i32[n@dp]]
