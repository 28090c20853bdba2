from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[n@dp, m]"],
    r: A[sh.Array, "f32[n, m]"],
    u: A[sh.Array, "f32[n, m]{U:dp}"],
    row: A[sh.Array, "f32[m]"],
    other: A[sh.Array, "f32[m, n]"],
) -> None:
    reveal_type(x + r)
    reveal_type(u + r)
    reveal_type(u - u)
    reveal_type(x + row)
    reveal_type(row + x)
    reveal_type(u + 1)
    reveal_type(1 + u)
    reveal_type(3.0 - x)
    x + u
    x + other


# mypy says:
# 13:17: type f32[n@dp, m]
# 14:17: type f32[n, m]{U:dp}
# 15:17: type f32[n, m]{U:dp}
# 16:17: type f32[n@dp, m]
# 17:17: type f32[n@dp, m]
# 18:17: type f32[n, m]{U:dp}
# 19:17: type f32[n, m]{U:dp}
# 20:17: type f32[n@dp, m]
# 21:5: `add` cannot combine sharded with unreduced on mesh axis `dp`  [sharding]
# 21:5: each device holds one term of rhs but only a slice of lhs: a term would meet only its own device's slice
# 21:5: in add(f32[n@dp, m], f32[n, m]{U:dp})
# 21:5: fix: sh.reshard(x, "[n, m]{U:dp}")   [free, but each device holds all of it]
# 22:5: `add` cannot broadcast dim 0 (`n`) of lhs, of size `n`, with dim 0 (`m`) of rhs, of size `m`  [sharding]
# 22:5: in add(f32[n@dp, m], f32[m, n])
