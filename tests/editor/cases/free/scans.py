from typing import Annotated as A

import shtypes as sh


def layer(h: A[sh.Array, "f32[b@dp, h]"], w: A[sh.Array, "f32[h, h]"]) -> tuple[A[sh.Array, "f32[b@dp, h]"], A[sh.Array, "f32[]{U:dp}"]]:
    h = sh.silu(h @ w)
    return h, h.sum()


def pending(h: A[sh.Array, "f32[b@dp, h]"], w: A[sh.Array, "f32[h, h]"]) -> tuple[A[sh.Array, "f32[b, h@dp]"], None]:
    raise NotImplementedError


def f(x: A[sh.Array, "f32[batch@dp, hidden]"], ws: A[sh.Array, "f32[layers, hidden, hidden]"], bad: A[sh.Array, "f32[layers, hidden]"]) -> None:
    out, norms = sh.scan(layer, x, ws)
    reveal_type(out)
    reveal_type(norms)
    sh.scan(layer, x, bad)
    sh.scan(pending, x, ws)
    sh.scan(layer, ws, x)
    reveal_type(sh.scan(lambda c, w: (c @ w, None), x, ws))


# mypy says:
# 17:17: type f32[batch@dp, hidden]
# 18:17: type f32[layers]{U:dp}
# 19:20: argument `w` of `layer` is f32[hidden], not f32[h, h]  [sharding]
# 19:20: it has 1 dim, and the signature 2 dims
# 20:13: the carry of `scan` starts as f32[batch@dp, hidden] and comes back as f32[batch, hidden@dp]  [sharding]
# 20:13: the carry has one type at each step, and no cast between these two is free in both directions
# 20:13: try: sh.reshard(init, "f32[batch, hidden@dp]") before the loop
# 21:13: `scan` cannot run over xs: the leading dim of f32[batch@dp, hidden] is sharded over `dp`  [sharding]
# 21:13: each step would live on some of the devices only
# 21:13: fix: sh.reshard(xs, "[batch, hidden]{U:dp}")   [free, but each device holds all of it]
# 22:17: type tuple[f32[batch@dp, hidden], None]
