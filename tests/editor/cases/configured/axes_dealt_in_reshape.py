from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[8@dp, 4]"], y: A[sh.Array, "f32[4, 8@tp]"]) -> None:
    reveal_type(x.reshape(32))
    reveal_type(x.reshape(2, 16))
    reveal_type(x.reshape(2, 2, 8))
    y.reshape(32)


# mypy says:
# 7:17: type f32[32@dp]
# 8:17: type f32[2@dp,16]
# 9:17: type f32[2@dp,2,8]
# 10:5: `reshape` from (4, 8) to (32,) merges dim 1, sharded on mesh axis `tp`, behind dim 0  [sharding]
# 10:5: each device holds a slice of dim 1 for each of its 4 indices of dim 0: merged, these are not one contiguous slice
# 10:5: in reshape(f32[4,8@tp])
# 10:5: fix: sh.reshard(y, "[4,8]{U:tp}")   [free, but each device holds all of it]
