from typing import Annotated as A

import shtypes as sh


def f(u: A[sh.Array, "f32[8, 4]{U:tp}"]) -> None:
    sh.exp(u)


# mypy says:
# 7:12: `exp` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 7:12: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 7:12: in exp(f32[8,4]{U:tp})
# 7:12: fix: sh.reshard(u, "[8,4@tp]")   [forward: reduce-scatter over `tp`, all-gather over `dp`, 64 B/device; backward: all-gather over `tp`, 96 B/device]
