from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"]) -> tuple[A[sh.Array, "f32[n@dp]"], A[sh.Array, "f32[]{U:dp}"]]:
    return x, x.sum()


def g(x: A[sh.Array, "f32[k@dp]"]) -> None:
    y, total = f(x)
    reveal_type(y)
    reveal_type(total)
    sh.sqrt(total)


# mypy says:
# 12:17: type f32[k@dp]
# 13:17: type f32[]{U:dp}
# 14:13: `sqrt` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 14:13: each device holds one term of the sum, and sqrt(a + b) is not sqrt(a) + sqrt(b)
# 14:13: in sqrt(f32[]{U:dp})
# 14:13: fix: sh.reshard(total, "[]{I:dp}")   [forward: all-reduce over `dp`; backward: none]
