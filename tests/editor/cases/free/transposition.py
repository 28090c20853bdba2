from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[a, b@dp, c]"], m: A[sh.Array, "f32[n@dp, m]"]) -> None:
    reveal_type(x.T)
    reveal_type(m.mT)
    reveal_type(sh.transpose(x, (1, 0, 2)))
    reveal_type(x.transpose(2, 0, 1))
    reveal_type(sh.moveaxis(x, 1, 0))
    reveal_type(x.swapaxes(0, -1))
    reveal_type(sh.matrix_transpose(m))
    sh.transpose(x, (0, 1))


# mypy says:
# 7:17: type f32[c, b@dp, a]
# 8:17: type f32[m, n@dp]
# 9:17: type f32[b@dp, a, c]
# 10:17: type f32[c, a, b@dp]
# 11:17: type f32[b@dp, a, c]
# 12:17: type f32[c, b@dp, a]
# 13:17: type f32[m, n@dp]
