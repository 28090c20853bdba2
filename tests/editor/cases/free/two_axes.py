from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@(dp,tp), m]"], y: A[sh.Array, "f32[n@dp, m]"], z: A[sh.Array, "f32[n@tp, m]"]) -> None:
    reveal_type(x + y)
    reveal_type(x.sum(0))
    x + z


# mypy says:
# 7:17: type f32[n@(dp,tp), m]
# 8:17: type f32[m]{U:(dp,tp)}
# 9:5: `add` meets dim 0 of the result sharded over `(dp, tp)` in lhs and over `(tp)` in rhs  [sharding]
# 9:5: the slices on one device are not the same part of the dim; only minor axes may be missing
# 9:5: in add(f32[n@(dp,tp), m], f32[n@tp, m])
# 9:5: fix: sh.reshard(x, "[n@dp, m]{U:tp}"); sh.reshard(z, "[n@dp, m]{U:tp}")   [free, but each device holds all of it]
