from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[4@dp]"], y: A[sh.Array, "f32[2, 0]"]) -> None:
    reveal_type(sh.roll(x, 8))
    reveal_type(sh.roll(x, -4, axis=0))
    reveal_type(sh.roll(y, 3))
    sh.roll(x, 2)


# mypy says:
# 7:17: type f32[4@dp]
# 8:17: type f32[4@dp]
# 9:17: type f32[2,0]
# 10:5: `slice` acts along dim 0, which is sharded on mesh axis `dp`  [sharding]
# 10:5: each device holds only its slice of that dim, and the result needs all of it
# 10:5: in roll(f32[4@dp]), by slice(f32[4@dp])
# 10:5: fix: sh.reshard(x, "[4]{U:dp}")   [free, but each device holds all of it]
