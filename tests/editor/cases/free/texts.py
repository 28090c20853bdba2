from typing import Annotated as A, Final

import shtypes as sh


# spaces do not matter


def f_0(
    x: A[sh.Array, "f32[n@(dp,tp),m]"], y: A[sh.Array, " f32[n@(dp, tp), m] "]
) -> A[sh.Array, "float32[n@(dp,tp), m]"]:
    reveal_type(x + y)
    return y


# constants from finals


AXIS: Final = "tp"
DIM: Final = 0
FIRST: Final = 4
TARGET: Final = "[seq@tp, ...]"


def f_1(u: A[sh.Array, "f32[seq, batch@dp]{U:tp}"]) -> None:
    reveal_type(sh.all_reduce(u, AXIS))
    reveal_type(sh.reduce_scatter(u, AXIS, DIM))
    reveal_type(sh.reshard(u, TARGET))
    reveal_type(u[:FIRST])


# reshard by axis


def f_2(u: A[sh.Array, "f32[seq, batch@dp]{U:tp}"]) -> None:
    reveal_type(sh.reshard(u, tp="R"))
    reveal_type(sh.reshard(u, tp=0))
    reveal_type(sh.reshard(u, tp="I", dp=0))
    sh.reshard(u, tp=5)
    sh.reshard(u)


# reshard by text


def f_3(u: A[sh.Array, "f32[seq, batch@dp, hidden]{U:tp}"]) -> None:
    reveal_type(sh.reshard(u, "[...]"))
    reveal_type(sh.reshard(u, "[_...]"))
    reveal_type(sh.reshard(u, "[seq@tp, ...]"))
    reveal_type(u.reshard("[_@tp, _@..., _]"))
    reveal_type(sh.reshard(u, "f32[seq, batch@dp, hidden]{I:tp}"))
    sh.reshard(u, "[seq, batch]")
    sh.reshard(u, "i32[...]")
    sh.reshard(u, "[seq@tp")


# texts that cannot be read


def f_4(x: A[sh.Array, "f99[n]"], y: A[sh.Array, "f32[n@dp, m@dp]"], z: A[sh.Array, "f32[n"]) -> None:
    reveal_type(x)


# two axes


def f_5(x: A[sh.Array, "f32[n@(dp,tp), m]"], y: A[sh.Array, "f32[n@dp, m]"], z: A[sh.Array, "f32[n@tp, m]"]) -> None:
    reveal_type(x + y)
    reveal_type(x.sum(0))
    x + z


# named collectives


def f_6(u: A[sh.Array, "f32[seq, batch@dp]{U:tp}"], x: A[sh.Array, "f32[n@dp, m]"]) -> None:
    reveal_type(sh.all_reduce(u))
    reveal_type(sh.all_reduce(u, "tp", to="I"))
    reveal_type(sh.reduce_scatter(u, "tp", 0))
    reveal_type(sh.all_gather(u, "dp"))
    reveal_type(sh.all_to_all(x, "dp", 1))
    reveal_type(sh.shard(x, "tp", 1))
    sh.all_reduce(u, "dp")
    sh.all_gather(x, "tp")
    sh.all_to_all(u, "tp", 0)


# mypy says:
# 12:17: type f32[n@(dp,tp), m]
# 26:17: type f32[seq, batch@dp]
# 27:17: type f32[seq@tp, batch@dp]
# 28:17: type f32[seq@tp, batch@dp]
# 29:17: type f32[4, batch@dp]{U:tp}
# 36:17: type f32[seq, batch@dp]
# 37:17: type f32[seq@tp, batch@dp]
# 38:17: type f32[seq@dp, batch]{I:tp}
# 39:5: f32[seq, batch@dp]{U:tp} has no dim 5  [sharding]
# 40:5: `reshard` needs a target type or axes by name  [sharding]
# 40:5: try: sh.reshard(x, "[_, ...]{U:tp}")
# 47:17: type f32[seq, batch@dp, hidden]
# 48:17: type f32[seq, batch, hidden]
# 49:17: type f32[seq@tp, batch@dp, hidden]
# 50:17: type f32[seq@tp, batch@dp, hidden]
# 51:17: type f32[seq, batch@dp, hidden]{I:tp}
# 52:5: the type has 2 dims, and the value has 3  [sharding]
# 52:5: the value has shape (`seq`, `batch`, `hidden`)
# 53:5: the type has dtype `i32`, and the value has dtype `f32`  [sharding]
# 53:5: giving a value a type never casts it
# 53:5: try: leave the dtype out of the type
# 54:5: cannot read the type: expected `,` or `]`, not the end  [sharding]
# 54:5: try: a type is written like `f32[8@x,4]{U:y}`
# 60:12: there is no dtype `f99`  [sharding]
# 60:38: mesh axis `dp` is written twice; a mesh axis shards one dim or is in one other state  [sharding]
# 60:73: cannot read the type: expected `,`, `]` or `@`, not the end  [sharding]
# 61:17: type ?
# 68:17: type f32[n@(dp,tp), m]
# 69:17: type f32[m]{U:(dp,tp)}
# 70:5: `add` meets dim 0 of the result sharded over `(dp, tp)` in lhs and over `(tp)` in rhs  [sharding]
# 70:5: the slices on one device are not the same part of the dim; only minor axes may be missing
# 70:5: in add(f32[n@(dp,tp), m], f32[n@tp, m])
# 70:5: fix: sh.reshard(x, "[n@dp, m]{U:tp}"); sh.reshard(z, "[n@dp, m]{U:tp}")   [free, but each device holds all of it]
# 77:17: type f32[seq, batch@dp]
# 78:17: type f32[seq, batch@dp]{I:tp}
# 79:17: type f32[seq@tp, batch@dp]
# 80:17: type f32[seq, batch]{U:tp}
# 81:17: type f32[n, m@dp]
# 82:17: type f32[n@dp, m@tp]
# 83:5: `all_reduce` needs mesh axis `dp` unreduced  [sharding]
# 83:5: it is sharded in f32[seq, batch@dp]{U:tp}
# 83:5: try: sh.reshard(x, type) goes from any type to any other
# 84:5: `all_gather` needs mesh axis `tp` sharded  [sharding]
# 84:5: it is reduced in f32[n@dp, m]
# 84:5: try: sh.reshard(x, type) goes from any type to any other
# 85:5: `all_to_all` needs mesh axis `tp` sharded  [sharding]
# 85:5: it is unreduced in f32[seq, batch@dp]{U:tp}
# 85:5: try: sh.reshard(x, type) goes from any type to any other
