from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, m]"], row: A[sh.Array, "f32[m]"], u: A[sh.Array, "f32[n, m]{U:dp}"], at: A[sh.Array, "i32[k@dp]"]) -> None:
    reveal_type(x.at[0].set(row))
    reveal_type(x.at[:, 0].add(1.5))
    reveal_type(u.at[0].add(row))
    u.at[0].max(row)
    x.at[at].set(0)


# mypy says:
# 7:17: type f32[n@dp, m]
# 8:17: type f32[n@dp, m]
# 9:17: type f32[n, m]{U:dp}
# 10:5: `scatter_max` is nonlinear in operand 0, which is unreduced on mesh axis `dp`  [sharding]
# 10:5: each device holds one term of the sum, and scatter_max(a + b) is not scatter_max(a) + scatter_max(b)
# 10:5: in at_max(f32[n, m]{U:dp}, f32[m]), by scatter_max(f32[n, m]{U:dp}, i32[1], f32[m])
# 10:5: fix: sh.reshard(u, "[n, m@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 11:5: `scatter` meets two different dims sharded on mesh axis `dp`: dim 0 (`n`) of operand 0 and dim 0 (`k`) of operand 1  [sharding]
# 11:5: a device would combine its slice of dim 0 (`n`) of operand 0 with the same device's slice of dim 0 (`k`) of operand 1 only, but every pair of slices is needed: one of the two must be resharded
# 11:5: in at_set(f32[n@dp, m], i32[k@dp]), by scatter(f32[n@dp, m], i32[k@dp, 1], f32[k,m])
# 11:5: fix: sh.reshard(at, "[k]")   [forward: all-gather over `dp`; backward: none]
