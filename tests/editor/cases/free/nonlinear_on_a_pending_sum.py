from typing import Annotated as A

import shtypes as sh


def f(u: A[sh.Array, "f32[n]{U:tp}"], r: A[sh.Array, "f32[n]"]) -> None:
    sh.silu(u)
    sh.exp(r + u)
    sh.maximum(r, u)
    sh.nn.relu(x=u)
    u.clip(0, 1)


# mypy says:
# 7:13: `silu` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 7:13: each device holds one term of the sum, and silu(a + b) is not silu(a) + silu(b)
# 7:13: in silu(f32[n]{U:tp})
# 7:13: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
# 8:12: `exp` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 8:12: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 8:12: in exp(f32[n]{U:tp})
# 8:12: fix: sh.reshard(..., "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
# 9:19: `maximum` is nonlinear in rhs, which is unreduced on mesh axis `tp`  [sharding]
# 9:19: each device holds one term of the sum, and maximum(a + b) is not maximum(a) + maximum(b)
# 9:19: in maximum(f32[n], f32[n]{U:tp})
# 9:19: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
# 10:18: `relu` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 10:18: each device holds one term of the sum, and relu(a + b) is not relu(a) + relu(b)
# 10:18: in relu(f32[n]{U:tp})
# 10:18: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
# 11:5: `clip` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 11:5: each device holds one term of the sum, and clip(a + b) is not clip(a) + clip(b)
# 11:5: in clip(f32[n]{U:tp})
# 11:5: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
