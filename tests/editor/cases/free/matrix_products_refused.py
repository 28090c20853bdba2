from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, k]"], w: A[sh.Array, "f32[m, k]"], u: A[sh.Array, "f32[k, m]{U:dp}"]) -> None:
    x @ w
    x @ u
    x @ x.T


# mypy says:
# 7:5: `einsum` label `k` has size `k` in dim 1 (`k`) of lhs and size `m` in dim 0 (`m`) of rhs  [sharding]
# 7:5: in einsum(f32[n@dp, k], f32[m, k])
# 8:5: `einsum` cannot combine sharded with unreduced on mesh axis `dp`  [sharding]
# 8:5: each device holds one term of rhs but only a slice of lhs: a term would meet only its own device's slice
# 8:5: in einsum(f32[n@dp, k], f32[k, m]{U:dp})
# 8:5: fix: sh.reshard(u, "[k, m]")   [forward: all-reduce over `dp`; backward: all-reduce over `dp`]
# 9:5: `einsum` meets two different dims sharded on mesh axis `dp`: dim 0 (`n`) of lhs and dim 1 (`n`) of rhs  [sharding]
# 9:5: a device would combine its slice of dim 0 (`n`) of lhs with the same device's slice of dim 1 (`n`) of rhs only, but every pair of slices is needed: one of the two must be resharded
# 9:5: in einsum(f32[n@dp, k], f32[k, n@dp])
# 9:5: fix: sh.reshard(x, "[n, k]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
