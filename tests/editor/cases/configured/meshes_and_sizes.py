from typing import Annotated as A

import shtypes as sh


# axes dealt in reshape


def f_0(x: A[sh.Array, "f32[8@dp, 4]"], y: A[sh.Array, "f32[4, 8@tp]"]) -> None:
    reveal_type(x.reshape(32))
    reveal_type(x.reshape(2, 16))
    reveal_type(x.reshape(2, 2, 8))
    y.reshape(32)


# axes that the mesh has not


def f_1(x: A[sh.Array, "f32[n@ddp]"], y: A[sh.Array, "f32[n@dp]"]) -> None:
    sh.reshard(y, "[_@sp]")
    sh.all_gather(y, "pp")


# configured sizes


def f_2(x: A[sh.Array, "f32[heads, 4]"], y: A[sh.Array, "f32[16, 4]"]) -> None:
    reveal_type(x)
    reveal_type(x.reshape(4, 16))
    reveal_type(x + y)


# divisibility


def f_3(x: A[sh.Array, "f32[6@dp, 8]"], y: A[sh.Array, "f32[6@tp]"]) -> None:
    reveal_type(x)
    reveal_type(sh.reshard(x, tp=1))
    sh.reshard(x, "[_, _@(dp,tp)]")
    sh.reshard(x, "[_@(dp,tp), _]")


# names of known sizes are like no others


def of_any(x: A[sh.Array, "f32[n, width]"]) -> None:
    reveal_type(sh.reshape(x, (-1,)))
    reveal_type(x[0])


def of_heads(x: A[sh.Array, "f32[n, heads]"], y: A[sh.Array, "f32[m, 16]"]) -> None:
    reveal_type(x[:, :8])
    reveal_type(y[:, :8])
    reveal_type(x[0])
    reveal_type(y[0])


# prices in bytes


def f_5(u: A[sh.Array, "f32[8, 4]{U:tp}"]) -> None:
    sh.exp(u)


# the policy of jax


def f_6(x: A[sh.Array, "f32[8@dp]"], r: A[sh.Array, "f32[8]{R:dp}"], i: A[sh.Array, "f32[8]{I:dp}"]) -> None:
    reveal_type(sh.all_gather(x, "dp"))
    reveal_type(r)
    reveal_type(i)


# branches that return what they close over, which has a gradient, and what they make, which has none


def f_branches(i: A[sh.Array, "i32[]"], x: A[sh.Array, "f32[8@dp, 4]"], y: A[sh.Array, "f32[8, 4]"]) -> None:
    reveal_type(sh.switch(i, [lambda: x, lambda: x * 2]))
    reveal_type(sh.switch(i, [lambda: x, lambda: y]))
    reveal_type(sh.switch(i, [lambda: x, lambda: sh.zeros("f32[8, 4]")]))


# mypy says:
# 10:17: type f32[32@dp]
# 11:17: type f32[2@dp,16]
# 12:17: type f32[2@dp,2,8]
# 13:5: `reshape` from (4, 8) to (32,) merges dim 1, sharded on mesh axis `tp`, behind dim 0  [sharding]
# 13:5: each device holds a slice of dim 1 for each of its 4 indices of dim 0: merged, these are not one contiguous slice
# 13:5: in reshape(f32[4,8@tp])
# 13:5: fix: sh.reshard(y, "[4,8]{U:tp}")   [free, but each device holds all of it]
# 19:12: the mesh has no axis `ddp`; it has `dp`, `tp`  [sharding]
# 20:5: the mesh has no axis `sp`; it has `dp`, `tp`  [sharding]
# 20:5: try: `tp`
# 21:5: the mesh has no axis `pp`; it has `dp`, `tp`  [sharding]
# 21:5: try: `tp`
# 28:17: type f32[heads, 4]
# 29:17: type f32[4,16]
# 30:17: type f32[heads, 4]
# 36:44: dim 0 of size 6 cannot be sharded in 4 equal parts; it is sharded over `tp` (size 4)  [sharding]
# 37:17: type f32[6@dp,8]
# 38:17: type f32[6@dp,8@tp]
# 40:5: dim 0 of size 6 cannot be sharded in 8 equal parts  [sharding]
# 40:5: it is sharded over `dp` (size 2) and `tp` (size 4), 8 devices together
# 40:5: try: use a size that 8 divides, such as 8
# 47:17: type f32[n*width]
# 48:17: type f32[width]
# 52:17: type f32[n, 8]
# 53:17: type f32[m, 8]
# 54:17: type f32[heads]
# 55:17: type f32[16]
# 62:12: `exp` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 62:12: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 62:12: in exp(f32[8,4]{U:tp})
# 62:12: fix: sh.reshard(u, "[8,4@tp]")   [forward: reduce-scatter over `tp`, all-gather over `dp`, 64 B/device; backward: all-gather over `tp`, 96 B/device]
# 69:17: type f32[8]
# 70:17: type f32[8]{R:dp}
# 71:17: type f32[8]
# 78:17: type f32[8@dp,4]
# 79:17: type ?
# 80:17: type ?
