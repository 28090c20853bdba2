from typing import Annotated as A

import shtypes as sh


def double(x: A[sh.Array, "f32[n]"]) -> A[sh.Array, "f32[n]"]:
    return x * 2


def f(x: A[sh.Array, "f32[k]"], y: A[sh.Array, "f32[m, k]"]) -> None:
    reveal_type(sh.checkpoint(double)(x))
    reveal_type(sh.jit(double)(x))
    reveal_type(sh.vmap(double)(y))
    reveal_type(sh.vmap(lambda row: x * 2)(y))
    reveal_type(sh.shard_map(double, out_specs="[_]")(x))
    reveal_type(sh.checkpoint(double)(y))


# mypy says:
# 11:17: type f32[k]
# 12:17: type f32[k]
# 13:17: type f32[m, k]
# 14:17: type f32[m, k]
# 15:17: type ?
# 16:17: type ?
# 16:39: argument `x` of `sh.checkpoint(double)` is f32[m, k], not f32[n]  [sharding]
# 16:39: it has 2 dims, and the signature 1 dim
