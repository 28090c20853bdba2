from typing import Annotated as A, Any

import shtypes as sh


# branches


def f_0(flag: bool, x: A[sh.Array, "f32[n@dp, m]"]) -> None:
    if flag:
        y = x.sum(0)
    else:
        y = x.sum(1)
    reveal_type(y)


# rebinding


def f_1(x: A[sh.Array, "f32[n, k@tp]"], w: A[sh.Array, "f32[k@tp, m]"]) -> A[sh.Array, "f32[n, m]"]:
    y = x @ w
    y = sh.all_reduce(y)
    reveal_type(y)
    return y


# unions


def f_2(flag: bool, x: A[sh.Array, "f32[n@dp]"], u: A[sh.Array, "f32[n]{U:dp}"]) -> None:
    y = x if flag else u
    reveal_type(y)
    reveal_type(y * 2)
    sh.exp(y)


# lists taken apart


def f_3(x: A[sh.Array, "f32[n@dp, 8]"], u: A[sh.Array, "f32[4, 8]{U:dp}"]) -> None:
    values, places = sh.top_k(x, 2)
    reveal_type(values)
    reveal_type(places)
    reveal_type(sh.split(u, [1])[1])
    reveal_type(sh.array_split(u, 3)[-1])
    reveal_type(sh.broadcast_arrays(u, u[0, :1])[1])
    reveal_type(sh.unstack(u[:2]))
    first, second = sh.unstack(x, axis=1)[:2]
    reveal_type(first)
    several = sh.split(u, [1])
    reveal_type(several)
    reveal_type(several[0])
    few, *rest = sh.split(u, [1])
    reveal_type(few)


# indexing


def f_4(x: A[sh.Array, "f32[seq, batch@dp, hidden]"]) -> None:
    reveal_type(x[0])
    reveal_type(x[-1])
    reveal_type(x[1:])
    reveal_type(x[:, :, :-2])
    reveal_type(x[..., 0])
    reveal_type(x[None])
    reveal_type(x[:, 0])
    reveal_type(x[:])
    x[:, 1:]
    x[0, 0, 0, 0]


# varying values


def f_5(v: A[sh.Array, "f32[n]{V:dp}"], x: A[sh.Array, "f32[n@dp]"], r: A[sh.Array, "f32[n]"]) -> None:
    reveal_type(v * r)
    reveal_type(sh.exp(v))
    v + x
    sh.reshard(v, "[...]")


# samples of any key


def f_6(x: A[sh.Array, "f32[n@dp, k]"], key: sh.Array, seed: Any) -> None:
    noise = sh.random.normal(key, x.type)
    reveal_type(noise)
    reveal_type(sh.random.uniform(seed, "f32[n@dp, k]"))
    sh.exp(sh.random.normal(key, "f32[n]{U:dp}"))


def of_a_shape(own: A[sh.Array, "key<fry>[]{V:dp}"], same: A[sh.Array, "key<fry>[]"], any_key: sh.Array) -> None:
    reveal_type(sh.random.normal(own, (16,)))
    reveal_type(sh.random.normal(same, (16,)))
    reveal_type(sh.random.normal(any_key, (16,)))
    sh.random.normal(own, "f32[16]")

# comparisons with numbers, which mypy asks too


def f_7(x: A[sh.Array, "f32[n@dp]"], u: A[sh.Array, "i32[n]{U:dp}"]) -> None:
    reveal_type(x == 1)
    reveal_type(1 != x)
    reveal_type(0.5 == x)
    reveal_type(True == x)
    reveal_type(u == 1)
    reveal_type(sh.where(u == 1, x, 0.0))
    reveal_type(1 != u)
    reveal_type(1 == 2)


# a list is a list, whose items have types where it is taken apart


def f_list(x: A[sh.Array, "f32[n@dp, d]"], w: A[sh.Array, "f32[d, k]"]) -> None:
    several = sh.tree.map(lambda t: t * 2, [x, w])
    several.append(x)
    reveal_type(several)
    a, b = sh.tree.map(lambda t: t * 2, [x, w])
    reveal_type(b)


