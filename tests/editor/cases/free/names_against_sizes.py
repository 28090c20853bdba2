from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[n, 8]"], y: A[sh.Array, "f32[8, 8]"], z: A[sh.Array, "f32[m, 8]"], one: A[sh.Array, "f32[1, 8]"]
) -> None:
    reveal_type(x + y)
    reveal_type(x * one)
    x + z


# mypy says:
# 9:17: type ?
# 10:17: type f32[n, 8]
# 11:5: `add` cannot broadcast dim 0 (`n`) of lhs, of size `n`, with dim 0 (`m`) of rhs, of size `m`  [sharding]
# 11:5: in add(f32[n, 8], f32[m, 8])
