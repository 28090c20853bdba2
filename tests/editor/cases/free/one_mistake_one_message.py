from typing import Annotated as A

import shtypes as sh


def f(u: A[sh.Array, "f32[n]{U:tp}"]) -> None:
    y = sh.exp(u)
    sh.exp(y) + u


def divided(a: A[sh.Array, "f32[]{U:dp}"], n: A[sh.Array, "i32[]{U:dp}"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return a / n


def summed(v: A[sh.Array, "f32[]{V:dp}"]) -> A[sh.Array, "f32[]"]:
    return sh.lax.psum(v, ("dp", "tp"))


def ignored(v: A[sh.Array, "f32[]{V:dp}"]) -> A[sh.Array, "f32[]"]:
    return sh.lax.psum(v, ("dp", "tp"))  # type: ignore[sharding]


# mypy says:
# 7:16: `exp` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 7:16: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 7:16: in exp(f32[n]{U:tp})
# 7:16: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
# 12:16: `divide` is nonlinear in rhs, which is unreduced on mesh axis `dp`  [sharding]
# 12:16: each device holds one term of the sum, and a / (b + c) is not a / b + a / c
# 12:16: in div(f32[]{U:dp}, i32[]{U:dp})
# 12:16: fix: sh.reshard(n, "[]")   [forward: all-reduce over `dp`; backward: none]
# 16:24: `psum` over mesh axis `tp` needs a value that varies: one per device, and f32[]{V:dp} is reduced  [sharding]
# 16:24: every device has the same value: their sum has it once for each device
# 16:24: in psum(f32[]{V:dp})
# 16:24: fix: sh.lax.psum(v, "dp")   [forward: all-reduce over `dp`; backward: all-reduce over `dp`]
