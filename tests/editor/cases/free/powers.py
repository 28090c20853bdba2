from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"], u: A[sh.Array, "f32[n]{U:dp}"], k: int) -> None:
    reveal_type(x**2)
    reveal_type(u**1)
    u**2
    reveal_type(u**k)
    reveal_type(2**x)


# mypy says:
# 7:17: type f32[n@dp]
# 8:17: type f32[n]{U:dp}
# 9:5: `power` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 9:5: each device holds one term of the sum, and power(a + b) is not power(a) + power(b)
# 9:5: in power(f32[n]{U:dp})
# 9:5: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 10:17: type f32[n]{U:dp}
# 11:17: type f32[n@dp]
