from typing import Annotated as A
from typing import Final

import shtypes as sh

AXIS: Final = "tp"
DIM: Final = 0
TARGET: Final = "[seq@tp, ...]"


def f(u: A[sh.Array, "f32[seq, batch@dp]{U:tp}"]) -> None:
    reveal_type(sh.all_reduce(u, AXIS))
    reveal_type(sh.reduce_scatter(u, AXIS, DIM))
    reveal_type(sh.reshard(u, TARGET))


# mypy says:
# 12:17: type f32[seq, batch@dp]
# 13:17: type f32[seq@tp, batch@dp]
# 14:17: type f32[seq@tp, batch@dp]
