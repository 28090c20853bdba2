from typing import Annotated as A

import shtypes as sh


def f(u: A[sh.Array, "f32[n]{U:dp}"], r: A[sh.Array, "f32[n]"]) -> None:
    r / u
    1 / u
    reveal_type(u / r)


# mypy says:
# 7:9: `divide` is nonlinear in rhs, which is unreduced on mesh axis `dp`  [sharding]
# 7:9: each device holds one term of the sum, and a / (b + c) is not a / b + a / c
# 7:9: in div(f32[n], f32[n]{U:dp})
# 7:9: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 8:9: `div` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 8:9: each device holds one term of the sum, and div(a + b) is not div(a) + div(b)
# 8:9: in div(f32[n]{U:dp})
# 8:9: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 9:17: type f32[n]{U:dp}
