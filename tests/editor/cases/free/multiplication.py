from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, m]"], r: A[sh.Array, "f32[n, m]"], u: A[sh.Array, "f32[n, m]{U:dp}"]) -> None:
    reveal_type(x * r)
    reveal_type(u * r)
    reveal_type(u * 2)
    reveal_type(0.5 * u)
    reveal_type(x / r)
    reveal_type(u / 3)
    u * u
    u * x
    r / u


# mypy says:
# 7:17: type f32[n@dp, m]
# 8:17: type f32[n, m]{U:dp}
# 9:17: type f32[n, m]{U:dp}
# 10:17: type f32[n, m]{U:dp}
# 11:17: type f32[n@dp, m]
# 12:17: type f32[n, m]{U:dp}
# 13:5: `mul` cannot combine unreduced with unreduced on mesh axis `dp`  [sharding]
# 13:5: each device holds one term of lhs and one of rhs, and (a + b)(c + d) is not ac + bd: a term of one would meet only its own device's term of the other
# 13:5: in mul(f32[n, m]{U:dp}, f32[n, m]{U:dp})
# 13:5: fix: sh.reshard(u, "[n, m]")   [forward: all-reduce over `dp`; backward: all-reduce over `dp`]
# 14:5: `mul` cannot combine unreduced with sharded on mesh axis `dp`  [sharding]
# 14:5: each device holds one term of lhs but only a slice of rhs: a term would meet only its own device's slice
# 14:5: in mul(f32[n, m]{U:dp}, f32[n@dp, m])
# 14:5: fix: sh.reshard(u, "[n@dp, m]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 15:9: `divide` is nonlinear in rhs, which is unreduced on mesh axis `dp`  [sharding]
# 15:9: each device holds one term of the sum, and a / (b + c) is not a / b + a / c
# 15:9: in div(f32[n, m], f32[n, m]{U:dp})
# 15:9: fix: sh.reshard(u, "[n, m@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
