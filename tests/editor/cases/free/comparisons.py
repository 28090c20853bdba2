from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"], y: A[sh.Array, "f32[n]"], u: A[sh.Array, "f32[n]{U:dp}"]) -> None:
    reveal_type(x < y)
    reveal_type(x == 0)
    reveal_type(0 >= x)
    both = (x > 0) & (y > 0)
    reveal_type(both)
    u > 0


# mypy says:
# 7:17: type bool[n@dp]
# 8:17: type bool[n@dp]
# 9:17: type bool[n@dp]
# 11:17: type bool[n@dp]
# 12:5: `greater` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 12:5: each device holds one term of the sum, and greater(a + b) is not greater(a) + greater(b)
# 12:5: in greater(f32[n]{U:dp})
# 12:5: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: none]
