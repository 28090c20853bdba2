from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[8, 4, 6]"], y: A[sh.Array, "f32[8@dp, 4]"]) -> None:
    reveal_type(x.reshape(8, 24))
    reveal_type(sh.reshape(x, (2, 4, -1)))
    reveal_type(x.ravel())
    reveal_type(y.reshape(8, 2, 2))
    reveal_type(y.reshape(32))
    x.reshape(7, 7)


# mypy says:
# 7:17: type f32[8,24]
# 8:17: type f32[2,4,24]
# 9:17: type f32[192]
# 10:17: type f32[8@dp,2,2]
# 11:17: type f32[32@dp]
# 12:5: `reshape` does not take these arguments  [sharding]
# 12:5: cannot reshape array of shape (8, 4, 6) (size 192) into shape (7, 7) (size 49)
