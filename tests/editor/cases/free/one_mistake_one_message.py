from typing import Annotated as A

import shtypes as sh


def f(u: A[sh.Array, "f32[n]{U:tp}"]) -> None:
    y = sh.exp(u)
    sh.exp(y) + u


# mypy says:
# 7:16: `exp` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 7:16: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 7:16: in exp(f32[n]{U:tp})
# 7:16: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
