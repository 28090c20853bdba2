from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[8@dp, 16]"], n: A[sh.Array, "i32[8@dp, 16]"], k: A[sh.Array, "key<fry>[]"]) -> None:
    reveal_type(sh.slice(operand=x, start_indices=(0, 0), limit_indices=(8, 4)))
    reveal_type(sh.dynamic_slice(operand=x, start_indices=(0, 1), slice_sizes=(8, 4)))
    reveal_type(sh.random.normal(k, shape=(4, 8)))
    reveal_type(sh.convert_element_type(operand=x, new_dtype="bf16"))
    reveal_type(sh.mul(x, x))
    reveal_type(sh.mul(n, n, out_dtype="f32"))
    reveal_type(sh.divmod(n, 2))
    reveal_type(sh.empty_like(prototype=x))
    reveal_type(sh.stack([x, x], out="[_, _@dp, _]"))
    reveal_type(sh.rem(n, 3))
    reveal_type(sh.logistic(x))
    reveal_type(sh.linalg.outer(x[0], x[0]))


# mypy says:
# 7:17: type f32[8@dp,4]
# 8:17: type f32[8@dp,4]
# 9:17: type f32[4,8]
# 10:17: type bf16[8@dp,16]
# 11:17: type f32[8@dp,16]
# 12:17: type f32[8@dp,16]
# 13:17: type tuple[i32[8@dp,16], i32[8@dp,16]]
# 14:17: type f32[8@dp,16]
# 15:17: type f32[2,8@dp,16]
# 16:17: type i32[8@dp,16]
# 17:17: type f32[8@dp,16]
# 18:17: `mul` cannot combine unreduced with unreduced on mesh axis `dp`  [sharding]
# 18:17: each device holds one term of lhs and one of rhs, and (a + b)(c + d) is not ac + bd: a term of one would meet only its own device's term of the other
# 18:17: in linalg.outer(f32[16]{U:dp}, f32[16]{U:dp}), by mul(f32[16,1]{U:dp}, f32[1,16]{U:dp})
# 18:17: fix: sh.reshard(lhs, "[16]{I:dp}")   [forward: all-reduce over `dp`; backward: none]
# 18:17: type ?
