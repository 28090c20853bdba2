from typing import Annotated as A

import shtypes as sh


def f(
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
# 12:17: type f32[n@dp]
# 13:17: type f32[n@dp]
# 14:17: type tuple[f32[n@dp], f32[t, n@dp]]
# 16:24: the carry of `fori_loop` starts as f32[n@dp] and comes back as f32[n]{U:dp}  [sharding]
# 16:24: the carry has one type at each step, and no cast between these two is free in both directions
# 16:24: try: sh.reshard(init, "f32[n]{U:dp}") before the loop
# 17:41: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 17:41: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 17:41: in exp(f32[n]{U:dp})
# 17:41: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 18:17: type Any
# 18:46: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 18:46: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 18:46: in exp(f32[n]{U:dp})
# 18:46: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
