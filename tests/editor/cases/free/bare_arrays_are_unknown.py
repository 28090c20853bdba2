from typing import Annotated as A
from typing import Any

import shtypes as sh


def f(x: sh.Array, y: Any, w: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    reveal_type(x)
    reveal_type(sh.exp(x))
    reveal_type(x + w)
    reveal_type(sh.exp(y))
    reveal_type(w * y)
    return x


# mypy says:
# 8:17: type ?
# 9:17: type ?
# 10:17: type ?
# 11:17: type ?
# 12:17: type Any
