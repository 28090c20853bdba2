from typing import Annotated as A, Any

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, k]"], key: sh.Array, seed: Any) -> None:
    noise = sh.random.normal(key, x.type)
    reveal_type(noise)
    reveal_type(sh.random.uniform(seed, "f32[n@dp, k]"))
    sh.exp(sh.random.normal(key, "f32[n]{U:dp}"))


# mypy says:
# 8:17: type f32[n@dp, k]
# 9:17: type f32[n@dp, k]
# 10:12: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 10:12: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 10:12: in exp(f32[n]{U:dp})
# 10:12: fix: sh.reshard(..., "[n@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
