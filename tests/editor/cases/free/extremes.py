from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, m]"], u: A[sh.Array, "f32[n]{U:dp}"]) -> None:
    reveal_type(sh.max(x, axis=1))
    reveal_type(x.min(1, keepdims=True))
    reveal_type(x.argmax(axis=1))
    reveal_type(sh.any(x > 0, axis=1))
    reveal_type(x.std(axis=1))
    reveal_type(sh.prod(x, axis=-1))
    x.max(axis=0)
    sh.max(u)
    x.all()


# mypy says:
# 7:17: type f32[n@dp]
# 8:17: type f32[n@dp, 1]
# 9:17: type i32[n@dp]
# 10:17: type bool[n@dp]
# 11:17: type f32[n@dp]
# 12:17: type f32[n@dp]
# 13:5: `max` reduces dim 0 (`n`), which is sharded on mesh axis `dp`  [sharding]
# 13:5: each device holds only its slice of that dim, and the result needs all of it
# 13:5: in max(f32[n@dp, m])
# 13:5: fix: sh.max(..., out="[m]{I:dp}")   [forward: 2 times all-reduce over `dp`; backward: none]
# 14:12: `max` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 14:12: each device holds one term of the sum, and max(a + b) is not max(a) + max(b)
# 14:12: in max(f32[n]{U:dp})
# 14:12: fix: sh.reshard(u, "[n]{I:dp}")   [forward: all-reduce over `dp`; backward: none]
# 15:5: `all` reduces dim 0 (`n`), which is sharded on mesh axis `dp`  [sharding]
# 15:5: each device holds only its slice of that dim, and the result needs all of it
# 15:5: in all(f32[n@dp, m])
# 15:5: fix: sh.all(..., out="[]")   [forward: all-reduce over `dp`; backward: none]
