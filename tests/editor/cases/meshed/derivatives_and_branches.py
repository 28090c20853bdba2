from typing import Annotated as A

import shtypes as sh


def double(x: A[sh.Array, "f32[n]"]) -> A[sh.Array, "f32[n]"]:
    return x * 2


def loss(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return (x @ w).sum()


def f(v: A[sh.Array, "f32[k]"], y: A[sh.Array, "f32[b@dp, k]"], m: A[sh.Array, "f32[m, k]"]) -> None:
    reveal_type(sh.vmap(double)(m))
    reveal_type(sh.vmap(lambda row: row.sum(), in_axes=1)(m))
    reveal_type(sh.map(lambda row: row * 2, m))
    reveal_type(sh.vjp(loss, v, y)[0])
    total, pull = sh.vjp(loss, v, y)
    reveal_type(pull(1.0))
    pull(total)
    reveal_type(sh.vjp(lambda a: {"a": a}, v)[1])
    reveal_type(sh.jvp(double, (v,), (v,)))
    reveal_type(sh.linearize(lambda a: a * a, v))
    reveal_type(sh.jacfwd(double)(v))
    reveal_type(sh.hessian(loss)(v, y))
    reveal_type(sh.cond(True, double, double, v))
    reveal_type(sh.cond(True, lambda a: a * 2, double, v))
    reveal_type(sh.switch(0, [double, lambda a: a + 1], v))
    sh.cond(True, double, lambda a: a @ m.T, v)
    sh.vmap(double)(sh.reshard(m, "[_, _@dp]"))


# mypy says:
# 15:17: type f32[m, k]
# 16:17: type f32[k]
# 17:17: type f32[m, k]
# 18:17: type f32[]{U:dp}
# 20:17: type tuple[f32[k]{U:(dp,tp)}, f32[b@dp, k]{U:tp}]
# 21:10: argument `1` of `pull` is f32[]{U:dp}, not f32[]{U:tp}  [sharding]
# 21:10: mesh axis `dp` is unreduced, and the signature has it reduced, because it does not mention it
# 21:10: mesh axis `tp` is reduced, and the signature has it unreduced
# 21:10: fix: sh.reshard(total, "[]{U:tp}")   [forward: all-reduce over `dp`, 4 B/device; backward: all-reduce over `dp`, 4 B/device]
# 22:17: type def (*Any, **Any) -> Any
# 23:17: type tuple[f32[k], f32[k]]
# 24:17: type tuple[f32[k], def (f32[k] | float) -> f32[k]]
# 25:17: type f32[k, k]
# 26:17: type f32[k, k]{U:(dp,tp)}
# 27:17: type f32[k]
# 28:17: type f32[k]
# 29:17: type f32[k]
# 30:19: the results of the branches of `cond` need one type: f32[k] and f32[m] differ  [sharding]
# 30:19: nothing that is inserted changes a shape
# 31:21: argument `x` of `double` is f32[k@dp], not f32[n]  [sharding]
# 31:21: dim 0 (`n`) is sharded over `dp`, and the signature has it not sharded
# 31:21: fix: sh.reshard(x, "[k]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
