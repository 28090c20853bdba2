from typing import Annotated as A, Any

import shtypes as sh


# bare arrays are unknown


def f_0(x: sh.Array, y: Any, w: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    reveal_type(x)
    reveal_type(sh.exp(x))
    reveal_type(x + w)
    reveal_type(sh.exp(y))
    reveal_type(w * y)
    return x


# computed targets are unknown


def f_1(u: A[sh.Array, "f32[seq, batch@dp]{U:tp}"], target: str, axis: str, dim: int) -> None:
    reveal_type(sh.reshard(u, target))
    reveal_type(sh.reshard(u, f"[seq@{axis}, ...]"))
    reveal_type(sh.all_reduce(u, axis))
    reveal_type(sh.reduce_scatter(u, "tp", dim))


# sums of a computed axis are unknown


def f_2(x: A[sh.Array, "f32[n@dp, m]"], axis: int) -> None:
    reveal_type(x.sum(axis))
    reveal_type(x.sum(axis=axis, keepdims=True))
    reveal_type(x.sum(where=x > 0))


# dtypes that are refused are unknown


def f_3(x: A[sh.Array, "f32[n, n]"], i: A[sh.Array, "i32[n]"], key: A[sh.Array, "key<fry>[]"]) -> None:
    reveal_type(sh.one_hot(x, 4))
    reveal_type(x >> 1)
    reveal_type(x & i)
    reveal_type(~x)
    reveal_type(~i)
    reveal_type(~(x > 0))
    reveal_type(sh.exp(key))
    reveal_type(sh.sort(sh.random.split(key, 3)))
    reveal_type(sh.sum(sh.random.split(key, 3)))
    reveal_type(sh.random.split(key, 3)[0])


def looked_up(
    x: A[sh.Array, "bool[n, 4]"], i: A[sh.Array, "i32[b@dp]"], j: A[sh.Array, "i32[n, 4]"]
) -> A[sh.Array, "bool[b@dp, 4]"]:
    reveal_type(~sh.take_along_axis(x, j, 1))
    return sh.take(x, i, axis=0)


# unknown values pass everywhere


def f_4(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n]"]:
    raise NotImplementedError


def g_4(unknown: sh.Array) -> A[sh.Array, "f32[m]{U:tp}"]:
    reveal_type(f_4(unknown))
    return unknown


# gradients need a mesh


def loss(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return (x @ w).sum()


def g_5(v: A[sh.Array, "f32[k]"], y: A[sh.Array, "f32[batch@dp, k]"]) -> None:
    reveal_type(sh.grad(loss)(v, y))
    reveal_type(sh.value_and_grad(loss)(v, y))


# gradients of what has none


def vector(w: A[sh.Array, "f32[h]"]) -> A[sh.Array, "f32[h]"]:
    return w


def whole(w: A[sh.Array, "f32[h]"]) -> A[sh.Array, "i32[]"]:
    raise NotImplementedError


def g_6() -> None:
    sh.grad(vector)
    sh.grad(whole)


def pair(w: A[sh.Array, "f32[m]"]) -> tuple[A[sh.Array, "f32[]"], A[sh.Array, "f32[m]"]]:
    return w.sum(), w


def of_a_pair(w: A[sh.Array, "f32[m]"]) -> None:
    sh.grad(pair)(w)
    sh.value_and_grad(pair, has_aux=True)(w)


# mypy says:
# 10:17: type ?
# 11:17: type ?
# 12:17: type ?
# 13:17: type ?
# 14:17: type Any
# 22:17: type ?
# 23:17: type ?
# 24:17: type ?
# 25:17: type ?
# 32:17: type ?
# 33:17: type ?
# 34:17: type f32[]{U:dp}
# 41:17: `one_hot` needs integers, not float32  [sharding]
# 41:17: type ?
# 42:17: type ?
# 43:17: type ?
# 44:17: type ?
# 45:17: type i32[n]
# 46:17: type bool[n, n]
# 47:17: `exp` cannot be applied to key<fry>  [sharding]
# 47:17: Cannot interpret 'key<fry>' as a data type
# 47:17: type ?
# 48:17: type key<fry>[3]
# 49:17: `sum` does not take these arguments  [sharding]
# 49:17: Cannot interpret 'key<fry>' as a data type
# 49:17: type ?
# 50:17: type key<fry>[]
# 56:17: type bool[n, 4]
# 68:17: type ?
# 80:17: type ?
# 81:17: type tuple[f32[]{U:dp}, ?]
# 96:13: a gradient needs a scalar loss, not f32[h]  [sharding]
# 96:13: a gradient is of one number
# 96:13: try: sh.sum(loss) or sh.mean(loss)
# 97:13: a gradient needs a loss of real numbers, not i32[]  [sharding]
# 97:13: try: loss.astype(float)
# 105:13: a gradient needs a scalar loss; `pair` returned tuple  [sharding]
