from typing import Annotated as A

import shtypes as sh


def step(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> None:
    def loss(v: A[sh.Array, "f32[h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
        return (x @ v).sum()

    reveal_type(sh.grad(loss)(w))
    reveal_type(sh.value_and_grad(loss)(w))


# mypy says:
# 10:17: type f32[h]{U:(dp,tp)}
# 11:17: type tuple[f32[]{U:dp}, f32[h]{U:(dp,tp)}]
