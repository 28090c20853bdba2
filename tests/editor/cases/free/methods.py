from typing import Annotated as A

import shtypes as sh


class Layer:
    w: A[sh.Array, "f32[hidden, inter@tp]"]

    def __call__(self, x: A[sh.Array, "f32[n, hidden]"]) -> A[sh.Array, "f32[n, inter@tp]"]:
        reveal_type(x @ self.w)
        return x @ self.w

    def twice(self, x: A[sh.Array, "f32[n, hidden]"]) -> A[sh.Array, "f32[n, inter@tp]"]:
        return self(x) * 2


def g(layer: Layer, x: A[sh.Array, "f32[batch, hidden]"], y: A[sh.Array, "f32[batch, d]"]) -> None:
    reveal_type(layer(x))
    reveal_type(layer.twice(x))
    layer(y)


# mypy says:
# 10:21: type f32[n, inter@tp]
# 18:17: type f32[batch, inter@tp]
# 19:17: type f32[batch, inter@tp]
# 20:11: argument `x` of `layer` is f32[batch, d], not f32[n, hidden]  [sharding]
# 20:11: dim 1 has size `d`, not `hidden`
