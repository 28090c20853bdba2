from typing import Annotated as A

import jax
import jax.numpy as jnp

import shtypes as sh


def f(
    x: A[sh.Array, "f32[n@dp, h, w, c@tp]"],
    y: A[sh.Array, "f32[n@dp, 16, 16, c]"],
    z: A[sh.Array, "f32[8, 6]{U:dp}"],
) -> None:
    reveal_type(sh.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID"))
    reveal_type(sh.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
    reveal_type(sh.reduce_window(y, -jnp.inf, sh.maximum, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
    reveal_type(sh.reduce_window(y, 0.0, jax.lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"))
    reveal_type(sh.reduce_window(z, 0.0, jax.lax.add, (1, 2), (1, 1), ((0, 0), (1, 1)), window_dilation=(1, 2)))
    sh.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 2), (1, 2, 2, 2), "VALID")
    sh.reduce_window(z, 1.0, jax.lax.add, (1, 2), (1, 1), "VALID")


# mypy says:
# 14:17: type f32[n@dp, h - 1, w - 1, c@tp]
# 15:17: type ?
# 16:17: type ?
# 17:17: type f32[n@dp, 8, 8, c]
# 18:17: type f32[8,6]{U:dp}
# 19:22: `reduce_window` acts along dim 3 (`c`), which is sharded on mesh axis `tp`  [sharding]
# 19:22: each device holds only its slice of that dim, and the result needs all of it
# 19:22: in reduce_window(f32[n@dp, h, w, c@tp])
# 19:22: fix: sh.reshard(x, "[n@(dp,tp), h, w, c]")   [forward: permute over `tp`; backward: permute over `tp`]
# 20:22: `reduce_window` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 20:22: each device holds one term of the sum, and reduce_window(a + b) is not reduce_window(a) + reduce_window(b)
# 20:22: in reduce_window(f32[8,6]{U:dp})
# 20:22: fix: sh.reshard(z, "[8@dp, 6]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
