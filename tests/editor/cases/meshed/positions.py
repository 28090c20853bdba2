"""Positions that are items of others, and the two results of `top_k`."""

from typing import Annotated as A

import shtypes as sh

X = A[sh.Array, "f32[8@dp, 16]"]
I = A[sh.Array, "i32[8@dp, 16]"]


def taken(x: X, i: I) -> None:
    sh.take(x, i[0], axis=1)
    x[i[0, 0]]
    x[:, i[-1]]
    x.at[:, i[0]].set(1.0)


def largest(x: X) -> None:
    values, places = sh.top_k(x, 3)
    reveal_type(values)
    reveal_type(places)


# mypy says:
# 12:5: `lt` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 12:5: each device holds one term of the sum, and lt(a + b) is not lt(a) + lt(b)
# 12:5: in take(f32[8@dp,16], i32[16]{U:dp}), by lt(i32[16]{U:dp})
# 12:5: fix: sh.reshard(i[0], "[16]")   [forward: all-reduce over `dp`, 64 B/device; backward: none]
# 13:5: `lt` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 13:5: each device holds one term of the sum, and lt(a + b) is not lt(a) + lt(b)
# 13:5: in index(f32[8@dp,16], i32[]{U:dp}), by lt(i32[]{U:dp})
# 13:5: fix: sh.reshard(i[0, 0], "[]")   [forward: all-reduce over `dp`, 4 B/device; backward: none]
# 14:5: `lt` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 14:5: each device holds one term of the sum, and lt(a + b) is not lt(a) + lt(b)
# 14:5: in index(f32[8@dp,16], i32[16]{U:dp}), by lt(i32[16]{U:dp})
# 14:5: fix: sh.reshard(i[-1], "[16]")   [forward: all-reduce over `dp`, 64 B/device; backward: none]
# 15:5: `lt` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 15:5: each device holds one term of the sum, and lt(a + b) is not lt(a) + lt(b)
# 15:5: in at_set(f32[8@dp,16], i32[16]{U:dp}), by lt(i32[16]{U:dp})
# 15:5: fix: sh.reshard(i[0], "[16]")   [forward: all-reduce over `dp`, 64 B/device; backward: none]
# 20:17: type f32[8@dp,3]
# 21:17: type i32[8@dp,3]
