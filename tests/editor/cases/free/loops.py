from typing import Annotated as A, Any

import shtypes as sh


# loops x


def f_0(x: A[sh.Array, "f32[n, n]"], u: A[sh.Array, "f32[n, n]{U:dp}"]) -> None:
    y = x
    for _ in range(3):
        y = y @ x
    reveal_type(y)
    z = x
    for _ in range(3):
        z = sh.exp(z)
        z = z + u
    reveal_type(z)


# scans


def layer(h: A[sh.Array, "f32[b@dp, h]"], w: A[sh.Array, "f32[h, h]"]) -> tuple[A[sh.Array, "f32[b@dp, h]"], A[sh.Array, "f32[]{U:dp}"]]:
    h = sh.silu(h @ w)
    return h, h.sum()


def pending(h: A[sh.Array, "f32[b@dp, h]"], w: A[sh.Array, "f32[h, h]"]) -> tuple[A[sh.Array, "f32[b, h@dp]"], None]:
    raise NotImplementedError


def f_1(x: A[sh.Array, "f32[batch@dp, hidden]"], ws: A[sh.Array, "f32[layers, hidden, hidden]"], bad: A[sh.Array, "f32[layers, hidden]"]) -> None:
    out, norms = sh.scan(layer, x, ws)
    reveal_type(out)
    reveal_type(norms)
    sh.scan(layer, x, bad)
    sh.scan(pending, x, ws)
    sh.scan(layer, ws, x)
    reveal_type(sh.scan(lambda c, w: (c @ w, None), x, ws))


# counted loops


def step(i: Any, c: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return c * 2


def halved(c: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return c / 2


def f_2(x: A[sh.Array, "f32[k@dp]"], y: A[sh.Array, "f32[k]"]) -> None:
    reveal_type(sh.fori_loop(0, 3, step, x))
    sh.fori_loop(0, 3, step, y)
    reveal_type(sh.while_loop(lambda c: c[0] > 1, halved, x))


# lambdas in loops


def f_3(
    x: A[sh.Array, "f32[n@dp]"],
    w: A[sh.Array, "f32[n]"],
    xs: A[sh.Array, "f32[t, n@dp]"],
    u: A[sh.Array, "f32[n]{U:dp}"],
) -> None:
    reveal_type(sh.fori_loop(0, 3, lambda i, c: c * 0.5 + x, x))
    reveal_type(sh.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 0.5), (0, x))[1])
    reveal_type(sh.scan(lambda c, v: (c + v, c * 2), x, xs))
    sh.fori_loop(0, 3, lambda i, c: u, w)  # w is cast first, which is free
    sh.fori_loop(0, 3, lambda i, c: u, x)
    sh.scan(lambda c, v: (c + v, sh.exp(u)), x, xs)
    reveal_type(sh.scan(lambda c, v: (sh.exp(u), c * 2), x, xs)[1])


# mypy says:
# 13:17: type f32[n, n]
# 16:20: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 16:20: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 16:20: in exp(f32[n, n]{U:dp})
# 16:20: fix: sh.reshard(z, "[n, n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 18:17: type f32[n, n] | f32[n, n]{U:dp} | ?
# 35:17: type f32[batch@dp, hidden]
# 36:17: type f32[layers]{U:dp}
# 37:20: argument `w` of `layer` is f32[hidden], not f32[h, h]  [sharding]
# 37:20: it has 1 dim, and the signature 2 dims
# 38:13: the carry of `scan` starts as f32[batch@dp, hidden] and comes back as f32[batch, hidden@dp]  [sharding]
# 38:13: the carry has one type at each step, and no cast between these two is free in both directions
# 38:13: try: sh.reshard(init, "f32[batch, hidden@dp]") before the loop
# 39:13: `scan` cannot run over xs: the leading dim of f32[batch@dp, hidden] is sharded over `dp`  [sharding]
# 39:13: each step would live on some of the devices only
# 39:13: fix: sh.reshard(x, "[batch, hidden]{U:dp}")   [free, but each device holds all of it]
# 40:17: type tuple[f32[batch@dp, hidden], None]
# 55:17: type f32[k@dp]
# 56:30: argument `c` of `step` is f32[k], not f32[n@dp]  [sharding]
# 56:30: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 56:30: fix: sh.reshard(y, "[k@dp]")   [forward: none; backward: none]
# 57:17: type ?
# 57:41: `greater` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 57:41: each device holds one term of the sum, and greater(a + b) is not greater(a) + greater(b)
# 57:41: in greater(f32[]{U:dp})
# 57:41: fix: sh.reshard(c[0], "[]")   [forward: all-reduce over `dp`; backward: none]
# 69:17: type f32[n@dp]
# 70:17: type f32[n@dp]
# 71:17: type tuple[f32[n@dp], f32[t, n@dp]]
# 73:24: the carry of `fori_loop` starts as f32[n@dp] and comes back as f32[n]{U:dp}  [sharding]
# 73:24: the carry has one type at each step, and no cast between these two is free in both directions
# 73:24: try: sh.reshard(init, "f32[n]{U:dp}") before the loop
# 74:41: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 74:41: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 74:41: in exp(f32[n]{U:dp})
# 74:41: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 75:17: type Any
# 75:46: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 75:46: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 75:46: in exp(f32[n]{U:dp})
# 75:46: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
