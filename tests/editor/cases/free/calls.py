from typing import Annotated as A

import shtypes as sh


# calls need the sharding


def f_0(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return x


def g_0(
    whole: A[sh.Array, "f32[k]"],
    other: A[sh.Array, "f32[k@tp]"],
    u: A[sh.Array, "f32[k@dp]{U:tp}"],
    b: A[sh.Array, "bf16[k@dp]"],
    ok: A[sh.Array, "f32[k@dp]"],
) -> None:
    f_0(whole)
    f_0(other)
    f_0(u)
    f_0(b)
    reveal_type(f_0(ok))


# calls rename dims


def norm(x: A[sh.Array, "f32[n, b@dp, h]"], scale: A[sh.Array, "f32[h]"]) -> A[sh.Array, "f32[n, b@dp, h]"]:
    return x * scale


def f_1(
    x: A[sh.Array, "f32[seq, batch@dp, hidden]"], g: A[sh.Array, "f32[hidden]"], bad: A[sh.Array, "f32[seq]"]
) -> None:
    reveal_type(norm(x, g))
    reveal_type(norm(norm(x, g), scale=g))
    norm(x, bad)
    norm(g, g)


# calls with any dims


def scaled(x: A[sh.Array, "f32[*b, h]"], w: A[sh.Array, "f32[h]"]) -> A[sh.Array, "f32[*b, h]"]:
    return x


def anything(x: A[sh.Array, "f32[...]"]) -> A[sh.Array, "f32[]"]:
    raise NotImplementedError


def f_2(x: A[sh.Array, "f32[s, b@dp, k]"], w: A[sh.Array, "f32[k]"], i: A[sh.Array, "i32[k]"]) -> None:
    reveal_type(scaled(x, w))
    reveal_type(scaled(w, w))
    reveal_type(anything(x))
    scaled(x, x)
    anything(i)


# calls with any state


def total(x: A[sh.Array, "f32[n]{...}"]) -> A[sh.Array, "f32[]{...}"]:
    return x.sum()


def g_3(u: A[sh.Array, "f32[k]{U:tp}"], s: A[sh.Array, "f32[k@tp]"]) -> None:
    reveal_type(total(u))
    total(s)


# calls with arithmetic


def halves(x: A[sh.Array, "f32[n, 2*h]"]) -> A[sh.Array, "f32[n, h]"]:
    raise NotImplementedError


def doubled(x: A[sh.Array, "f32[n, h]"]) -> A[sh.Array, "f32[n, 2*h]"]:
    return sh.concatenate([x, x], axis=1)


def f_4(x: A[sh.Array, "f32[a, b]"]) -> None:
    reveal_type(doubled(x))
    reveal_type(doubled(doubled(x)))


# calls with classes of dtypes


def f_5(x: A[sh.Array, "float[n]"], ids: A[sh.Array, "integer[n]"]) -> A[sh.Array, "f32[n]"]:
    raise NotImplementedError


def g_5(x: A[sh.Array, "bf16[k]"], i: A[sh.Array, "i8[k]"]) -> None:
    reveal_type(f_5(x, i))
    f_5(i, i)


# calls with sizes


def f_6(x: A[sh.Array, "f32[n, n]"]) -> A[sh.Array, "f32[n]"]:
    return x[0]


def g_6() -> None:
    reveal_type(f_6(sh.zeros("f32[4, 4]")))
    f_6(sh.zeros("f32[4, 8]"))


# default and optional arguments


def f_7(
    x: A[sh.Array, "f32[n]"], bias: A[sh.Array, "f32[n]"] | None = None, *, scale: float = 1.0
) -> A[sh.Array, "f32[n]"]:
    return x * scale if bias is None else x + bias


def g_7(x: A[sh.Array, "f32[k]"], m: A[sh.Array, "f32[m]"]) -> None:
    reveal_type(f_7(x))
    reveal_type(f_7(x, x))
    reveal_type(f_7(x, None, scale=2.0))
    f_7(x, bias=m)


# star arguments


def total_8(*xs: A[sh.Array, "f32[n@dp]"], **named: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    raise NotImplementedError


def g_8(x: A[sh.Array, "f32[k@dp]"], y: A[sh.Array, "f32[k]"]) -> None:
    reveal_type(total_8(x, x, z=x))
    total_8(x, y)
    total_8(z=y)


# several results


def f_9(x: A[sh.Array, "f32[n@dp]"]) -> tuple[A[sh.Array, "f32[n@dp]"], A[sh.Array, "f32[]{U:dp}"]]:
    return x, x.sum()


def g_9(x: A[sh.Array, "f32[k@dp]"]) -> None:
    y, total = f_9(x)
    reveal_type(y)
    reveal_type(total)
    sh.sqrt(total)


# tuples and lists


def f_10(
    pair: tuple[A[sh.Array, "f32[n]"], A[sh.Array, "f32[m@dp]"]], many: list[A[sh.Array, "f32[n]"]]
) -> tuple[A[sh.Array, "f32[m@dp]"], A[sh.Array, "f32[n]"]]:
    return pair[1], pair[0]


def g_10(x: A[sh.Array, "f32[a]"], y: A[sh.Array, "f32[b@dp]"]) -> None:
    reveal_type(f_10((x, y), [x, x]))
    f_10((y, x), [x])


# mypy says:
# 20:9: argument `x` of `f_0` is f32[k], not f32[n@dp]  [sharding]
# 20:9: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 20:9: fix: sh.reshard(whole, "[k@dp]")   [forward: none; backward: none]
# 21:9: argument `x` of `f_0` is f32[k@tp], not f32[n@dp]  [sharding]
# 21:9: dim 0 (`n`) is sharded over `tp`, and the signature has it sharded over `dp`
# 21:9: fix: sh.reshard(other, "[k@dp]")   [forward: permute over `dp`, `tp`; backward: permute over `dp`, `tp`]
# 22:9: argument `x` of `f_0` is f32[k@dp]{U:tp}, not f32[n@dp]  [sharding]
# 22:9: mesh axis `tp` is unreduced, and the signature has it reduced, because it does not mention it
# 22:9: fix: sh.reshard(u, "[k@dp]")   [forward: all-reduce over `tp`; backward: all-reduce over `tp`]
# 23:9: argument `x` of `f_0` is bf16[k@dp], not f32[n@dp]  [sharding]
# 23:9: its dtype is `bf16`
# 24:17: type f32[k@dp]
# 37:17: type f32[seq, batch@dp, hidden]
# 38:17: type f32[seq, batch@dp, hidden]
# 39:13: argument `scale` of `norm` is f32[seq], not f32[h]  [sharding]
# 39:13: dim 0 has size `seq`, and `h` is `hidden` by `x`
# 40:10: argument `x` of `norm` is f32[hidden], not f32[n, b@dp, h]  [sharding]
# 40:10: it has 1 dim, and the signature 3 dims
# 55:17: type f32[s, b@dp, k]
# 56:17: type f32[k]
# 57:17: type f32[]
# 58:15: argument `w` of `scaled` is f32[s, b@dp, k], not f32[h]  [sharding]
# 58:15: it has 3 dims, and the signature 1 dim
# 59:14: argument `x` of `anything` is i32[k], not f32[...]  [sharding]
# 59:14: its dtype is `i32`
# 70:17: type ?
# 71:11: argument `x` of `total` is f32[k@tp], not f32[n]{...}  [sharding]
# 71:11: dim 0 (`n`) is sharded over `tp`, and the signature has it not sharded
# 86:17: type f32[a, 2*b]
# 87:17: type f32[a, 4*b]
# 98:17: type f32[k]
# 99:9: argument `x` of `f_5` is i8[k], not float[n]  [sharding]
# 99:9: its dtype is `i8`
# 110:17: type f32[n=4]
# 111:9: argument `x` of `f_6` is f32[4,8], not f32[n, n]  [sharding]
# 111:9: dim 1 has size 8, and `n` is 4 by `x`
# 124:17: type f32[k]
# 125:17: type f32[k]
# 126:17: type f32[k]
# 127:17: argument `bias` of `f_7` is f32[m], not f32[n]  [sharding]
# 127:17: dim 0 has size `m`, and `n` is `k` by `x`
# 138:17: type f32[k@dp]
# 139:16: argument `xs` of `total_8` is f32[k], not f32[n@dp]  [sharding]
# 139:16: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 139:16: fix: sh.reshard(y, "[k@dp]")   [forward: none; backward: none]
# 140:15: argument `named` of `total_8` is f32[k], not f32[n@dp]  [sharding]
# 140:15: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 140:15: fix: sh.reshard(y, "[k@dp]")   [forward: none; backward: none]
# 152:17: type f32[k@dp]
# 153:17: type f32[]{U:dp}
# 154:13: `sqrt` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 154:13: each device holds one term of the sum, and sqrt(a + b) is not sqrt(a) + sqrt(b)
# 154:13: in sqrt(f32[]{U:dp})
# 154:13: fix: sh.reshard(total, "[]{I:dp}")   [forward: all-reduce over `dp`; backward: none; later: all-reduce over `dp`]
# 167:17: type tuple[f32[b@dp], f32[a]]
# 168:11: argument `pair[0]` of `f_10` is f32[b@dp], not f32[n]  [sharding]
# 168:11: dim 0 (`n`) is sharded over `dp`, and the signature has it not sharded
# 168:11: fix: sh.reshard(y, "[b]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
# 168:14: argument `pair[1]` of `f_10` is f32[a], not f32[m@dp]  [sharding]
# 168:14: dim 0 (`m`) is not sharded, and the signature has it sharded over `dp`
# 168:14: fix: sh.reshard(x, "[a@dp]")   [forward: none; backward: none]
# 168:19: argument `many[0]` of `f_10` is f32[a], not f32[n]  [sharding]
# 168:19: dim 0 has size `a`, and `n` is `b` by `pair[0]`
