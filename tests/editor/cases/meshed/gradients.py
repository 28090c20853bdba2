from typing import Annotated as A

import shtypes as sh


def loss(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return (x @ w).sum()


def g(v: A[sh.Array, "f32[k]"], y: A[sh.Array, "f32[batch@dp, k]"]) -> None:
    reveal_type(sh.grad(loss)(v, y))
    reveal_type(sh.grad(loss, argnums=1)(v, y))
    reveal_type(sh.grad(loss, argnums=(0, 1))(v, y))
    reveal_type(sh.value_and_grad(loss)(v, y))
    sh.grad(loss)(y, v)


# mypy says:
# 11:17: type f32[k]{U:(dp,tp)}
# 12:17: type f32[batch@dp, k]{U:tp}
# 13:17: type tuple[f32[k]{U:(dp,tp)}, f32[batch@dp, k]{U:tp}]
# 14:17: type tuple[f32[]{U:dp}, f32[k]{U:(dp,tp)}]
# 15:19: argument `w` of `sh.grad(loss)` is f32[batch@dp, k], not f32[h]  [sharding]
# 15:19: it has 2 dims, and the signature 1 dim
# 15:22: argument `x` of `sh.grad(loss)` is f32[k], not f32[b@dp, h]  [sharding]
# 15:22: it has 1 dim, and the signature 2 dims
