import typing
from typing import Annotated as A
from typing import TypeAlias

import shtypes as sh

Acts = A[sh.Array, "f32[seq, batch@dp]"]
Named: TypeAlias = A[sh.Array, "f32[n]"]
Other = typing.Annotated[sh.Array, "f32[m@tp]"]


def f(x: Acts, y: Named, z: Other) -> Acts:
    reveal_type(x)
    reveal_type(y)
    reveal_type(z)
    return x * 2


# mypy says:
# 13:17: type f32[seq, batch@dp]
# 14:17: type f32[n]
# 15:17: type f32[m@tp]
