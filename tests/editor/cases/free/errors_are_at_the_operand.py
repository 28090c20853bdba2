from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n]"], u: A[sh.Array, "f32[n]{U:tp}"]) -> None:
    sh.maximum(x, (u))
    x + sh.exp(x * u)
    x / u


# mypy says:
# 7:20: `maximum` is nonlinear in rhs, which is unreduced on mesh axis `tp`  [sharding]
# 7:20: each device holds one term of the sum, and maximum(a + b) is not maximum(a) + maximum(b)
# 7:20: in maximum(f32[n], f32[n]{U:tp})
# 7:20: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
# 8:16: `exp` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 8:16: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 8:16: in exp(f32[n]{U:tp})
# 8:16: fix: sh.reshard(..., "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
# 9:9: `divide` is nonlinear in rhs, which is unreduced on mesh axis `tp`  [sharding]
# 9:9: each device holds one term of the sum, and a / (b + c) is not a / b + a / c
# 9:9: in div(f32[n], f32[n]{U:tp})
# 9:9: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
