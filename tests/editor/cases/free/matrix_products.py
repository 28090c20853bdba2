from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[n@dp, k]"],
    w: A[sh.Array, "f32[k, m@tp]"],
    v: A[sh.Array, "f32[k]"],
    b: A[sh.Array, "f32[batch@dp, k, m]"],
) -> None:
    reveal_type(x @ w)
    reveal_type(x @ v)
    reveal_type(v @ w)
    reveal_type(v @ v)
    reveal_type(x.dot(w))
    reveal_type(sh.matmul(w.T, v))
    reveal_type(v @ b)
    reveal_type(sh.dot(x, w))
    reveal_type(sh.tensordot(x, w, 1))
    reveal_type(sh.tensordot(w, b, axes=((0,), (1,))))
    reveal_type(sh.inner(v, v))
    reveal_type(sh.outer(v, v))
    reveal_type(sh.vdot(v, v))


# mypy says:
# 12:17: type f32[n@dp, m@tp]
# 13:17: type f32[n@dp]
# 14:17: type f32[m@tp]
# 15:17: type f32[]
# 16:17: type f32[n@dp, m@tp]
# 17:17: type f32[m@tp]
# 18:17: type f32[batch@dp, m]
# 19:17: type f32[n@dp, m@tp]
# 20:17: type f32[n@dp, m@tp]
# 21:17: type f32[m@tp, batch@dp, m]
# 22:17: type f32[]
# 23:17: type f32[k, k]
# 24:17: type f32[]
