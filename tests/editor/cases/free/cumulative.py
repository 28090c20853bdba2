from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, m]"], u: A[sh.Array, "f32[n]{U:dp}"]) -> None:
    reveal_type(sh.cumsum(x, axis=1))
    reveal_type(sh.cumsum(u, axis=0))
    reveal_type(x.cumprod(1))
    x.cumsum(0)
    u.cumprod(0)


# mypy says:
# 7:17: type f32[n@dp, m]
# 8:17: type f32[n]{U:dp}
# 9:17: type f32[n@dp, m]
# 10:5: `cumsum` acts along dim 0 (`n`), which is sharded on mesh axis `dp`  [sharding]
# 10:5: each device holds only its slice of that dim, and the result needs all of it
# 10:5: in cumsum(f32[n@dp, m])
# 10:5: fix: sh.reshard(x, "[n, m]{U:dp}")   [free, but each device holds all of it]
# 11:5: `cumprod` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 11:5: each device holds one term of the sum, and cumprod(a + b) is not cumprod(a) + cumprod(b)
# 11:5: in cumprod(f32[n]{U:dp})
# 11:5: fix: sh.reshard(u, "[n]{I:dp}")   [forward: all-reduce over `dp`; backward: none]
