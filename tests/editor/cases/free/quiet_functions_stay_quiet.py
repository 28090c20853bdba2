from dataclasses import dataclass
from typing import Annotated as A

import shtypes as sh

Rows = A[sh.Array, "f32[n@dp]"]


@sh.jit
@sh.no_comm
def compiled(x: Rows) -> Rows:
    return x * 2


@sh.no_comm
def plain(x: Rows) -> Rows:
    return x * 2


again = sh.checkpoint(plain)
loud = sh.jit(lambda x: x)


@sh.jit
def step(x: Rows) -> Rows:
    return x


@dataclass
class Layer:
    w: Rows

    def __call__(self, x: Rows) -> Rows:
        return x * self.w


@sh.no_comm
def f(x: Rows, layer: Layer) -> Rows:
    y = sh.jit(plain)(again(compiled(x)))
    y = step(y)
    return layer(y)


# mypy says:
# 40:9: `no_comm` cannot vouch for `step`, which takes arrays and is not `no_comm` itself  [sharding]
# 40:9: the scope is that of line 38
# 40:9: try: @sh.no_comm on `step`
# 41:12: `no_comm` cannot vouch for `Layer.__call__`, which takes arrays and is not `no_comm` itself  [sharding]
# 41:12: the scope is that of line 38
# 41:12: try: @sh.no_comm on `Layer.__call__`