# mypy says:
# 14:17: type f32[m]{U:dp} | f32[n@dp]
# 23:17: type f32[n, m]
# 32:17: type f32[n@dp] | f32[n]{U:dp}
# 33:17: type f32[n@dp] | f32[n]{U:dp}
# 34:12: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 34:12: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 34:12: in exp(f32[n]{U:dp})
# 34:12: fix: sh.reshard(y, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 42:17: type f32[n@dp, 2]
# 43:17: type i32[n@dp, 2]
# 44:17: type f32[3,8]{U:dp}
# 45:17: type f32[1,8]{U:dp}
# 46:17: type f32[4,8]{U:dp}
# 47:17: type tuple[f32[8]{U:dp}, f32[8]{U:dp}]
# 49:17: type f32[n@dp]
# 51:17: type list[?]
# 52:17: type ?
# 54:17: type ?
# 61:17: type f32[batch@dp, hidden]
# 62:17: type f32[batch@dp, hidden]
# 63:17: type f32[seq - 1, batch@dp, hidden]
# 64:17: type f32[seq, batch@dp, hidden - 2]
# 65:17: type f32[seq, batch@dp]
# 66:17: type f32[1, seq, batch@dp, hidden]
# 67:17: type f32[seq, hidden]{U:dp}
# 68:17: type f32[seq, batch@dp, hidden]
# 69:5: `index` acts along dim 1 (`batch`), which is sharded on mesh axis `dp`  [sharding]
# 69:5: each device holds only its slice of that dim, and the result needs all of it
# 69:5: in index(f32[seq, batch@dp, hidden]), by slice(f32[seq, batch@dp, hidden])
# 69:5: fix: sh.reshard(x, "[seq, batch, hidden]{U:dp}")   [free, but each device holds all of it]
# 77:17: type f32[n]{V:dp}
# 78:17: type f32[n]{V:dp}
# 79:5: `add` cannot combine varying with sharded on mesh axis `dp`  [sharding]
# 79:5: lhs is a family of values, one per device, and each device holds only a slice of rhs, which has one value
# 79:5: in add(f32[n]{V:dp}, f32[n@dp])
# 79:5: fix: sh.reshard(x, "[n]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
# 80:5: cannot reshard f32[n]{V:dp} to f32[n]: only one of them varies over mesh axis `dp`  [sharding]
# 80:5: a varying value is a family of values without a global meaning, so no move keeps what it denotes
# 80:5: try: sh.lax.psum(x, "dp", to="reduced") adds the values
# 88:17: type f32[n@dp, k]
# 89:17: type f32[n@dp, k]
# 90:12: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 90:12: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 90:12: in exp(f32[n]{U:dp})
# 90:12: fix: sh.reshard(..., "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 94:17: type f32[16]{V:dp}
# 95:17: type f32[16]
# 96:17: type ?
# 97:22: `normal` with a key that varies on mesh axis `dp` cannot be reduced there  [sharding]
# 97:22: each device has a key of its own and draws other numbers
# 97:22: in normal(key<fry>[]{V:dp})
# 97:22: try: write {V:dp} in the type
# 103:17: type bool[n@dp]
# 104:17: type bool[n@dp]
# 105:17: type bool[n@dp]
# 106:17: type bool[n@dp]
# 107:17: `equal` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 107:17: each device holds one term of the sum, and equal(a + b) is not equal(a) + equal(b)
# 107:17: in equal(i32[n]{U:dp})
# 107:17: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: none]
# 107:17: type ?
# 108:17: type ?
# 108:26: `equal` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 108:26: each device holds one term of the sum, and equal(a + b) is not equal(a) + equal(b)
# 108:26: in equal(i32[n]{U:dp})
# 108:26: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: none]
# 109:17: type ?
# 109:22: `not_equal` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 109:22: each device holds one term of the sum, and not_equal(a + b) is not not_equal(a) + not_equal(b)
# 109:22: in not_equal(i32[n]{U:dp})
# 109:22: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: none]
# 110:17: Non-overlapping equality check (left operand type: "Literal[1]", right operand type: "Literal[2]")  [comparison-overlap]
# 110:17: type bool
# 119:17: type list[Any]
# 121:17: type f32[d, k]
