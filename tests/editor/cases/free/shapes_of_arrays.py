from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, h, w, c]"], y: A[sh.Array, "bf16[n@dp, k]"], z: A[sh.Array, "f32[3, c@tp]"]) -> None:
    reveal_type(x.reshape(x.shape[0], x.shape[1], -1))
    reveal_type(sh.broadcast_to(y, (3, *y.shape)))
    reveal_type(sh.zeros(y.type) + y)
    reveal_type(sh.zeros(x.shape[1:3], y.dtype))
    reveal_type(sh.pad(x, [(0, 0)] * 4))
    for row in z:
        reveal_type(row)
    a, b, _ = z
    reveal_type([a, b])
    first, second = sh.random.split(sh.random.key(0))
    reveal_type(sh.random.normal(first, x.type))
    sh.split(x, x.shape[1], axis=1)


# mypy says:
# 7:17: type f32[n@dp, h, c*w]
# 8:17: type bf16[3, n@dp, k]
# 9:17: type bf16[n@dp, k]
# 10:17: type bf16[h, w]
# 11:17: type ?
# 13:21: type f32[c@tp]
# 15:17: type list[f32[c@tp]]
# 17:17: type f32[n@dp, h, w, c]
