from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n, n]"], u: A[sh.Array, "f32[n, n]{U:dp}"]) -> None:
    y = x
    for _ in range(3):
        y = y @ x
    reveal_type(y)
    z = x
    for _ in range(3):
        z = sh.exp(z)
        z = z + u
    reveal_type(z)


# mypy says:
# 10:17: type f32[n, n]
# 13:20: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 13:20: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 13:20: in exp(f32[n, n]{U:dp})
# 13:20: fix: sh.reshard(z, "[n, n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 15:17: type f32[n, n] | f32[n, n]{U:dp} | ?
