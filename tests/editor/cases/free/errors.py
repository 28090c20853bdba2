from typing import Annotated as A

import shtypes as sh


# errors are at the operand


def f_0(x: A[sh.Array, "f32[n]"], u: A[sh.Array, "f32[n]{U:tp}"]) -> None:
    sh.maximum(x, (u))
    x + sh.exp(x * u)
    x / u


# errors can be ignored


def f_1(u: A[sh.Array, "f32[n]{U:tp}"]) -> None:
    sh.exp(u)  # type: ignore[sharding]
    sh.exp(u)  # type: ignore[attr-defined]


# one mistake one message


def f_2(u: A[sh.Array, "f32[n]{U:tp}"]) -> None:
    y = sh.exp(u)
    sh.exp(y) + u


def divided(a: A[sh.Array, "f32[]{U:dp}"], n: A[sh.Array, "i32[]{U:dp}"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return a / n


def summed(v: A[sh.Array, "f32[]{V:dp}"]) -> A[sh.Array, "f32[]"]:
    return sh.lax.psum(v, ("dp", "tp"))


def ignored(v: A[sh.Array, "f32[]{V:dp}"]) -> A[sh.Array, "f32[]"]:
    return sh.lax.psum(v, ("dp", "tp"))  # type: ignore[sharding]


# einsum refuses


def f_3(x: A[sh.Array, "f32[a@dp, b]"], y: A[sh.Array, "f32[b, c@dp]"], z: A[sh.Array, "f32[b, a]"]) -> None:
    sh.einsum("ab,bc->ac", x, y)
    sh.einsum("ab,ab->ab", x, z)
    sh.einsum("ab,b", x)
    sh.einsum("abc->a", x)


# matrix products refused


def f_4(x: A[sh.Array, "f32[n@dp, k]"], w: A[sh.Array, "f32[m, k]"], u: A[sh.Array, "f32[k, m]{U:dp}"]) -> None:
    x @ w
    x @ u
    x @ x.T


# returned values are compared by mypy


def f_5(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n]"]:
    return x


def g_5(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    y: A[sh.Array, "f32[n@dp]"] = x * 2
    return y


# mypy says:
# 10:20: `maximum` is nonlinear in rhs, which is unreduced on mesh axis `tp`  [sharding]
# 10:20: each device holds one term of the sum, and maximum(a + b) is not maximum(a) + maximum(b)
# 10:20: in maximum(f32[n], f32[n]{U:tp})
# 10:20: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
# 11:16: `exp` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 11:16: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 11:16: in exp(f32[n]{U:tp})
# 11:16: fix: sh.reshard(..., "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
# 12:9: `divide` is nonlinear in rhs, which is unreduced on mesh axis `tp`  [sharding]
# 12:9: each device holds one term of the sum, and a / (b + c) is not a / b + a / c
# 12:9: in div(f32[n], f32[n]{U:tp})
# 12:9: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
# 20: Unused "type: ignore" comment  [unused-ignore]
# 20:12: `exp` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 20:12: Error code "sharding" not covered by "type: ignore[attr-defined]" comment
# 20:12: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 20:12: in exp(f32[n]{U:tp})
# 20:12: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
# 27:16: `exp` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 27:16: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 27:16: in exp(f32[n]{U:tp})
# 27:16: fix: sh.reshard(u, "[n@tp]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
# 32:16: `divide` is nonlinear in rhs, which is unreduced on mesh axis `dp`  [sharding]
# 32:16: each device holds one term of the sum, and a / (b + c) is not a / b + a / c
# 32:16: in div(f32[]{U:dp}, i32[]{U:dp})
# 32:16: fix: sh.reshard(n, "[]")   [forward: all-reduce over `dp`; backward: none]
# 36:24: `psum` over mesh axis `tp` needs a value that varies: one per device, and f32[]{V:dp} is reduced  [sharding]
# 36:24: every device has the same value: their sum has it once for each device
# 36:24: in psum(f32[]{V:dp})
# 36:24: fix: sh.lax.psum(v, "dp")   [forward: all-reduce over `dp`; backward: all-reduce over `dp`]
# 47:5: `einsum` meets two different dims sharded on mesh axis `dp`: dim 0 (`a`) of lhs and dim 1 (`c`) of rhs  [sharding]
# 47:5: a device would combine its slice of dim 0 (`a`) of lhs with the same device's slice of dim 1 (`c`) of rhs only, but every pair of slices is needed: one of the two must be resharded
# 47:5: in einsum(f32[a@dp, b], f32[b, c@dp])
# 47:5: fix: sh.reshard(y, "[b, c]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
# 48:5: `einsum` label `a` has size `a` in dim 0 (`a`) of lhs and size `b` in dim 0 (`b`) of rhs  [sharding]
# 48:5: in einsum(f32[a@dp, b], f32[b, a])
# 49:5: the equation `ab,b` cannot be read: it names 2 operands, and there are 1  [sharding]
# 50:5: the equation `abc->a` cannot be read: `abc` names 3 dims of the operand, which has 2  [sharding]
# 57:5: `einsum` label `k` has size `k` in dim 1 (`k`) of lhs and size `m` in dim 0 (`m`) of rhs  [sharding]
# 57:5: in einsum(f32[n@dp, k], f32[m, k])
# 58:5: `einsum` cannot combine sharded with unreduced on mesh axis `dp`  [sharding]
# 58:5: each device holds one term of rhs but only a slice of lhs: a term would meet only its own device's slice
# 58:5: in einsum(f32[n@dp, k], f32[k, m]{U:dp})
# 58:5: fix: sh.reshard(x, "[n, k]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
# 59:5: `einsum` meets two different dims sharded on mesh axis `dp`: dim 0 (`n`) of lhs and dim 1 (`n`) of rhs  [sharding]
# 59:5: a device would combine its slice of dim 0 (`n`) of lhs with the same device's slice of dim 1 (`n`) of rhs only, but every pair of slices is needed: one of the two must be resharded
# 59:5: in einsum(f32[n@dp, k], f32[k, n@dp])
# 59:5: fix: sh.reshard(x, "[n, k]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
# 66:12: Incompatible return value type (got "Array[Literal['f32[n@dp]']]", expected "Array[Literal['f32[n]']]")  [return-value]
