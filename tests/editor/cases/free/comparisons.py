from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"], y: A[sh.Array, "f32[n]"], u: A[sh.Array, "f32[n]{U:dp}"]) -> None:
    reveal_type(x < y)
    reveal_type(x == 0)
    reveal_type(0 >= x)
    reveal_type((x > 0) & (y > 0))
    u > 0


# mypy says:
# 7:17: type bool[n@dp]
# 8:17: type bool[n@dp]
# 9:17: type bool[n@dp]
# 10:18: type bool[n@dp]
# 11:5: `greater` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 11:5: each device holds one term of the sum, and greater(a + b) is not greater(a) + greater(b)
# 11:5: in greater(f32[n]{U:dp})
# 11:5: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: none]
