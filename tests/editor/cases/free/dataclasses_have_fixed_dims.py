from dataclasses import dataclass
from typing import Annotated as A

import shtypes as sh


@dataclass
class Weights:
    up: A[sh.Array, "f32[hidden, inter@tp]"]
    down: A[sh.Array, "f32[inter@tp, hidden]"]


def mlp(p: Weights, x: A[sh.Array, "f32[n, hidden]"]) -> A[sh.Array, "f32[n, hidden]{U:tp}"]:
    return sh.silu(x @ p.up) @ p.down


def g(up: A[sh.Array, "f32[hidden, inter@tp]"], down: A[sh.Array, "f32[inter@tp, hidden]"]) -> None:
    p = Weights(up, down)
    reveal_type(p.up)
    Weights(down, up)
    reveal_type(Weights(sh.zeros("f32[4, 8@tp]"), sh.zeros("f32[8@tp, 4]")).down)


# mypy says:
# 19:17: type f32[hidden, inter@tp]
# 20:13: argument `up` of `Weights` is f32[inter@tp, hidden], not f32[hidden, inter@tp]  [sharding]
# 20:13: dim 0 (`hidden`) is sharded over `tp`, and the signature has it not sharded
# 20:13: dim 1 (`inter`) is not sharded, and the signature has it sharded over `tp`
# 20:13: dim 0 has size `inter`, not `hidden`
# 20:13: dim 1 has size `hidden`, not `inter`
# 20:19: argument `down` of `Weights` is f32[hidden, inter@tp], not f32[inter@tp, hidden]  [sharding]
# 20:19: dim 0 (`inter`) is not sharded, and the signature has it sharded over `tp`
# 20:19: dim 1 (`hidden`) is sharded over `tp`, and the signature has it not sharded
# 20:19: dim 0 has size `hidden`, not `inter`
# 20:19: dim 1 has size `inter`, not `hidden`
# 21:17: type f32[inter@tp, hidden]
