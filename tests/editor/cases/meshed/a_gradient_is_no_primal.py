from typing import Annotated as A

import shtypes as sh


def loss(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return (x @ w).sum()


def step(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[h]"]:
    g = sh.grad(loss)(w, x)
    reveal_type(g)
    loss(g, x)
    reveal_type(sh.all_reduce(g))
    return w - 0.1 * sh.all_reduce(g)


# mypy says:
# 12:17: type f32[h]{U:(dp,tp)}
# 13:10: argument `w` of `loss` is f32[h]{U:(dp,tp)}, not f32[h]  [sharding]
# 13:10: mesh axis `dp` is unreduced, and the signature has it reduced, because it does not mention it
# 13:10: mesh axis `tp` is unreduced, and the signature has it reduced, because it does not mention it
# 13:10: fix: sh.reshard(g, "[h]")   [forward: all-reduce over `dp`, `tp`; backward: all-reduce over `dp`, `tp`]
# 14:17: type f32[h]
