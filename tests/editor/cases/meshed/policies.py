"""Annotations in a scope are read under its policy."""

from typing import Annotated as A

import shtypes as sh

with sh.policy("jax"):

    def in_block(x: A[sh.Array, "f32[8@dp, 8]"], y: A[sh.Array, "f32[8, 8@dp]"]) -> None:
        def loss(w: A[sh.Array, "f32[8@dp, 8]"]) -> sh.Array:
            return sh.sum(sh.silu(w))

        reveal_type(x)
        reveal_type(x * 2)
        loss(x)
        sh.grad(loss)(x)
        sh.grad(loss)(y)
        loss(y)


@sh.policy("jax")
def decorated(x: A[sh.Array, "f32[8@dp, 8]"]) -> A[sh.Array, "f32[8@dp, 8]"]:
    return x * 2


def outside(x: A[sh.Array, "f32[8@dp, 8]"]) -> A[sh.Array, "f32[8@dp, 8]"]:
    return x * 2


# mypy says:
# 13:21: type f32[8@dp,8]{I:tp}
# 14:21: type f32[8@dp,8]{I:tp}
# 17:23: argument `w` of `sh.grad(loss)` is f32[8,8@dp], not f32[8@dp,8]{I:tp}  [sharding]
# 17:23: dim 0 is not sharded, and the signature has it sharded over `dp`
# 17:23: dim 1 is sharded over `dp`, and the signature has it not sharded
# 17:23: fix: sh.reshard(y, "[8@dp,8]")   [forward: all-to-all over `dp`, 64 B/device; backward: all-to-all over `dp`, 64 B/device]
# 18:14: argument `w` of `loss` is f32[8,8@dp], not f32[8@dp,8]{I:tp}  [sharding]
# 18:14: dim 0 is not sharded, and the signature has it sharded over `dp`
# 18:14: dim 1 is sharded over `dp`, and the signature has it not sharded
# 18:14: fix: sh.reshard(y, "[8@dp,8]")   [forward: all-to-all over `dp`, 64 B/device; backward: all-to-all over `dp`, 64 B/device]
