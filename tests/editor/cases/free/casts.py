from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"], u: A[sh.Array, "f32[n]{U:dp}"], i: A[sh.Array, "i32[n]"]) -> None:
    reveal_type(x.astype("bf16"))
    reveal_type(x.astype(sh.bfloat16))
    reveal_type(sh.astype(i, sh.float32))
    reveal_type(u.astype("bf16", narrow=True))
    u.astype("bf16")
    u.astype("i32")
    x.astype("f99")


# mypy says:
# 7:17: type bf16[n@dp]
# 8:17: type bf16[n@dp]
# 9:17: type f32[n]
# 10:17: type bf16[n]{U:dp}
# 11:5: `astype` would round each term of an operand that is unreduced on mesh axis `dp` to `bf16`  [sharding]
# 11:5: the sum is taken later, over terms that have lost bits of `f32`
# 11:5: in astype(f32[n]{U:dp})
# 11:5: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 12:5: `astype` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 12:5: each device holds one term of the sum, and astype(a + b) is not astype(a) + astype(b)
# 12:5: in astype(f32[n]{U:dp})
# 12:5: fix: sh.reshard(u, "[n@dp]")   [forward: reduce-scatter over `dp`; backward: none]
# 13:5: there is no dtype `f99`  [sharding]
