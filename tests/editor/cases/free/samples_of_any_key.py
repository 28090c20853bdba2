from typing import Annotated as A, Any

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, k]"], key: sh.Array, seed: Any) -> None:
    noise = sh.random.normal(key, x.type)
    reveal_type(noise)
    reveal_type(sh.random.uniform(seed, "f32[n@dp, k]"))
    sh.exp(sh.random.normal(key, "f32[n]{U:dp}"))


def of_a_shape(own: A[sh.Array, "key<fry>[]{V:dp}"], same: A[sh.Array, "key<fry>[]"], any_key: sh.Array) -> None:
    reveal_type(sh.random.normal(own, (16,)))
    reveal_type(sh.random.normal(same, (16,)))
    reveal_type(sh.random.normal(any_key, (16,)))
    sh.random.normal(own, "f32[16]")


# mypy says:
# 8:17: type f32[n@dp, k]
# 9:17: type f32[n@dp, k]
# 10:12: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 10:12: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 10:12: in exp(f32[n]{U:dp})
# 10:12: fix: sh.reshard(..., "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
# 14:17: type f32[16]{V:dp}
# 15:17: type f32[16]
# 16:17: type ?
# 17:22: `normal` with a key that varies on mesh axis `dp` cannot be reduced there  [sharding]
# 17:22: each device has a key of its own and draws other numbers
# 17:22: in normal(key<fry>[]{V:dp})
# 17:22: try: write {V:dp} in the type
