from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, m]"]) -> None:
    reveal_type(sh.flip(x, 1))
    reveal_type(sh.roll(x, 2, axis=1))
    reveal_type(sh.fliplr(x))
    sh.flip(x)
    sh.roll(x, 1, axis=0)


# mypy says:
# 7:17: type f32[n@dp, m]
# 8:17: type f32[n@dp, m]
# 9:17: type f32[n@dp, m]
# 10:13: `flip` acts along dim 0 (`n`), which is sharded on mesh axis `dp`  [sharding]
# 10:13: each device holds only its slice of that dim, and the result needs all of it
# 10:13: in flip(f32[n@dp, m])
# 10:13: fix: sh.reshard(x, "[n, m]{U:dp}")   [free, but each device holds all of it]
# 11:5: `slice` acts along dim 0 (`n`), which is sharded on mesh axis `dp`  [sharding]
# 11:5: each device holds only its slice of that dim, and the result needs all of it
# 11:5: in roll(f32[n@dp, m]), by slice(f32[n@dp, m])
# 11:5: fix: sh.reshard(x, "[n, m]{U:dp}")   [free, but each device holds all of it]
