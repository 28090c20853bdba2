from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[seq=4, batch@dp]"], y: A[sh.Array, "f32[seq, batch@dp]"]) -> None:
    reveal_type(x.reshape(2, 2, -1))
    reveal_type(x * 2)
    reveal_type(x + y)


# mypy says:
# 7:17: type f32[2, 2, batch@dp]
# 8:17: type f32[seq=4, batch@dp]
# 9:17: type ?
