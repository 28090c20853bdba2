from dataclasses import dataclass
from typing import Annotated as A
from typing import NamedTuple, TypedDict

import shtypes as sh


@dataclass
class Params:
    w: A[sh.Array, "f32[h]"]


@dataclass
class Model:
    layers: list[Params]
    first: Params


class Pair(NamedTuple):
    w: A[sh.Array, "f32[h]"]
    name: str


class Table(TypedDict):
    w: A[sh.Array, "f32[h]"]


def loss(p: Params, x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return (x @ p.w).sum()


def loss_of_model(m: Model, pair: Pair, t: Table, x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return (x @ (m.first.w * pair.w * t["w"])).sum()


def step(p: Params, x: A[sh.Array, "f32[b@dp, h]"]) -> None:
    gradient = sh.grad(loss)(p, x)
    reveal_type(gradient)
    reveal_type(gradient.w)  # no field of a gradient is what the class says of a primal's
    sh.all_reduce(gradient.w, "dp", "tp")
    reveal_type(p.w)


def step_of_model(m: Model, pair: Pair, t: Table, x: A[sh.Array, "f32[b@dp, h]"]) -> None:
    of_model, of_pair, of_table = sh.grad(loss_of_model, argnums=(0, 1, 2))(m, pair, t, x)
    reveal_type(of_model.first.w)
    for layer in of_model.layers:
        reveal_type(layer.w)
    reveal_type(of_pair[0])
    reveal_type(of_pair.w)
    reveal_type(of_table["w"])
    of_model.first = m.first


# mypy says:
# 38:17: type Params
# 39:17: type ?
# 41:17: type f32[h]
# 46:17: type ?
# 48:21: type ?
# 49:17: type f32[h]{U:(dp,tp)}
# 50:17: type ?
# 51:17: type f32[h]{U:(dp,tp)}
