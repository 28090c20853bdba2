from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[n@dp]"], y: A[sh.Array, "f32[n]"], u: A[sh.Array, "f32[n]{U:dp}"], mask: A[sh.Array, "bool[n]"]
) -> None:
    reveal_type(sh.where(x > 0, x, y))
    reveal_type(sh.where(mask, u, 0))
    reveal_type(sh.where(mask, u, y))
    reveal_type(sh.where(mask, 1.0, 2.0))
    sh.where(x > 0, u, y)
    sh.where(u > 0, x, y)


# mypy says:
# 9:17: type f32[n@dp]
# 10:17: type f32[n]{U:dp}
# 11:17: type f32[n]{U:dp}
# 12:17: type f32[n]
# 13:5: `select_n` cannot combine sharded with unreduced on mesh axis `dp`  [sharding]
# 13:5: each device holds one term of operand 1 but only a slice of operand 0: a term would meet only its own device's slice
# 13:5: in where(bool[n@dp], f32[n]{U:dp}, f32[n]), by select_n(bool[n@dp], f32[n], f32[n]{U:dp})
# 13:5: fix: sh.reshard(operand_0, "[n]")   [forward: all-gather over `dp`; backward: none]
# 14:14: `greater` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 14:14: each device holds one term of the sum, and greater(a + b) is not greater(a) + greater(b)
# 14:14: in greater(f32[n]{U:dp})
# 14:14: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: none]
