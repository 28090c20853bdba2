from typing import Annotated as A

import shtypes as sh


def first(x: A[sh.Array, "f32[a@dp, b]"], w: A[sh.Array, "f32[b, b]"]) -> None:
    reveal_type(x @ w)
    reveal_type(sh.sum(x, 0))
    reveal_type(sh.all_reduce(sh.sum(x, 0), "dp"))
    reveal_type(sh.reshard(x, "[a, b@dp]"))


def other_names(x: A[sh.Array, "f32[b@dp, a]"], w: A[sh.Array, "f32[a, a]"]) -> None:
    reveal_type(x @ w)
    reveal_type(sh.sum(x, 0))
    reveal_type(sh.all_reduce(sh.sum(x, 0), "dp"))
    reveal_type(sh.reshard(x, "[b, a@dp]"))


def another_name_twice(x: A[sh.Array, "f32[c@dp, d]"], w: A[sh.Array, "f32[d, e]"]) -> None:
    reveal_type(x @ w)
    x @ sh.reshard(w, "[d, e@dp]")


def in_a_scope(x: A[sh.Array, "f32[g@dp, h]"], y: A[sh.Array, "f32[g, h]{U:dp}"]) -> None:
    with sh.no_comm():
        reveal_type(sh.sum(x, 0))
        sh.all_reduce(sh.sum(x, 0), "dp")
    reveal_type(y + y)
    y * y


def in_another_scope(x: A[sh.Array, "f32[i@dp, j]"], y: A[sh.Array, "f32[i, j]{U:dp}"]) -> None:
    with sh.implicit_comm():
        reveal_type(y + y)
        reveal_type(y * y)
    with sh.policy("jax"):
        reveal_type(y + y)


# mypy says:
# 7:17: type f32[a@dp, b]
# 8:17: type f32[b]{U:dp}
# 9:17: type f32[b]
# 10:17: type f32[a, b@dp]
# 14:17: type f32[b@dp, a]
# 15:17: type f32[a]{U:dp}
# 16:17: type f32[a]
# 17:17: type f32[b, a@dp]
# 21:17: type f32[c@dp, e]
# 22:5: `einsum` meets two different dims sharded on mesh axis `dp`: dim 0 (`c`) of lhs and dim 1 (`e`) of rhs  [sharding]
# 22:5: a device would combine its slice of dim 0 (`c`) of lhs with the same device's slice of dim 1 (`e`) of rhs only, but every pair of slices is needed: one of the two must be resharded
# 22:5: in einsum(f32[c@dp, d], f32[d, e@dp])
# 22:5: fix: sh.reshard(x, "[c, d]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
# 27:21: type f32[h]{U:dp}
# 28:9: `no_comm` forbids all-reduce over `dp` in the forward pass: `all_reduce` takes f32[h]{U:dp} to f32[h]  [sharding]
# 28:9: the scope is that of line 26
# 28:9: try: sh.all_reduce(..., "dp") before the scope
# 29:17: type f32[g, h]{U:dp}
# 30:5: `mul` cannot combine unreduced with unreduced on mesh axis `dp`  [sharding]
# 30:5: each device holds one term of lhs and one of rhs, and (a + b)(c + d) is not ac + bd: a term of one would meet only its own device's term of the other
# 30:5: in mul(f32[g, h]{U:dp}, f32[g, h]{U:dp})
# 30:5: fix: sh.reshard(y, "[g, h@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 35:21: type ?
# 36:21: type ?
# 38:21: type ?
