from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[n@dp, 8]"],
    edges: A[sh.Array, "f32[5]"],
    ids: A[sh.Array, "i32[n@dp]"],
    sharded: A[sh.Array, "f32[4@dp]"],
) -> None:
    reveal_type(sh.searchsorted(edges, x))
    reveal_type(sh.digitize(x, edges))
    reveal_type(sh.interp(x, edges, edges))
    reveal_type(sh.bincount(ids, length=7))
    reveal_type(sh.histogram(x, bins=4, range=(0, 1))[0])
    reveal_type(sh.sort_key_val(x, x))
    reveal_type(sh.lexsort((x, x), axis=1))
    sh.searchsorted(sharded, edges)


# mypy says:
# 12:17: type i32[n@dp, 8]
# 13:17: type i32[n@dp, 8]
# 14:17: type f32[n@dp, 8]
# 15:17: type i32[7]{U:dp}
# 16:17: type f32[4]{U:dp}
# 17:17: type tuple[f32[n@dp, 8], f32[n@dp, 8]]
# 18:17: type i32[n@dp, 8]
# 19:5: `eq` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 19:5: each device holds one term of the sum, and eq(a + b) is not eq(a) + eq(b)
# 19:5: in searchsorted(f32[4@dp], f32[5]), by eq(f32[5]{U:dp})
