from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"], u: A[sh.Array, "f32[n]{U:dp}"], i: A[sh.Array, "i32[n]"]) -> None:
    reveal_type(-u)
    reveal_type(+u)
    reveal_type(abs(x))
    reveal_type(~i)
    abs(u)


# mypy says:
# 7:17: type f32[n]{U:dp}
# 8:17: type f32[n]{U:dp}
# 9:17: type f32[n@dp]
# 10:17: type i32[n]
# 11:9: `abs` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 11:9: each device holds one term of the sum, and abs(a + b) is not abs(a) + abs(b)
# 11:9: in abs(f32[n]{U:dp})
# 11:9: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
