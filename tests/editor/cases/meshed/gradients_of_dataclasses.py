from dataclasses import dataclass
from typing import Annotated as A

import shtypes as sh


@dataclass
class Params:
    w: A[sh.Array, "f32[h]"]


def loss(p: Params, x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return (x @ p.w).sum()


def step(p: Params, x: A[sh.Array, "f32[b@dp, h]"]) -> None:
    reveal_type(sh.grad(loss)(p, x))


# mypy says:
# 17:17: type gradients_of_dataclasses.Params
