from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[4@dp]"], y: A[sh.Array, "f32[1, 4]"]) -> None:
    reveal_type(sh.broadcast_to(x, (3, 4)))
    reveal_type(sh.broadcast_to(y, (3, 4)))
    sh.broadcast_to(x, (4, 3))


# mypy says:
# 7:17: type f32[3,4@dp]
# 8:17: type f32[3,4]
# 9:5: `broadcast_to` does not take these arguments  [sharding]
# 9:5: Incompatible types for broadcasting: input type=float32[4] and requested type=float32[4,3]
