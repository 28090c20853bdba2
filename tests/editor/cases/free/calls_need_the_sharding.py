from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return x


def g(
    whole: A[sh.Array, "f32[k]"],
    other: A[sh.Array, "f32[k@tp]"],
    u: A[sh.Array, "f32[k@dp]{U:tp}"],
    b: A[sh.Array, "bf16[k@dp]"],
    ok: A[sh.Array, "f32[k@dp]"],
) -> None:
    f(whole)
    f(other)
    f(u)
    f(b)
    reveal_type(f(ok))


# mypy says:
# 17:7: argument `x` of `f` is f32[k], not f32[n@dp]  [sharding]
# 17:7: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 17:7: fix: sh.reshard(whole, "[k@dp]")   [forward: none; backward: none]
# 18:7: argument `x` of `f` is f32[k@tp], not f32[n@dp]  [sharding]
# 18:7: dim 0 (`n`) is sharded over `tp`, and the signature has it sharded over `dp`
# 18:7: fix: sh.reshard(other, "[k@dp]")   [forward: permute over `dp`, `tp`; backward: permute over `dp`, `tp`]
# 19:7: argument `x` of `f` is f32[k@dp]{U:tp}, not f32[n@dp]  [sharding]
# 19:7: mesh axis `tp` is unreduced, and the signature has it reduced, because it does not mention it
# 19:7: fix: sh.reshard(u, "[k@dp]")   [forward: all-reduce over `tp`; backward: all-reduce over `tp`]
# 20:7: argument `x` of `f` is bf16[k@dp], not f32[n@dp]  [sharding]
# 20:7: its dtype is `bf16`
# 21:17: type f32[k@dp]
