from typing import Annotated as A
from typing import Any

import shtypes as sh


def step(i: Any, c: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return c * 2


def halved(c: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return c / 2


def f(x: A[sh.Array, "f32[k@dp]"], y: A[sh.Array, "f32[k]"]) -> None:
    reveal_type(sh.fori_loop(0, 3, step, x))
    sh.fori_loop(0, 3, step, y)
    reveal_type(sh.while_loop(lambda c: c[0] > 1, halved, x))


# mypy says:
# 16:17: type f32[k@dp]
# 17:30: argument `c` of `step` is f32[k], not f32[n@dp]  [sharding]
# 17:30: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 17:30: fix: sh.reshard(y, "[k@dp]")   [forward: none; backward: none]
# 18:17: type ?
# 18:41: `greater` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 18:41: each device holds one term of the sum, and greater(a + b) is not greater(a) + greater(b)
# 18:41: in greater(f32[]{U:dp})
# 18:41: fix: sh.reshard(..., "[]")   [forward: all-reduce over `dp`; backward: none]
