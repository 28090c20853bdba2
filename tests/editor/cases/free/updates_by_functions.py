from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, 4]"], u: A[sh.Array, "f32[4, 8]{U:tp}"], ids: A[sh.Array, "i32[3]"]) -> None:
    reveal_type(x.at[:, 1:].apply(sh.sin))
    reveal_type(sh.constant(x).at[:, 0].apply(lambda part: part * 0.5))
    reveal_type(u.at[0].apply(lambda part: part * 2))
    reveal_type(x.at[:, ids].apply(sh.abs))
    reveal_type(x.at[:, 0].apply(str))
    u.at[0].apply(lambda part: sh.exp(part))


# mypy says:
# 7:17: type f32[n@dp, 4]
# 8:17: type f32[n@dp, 4]
# 9:17: type f32[4,8]{U:tp}
# 10:17: type ?
# 10:36: `at[...].apply` needs positions that differ  [sharding]
# 10:36: the function would be applied to an element as often as it is named
# 10:36: try: unique_indices=True, if they do
# 11:17: type ?
# 12:39: `exp` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 12:39: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 12:39: in exp(f32[8]{U:tp})
# 12:39: fix: sh.reshard(part, "[8@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
