"""A target for each type: that of the value's type is taken, and a value of no type in it stays."""

from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[8@dp, 4]"], p: A[sh.Array, "f32[8, 4]{U:tp}"]) -> None:
    reveal_type(sh.reshard(x, {"[_@dp, _]": "[_, _@tp]", "[_, _]{U:tp}": "[_, _]"}))
    sh.silu(sh.reshard(p, {"[_@dp, _]": "[_, _@tp]"}))
    sh.reshard(x, {"[_@ep, _]": "[_, _]"})


# mypy says:
# 9:17: type f32[8,4@tp]
# 10:13: `silu` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 10:13: each device holds one term of the sum, and silu(a + b) is not silu(a) + silu(b)
# 10:13: in silu(f32[8,4]{U:tp})
# 10:13: fix: sh.reshard(..., "[8,4@tp]")   [forward: reduce-scatter over `tp`, all-gather over `dp`, 64 B/device; backward: all-gather over `tp`, 96 B/device]
# 11:5: the mesh has no axis `ep`; it has `dp`, `tp`  [sharding]
# 11:5: try: `tp`
