from typing import Annotated as A

import shtypes as sh


def total(x: A[sh.Array, "f32[n]{...}"]) -> A[sh.Array, "f32[]{...}"]:
    return x.sum()


def g(u: A[sh.Array, "f32[k]{U:tp}"], s: A[sh.Array, "f32[k@tp]"]) -> None:
    reveal_type(total(u))
    total(s)


# mypy says:
# 11:17: type ?
# 12:11: argument `x` of `total` is f32[k@tp], not f32[n]{...}  [sharding]
# 12:11: dim 0 (`n`) is sharded over `tp`, and the signature has it not sharded
