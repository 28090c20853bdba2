from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, 8]"], u: A[sh.Array, "f32[n, 8]{U:dp}"], q: float) -> None:
    reveal_type(sh.quantile(x, 0.5, axis=1))
    reveal_type(sh.percentile(x, q, axis=1, keepdims=True))
    reveal_type(sh.quantile(x, (0.25, 0.75), axis=1))
    reveal_type(sh.nanmedian(x, axis=1))
    reveal_type(sh.nn.logmeanexp(x, axis=1))
    reveal_type(sh.trapezoid(u))
    reveal_type(sh.gradient(u, axis=0))
    reveal_type(sh.diff(u, axis=0, prepend=0.0, append=1))
    reveal_type(sh.ediff1d(u[0]))
    reveal_type(sh.cumulative_sum(u, axis=1, include_initial=True))
    sh.quantile(u, 0.5, axis=1)
    sh.trapezoid(x, axis=0)


# mypy says:
# 7:17: type f32[n@dp]
# 8:17: type f32[n@dp, 1]
# 9:17: type ?
# 10:17: type f32[n@dp]
# 11:17: type f32[n@dp]
# 12:17: type f32[n]{U:dp}
# 13:17: type f32[n, 8]{U:dp}
# 14:17: type f32[n + 1, 8]{U:dp}
# 15:17: type f32[7]{U:dp}
# 16:17: type f32[n, 9]{U:dp}
# 17:17: `ne` is nonlinear in lhs, which is unreduced on mesh axis `dp`  [sharding]
# 17:17: each device holds one term of the sum, and ne(a + b) is not ne(a) + ne(b)
# 17:17: in quantile(f32[n, 8]{U:dp}), by ne(f32[n, 8]{U:dp}, f32[n, 8]{U:dp})
# 17:17: fix: sh.reshard(u, "[n@dp, 8]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
