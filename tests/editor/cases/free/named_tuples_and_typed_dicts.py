from typing import Annotated as A
from typing import NamedTuple, TypedDict

import shtypes as sh


class Pair(NamedTuple):
    x: A[sh.Array, "f32[n@dp]"]
    total: A[sh.Array, "f32[]{U:dp}"]


class Params(TypedDict):
    w: A[sh.Array, "f32[n@dp]"]


def f(p: Pair, q: Params) -> None:
    reveal_type(p.x)
    sh.exp(p.total)
    reveal_type(q["w"] * 2)


# mypy says:
# 17:17: type f32[n@dp]
# 18:12: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 18:12: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 18:12: in exp(f32[]{U:dp})
# 18:12: fix: sh.reshard(p.total, "[]{I:dp}")   [forward: all-reduce over `dp`; backward: none]
# 19:17: type f32[n@dp]
