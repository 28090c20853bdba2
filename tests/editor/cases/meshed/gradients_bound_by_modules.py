from typing import Annotated as A

import shtypes as sh


def early(v: A[sh.Array, "f32[k]"], y: A[sh.Array, "f32[batch@dp, k]"]) -> None:
    reveal_type(both(v, y))


def loss(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return (x @ w).sum()


both = sh.grad(loss, argnums=(0, 1))
last = sh.grad(loss, -1)
valued = sh.value_and_grad(loss, (0, 1))


def late(v: A[sh.Array, "f32[k]"], y: A[sh.Array, "f32[batch@dp, k]"]) -> None:
    reveal_type(both(v, y))
    reveal_type(last(v, y))
    reveal_type(valued(v, y))
    both(y, v)


# mypy says:
# 7:17: type tuple[f32[k]{U:(dp,tp)}, f32[batch@dp, k]{U:tp}]
# 20:17: type tuple[f32[k]{U:(dp,tp)}, f32[batch@dp, k]{U:tp}]
# 21:17: type f32[batch@dp, k]{U:tp}
# 22:17: type tuple[f32[]{U:dp}, tuple[f32[k]{U:(dp,tp)}, f32[batch@dp, k]{U:tp}]]
# 23:10: argument `w` of `both` is f32[batch@dp, k], not f32[h]  [sharding]
# 23:10: it has 2 dims, and the signature 1 dim
# 23:13: argument `x` of `both` is f32[k], not f32[b@dp, h]  [sharding]
# 23:13: it has 1 dim, and the signature 2 dims
