from typing import Annotated as A

import numpy as np

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, m]"], order: float) -> None:
    reveal_type(sh.linalg.vector_norm(x, axis=1))
    reveal_type(sh.linalg.vector_norm(x, axis=1, keepdims=True, ord=np.inf))
    reveal_type(sh.linalg.norm(x, axis=0, ord=1))
    reveal_type(sh.linalg.norm(x, axis=0, out="f32[m]{I:dp}"))
    reveal_type(sh.linalg.norm(x, ord="fro", out="f32[]"))
    reveal_type(sh.linalg.norm(x, axis=1, ord=order))
    reveal_type(sh.linalg.norm(x, ord=2))
    sh.linalg.norm(x)


# mypy says:
# 9:17: type f32[n@dp]
# 10:17: type f32[n@dp, 1]
# 11:17: type f32[m]{U:dp}
# 12:17: type f32[m]{I:dp}
# 13:17: type f32[]
# 14:17: type f32[n@dp]
# 15:17: `svd` acts along dim 0 (`n`), which is sharded on mesh axis `dp`  [sharding]
# 15:17: each device holds only its slice of that dim, and the result needs all of it
# 15:17: in linalg.norm(f32[n@dp, m]), by svd(f32[n@dp, m])
# 15:17: fix: sh.reshard(x, "[n, m]{I:dp}")   [forward: all-gather over `dp`; backward: none]
# 15:17: type ?
# 16:5: `sqrt` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 16:5: each device holds one term of the sum, and sqrt(a + b) is not sqrt(a) + sqrt(b)
# 16:5: in linalg.norm(f32[n@dp, m]), by sqrt(f32[]{U:dp})
# 16:5: fix: sh.linalg.norm(..., out="[]{I:dp}")   [forward: all-reduce over `dp`; backward: none]
