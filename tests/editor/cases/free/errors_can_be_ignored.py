from typing import Annotated as A

import shtypes as sh


def f(u: A[sh.Array, "f32[n]{U:tp}"]) -> None:
    sh.exp(u)  # type: ignore[sharding]
    sh.exp(u)  # type: ignore[attr-defined]


# mypy says:
# 8: Unused "type: ignore" comment  [unused-ignore]
# 8:12: `exp` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 8:12: Error code "sharding" not covered by "type: ignore[attr-defined]" comment
# 8:12: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 8:12: in exp(f32[n]{U:tp})
# 8:12: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
