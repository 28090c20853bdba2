from typing import Annotated as A

import shtypes as sh


def loss(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return (x @ w).sum()


def g(v: A[sh.Array, "f32[k]"], y: A[sh.Array, "f32[batch@dp, k]"]) -> None:
    reveal_type(sh.grad(loss)(v, y))
    reveal_type(sh.value_and_grad(loss)(v, y))


# mypy says:
# 11:17: type ?
# 12:17: type tuple[f32[]{U:dp}, ?]
