from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"], y: A[sh.Array, "f32[n]"]) -> None:
    reveal_type(sh.exp(x))
    reveal_type(sh.nn.gelu(x))
    reveal_type(sh.sigmoid(x))
    reveal_type(sh.maximum(x, y))
    reveal_type(sh.minimum(x, 1))
    reveal_type(sh.isfinite(x))
    reveal_type(sh.rsqrt(x))
    reveal_type(sh.logaddexp(x, y))
    reveal_type(sh.clip(x, 0, 1))
    reveal_type(x.clip(min=0))
    reveal_type(sh.real(x))


# mypy says:
# 7:17: type f32[n@dp]
# 8:17: type f32[n@dp]
# 9:17: type f32[n@dp]
# 10:17: type f32[n@dp]
# 11:17: type f32[n@dp]
# 12:17: type bool[n@dp]
# 13:17: type f32[n@dp]
# 14:17: type f32[n@dp]
# 15:17: type f32[n@dp]
# 16:17: type f32[n@dp]
# 17:17: type f32[n@dp]
