from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n, m@dp]"], y: A[sh.Array, "f32[k, m@dp]"], r: A[sh.Array, "f32[n, m]"]) -> None:
    reveal_type(sh.concatenate([x, y]))
    reveal_type(sh.concatenate((x, x, r), axis=0))
    reveal_type(sh.stack([x, r], axis=1))
    sh.concatenate([x, x], axis=1)
    sh.stack([x, y])


# mypy says:
# 7:17: type ?
# 8:17: type f32[3*n, m@dp]
# 9:17: type f32[n, 2, m@dp]
# 10:5: `concatenate` acts along dim 1 (`m`), which is sharded on mesh axis `dp`  [sharding]
# 10:5: each device holds only its slice of that dim, and the result needs all of it
# 10:5: in concatenate(f32[n, m@dp], f32[n, m@dp])
# 10:5: fix: sh.reshard(x, "[n, m]{U:dp}"); sh.reshard(x, "[n, m]{U:dp}")   [free, but each device holds all of them]
