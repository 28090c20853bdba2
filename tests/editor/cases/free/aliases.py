import typing
from typing import Annotated as A
from typing import TypeAlias

import shtypes as sh

Acts = A[sh.Array, "f32[seq, batch@dp]"]
Named: TypeAlias = A[sh.Array, "f32[n]"]
SEQ, BATCH = 16, 8
TEXT = f"f32[seq={SEQ}, batch={BATCH}@dp]"
OfText = A[sh.Array, TEXT]
OfNumbers = A[sh.Array, f"f32[{SEQ}, batch={BATCH}@dp]"]
Other = typing.Annotated[sh.Array, "f32[m@tp]"]


def f(x: Acts, y: Named, z: Other, v: OfText, w: OfNumbers) -> Acts:
    reveal_type(x)
    reveal_type(y)
    reveal_type(z)
    reveal_type(v)
    reveal_type(w)
    return x * 2


# mypy says:
# 17:17: type f32[seq, batch@dp]
# 18:17: type f32[n]
# 19:17: type f32[m@tp]
# 20:17: type f32[seq=16, batch=8@dp]
# 21:17: type f32[16, batch=8@dp]
