from typing import Annotated as A

import shtypes as sh


def f(flag: bool, x: A[sh.Array, "f32[n@dp]"], u: A[sh.Array, "f32[n]{U:dp}"]) -> None:
    y = x if flag else u
    reveal_type(y)
    reveal_type(y * 2)
    sh.exp(y)


# mypy says:
# 8:17: type f32[n@dp] | f32[n]{U:dp}
# 9:17: type f32[n@dp] | f32[n]{U:dp}
# 10:12: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 10:12: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 10:12: in exp(f32[n]{U:dp})
# 10:12: fix: sh.reshard(y, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
