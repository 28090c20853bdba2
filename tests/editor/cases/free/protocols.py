from typing import Annotated as A
from typing import Protocol

import shtypes as sh


class Norm(Protocol):
    def __call__(self, x: A[sh.Array, "f32[n, h]"]) -> A[sh.Array, "f32[n, h]"]: ...


def f(norm: Norm, x: A[sh.Array, "f32[a, b]"], y: A[sh.Array, "f32[a, b@dp]"]) -> None:
    reveal_type(norm(x))
    norm(y)


# mypy says:
# 12:17: type f32[a, b]
# 13:10: argument `x` of `norm` is f32[a, b@dp], not f32[n, h]  [sharding]
# 13:10: dim 1 (`h`) is sharded over `dp`, and the signature has it not sharded
# 13:10: fix: sh.reshard(y, "[a, b]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
