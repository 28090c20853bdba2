from dataclasses import dataclass
from typing import Annotated as A

import shtypes as sh


@dataclass
class Layer:
    w: A[sh.Array, "f32[d, d]"]


def collected(h: A[sh.Array, "f32[b@dp, d]"], layer: Layer) -> tuple[A[sh.Array, "f32[b@dp, d]"], Layer]:
    return sh.tanh(h @ layer.w), layer


def f(stacked: Layer, x: A[sh.Array, "f32[b@dp, d]"]) -> None:
    y, layers = sh.scan(collected, x, stacked)
    reveal_type(y)
    reveal_type(layers.w)  # with a dim more than the class says
    reveal_type(sh.scan(lambda h, layer: (sh.tanh(h @ layer.w), None), x, stacked)[0])
    reveal_type(sh.fori_loop(0, 3, lambda i, layer: layer, stacked).w)


def gradient_without_a_mesh(layer: Layer, x: A[sh.Array, "f32[b@dp, d]"]) -> None:
    def loss(layer: Layer) -> A[sh.Array, "f32[]{U:dp}"]:
        return sh.sum(x @ layer.w)

    value, gradient = sh.value_and_grad(loss)(layer)
    reveal_type(value)
    reveal_type(gradient.w)


# mypy says:
# 18:17: type f32[b@dp, d]
# 19:17: type ?
# 20:17: type ?
# 21:17: type f32[d, d]
# 29:17: type f32[]{U:dp}
# 30:17: type ?
