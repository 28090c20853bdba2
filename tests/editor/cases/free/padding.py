from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[b@dp, t]"], y: A[sh.Array, "f32[3, 4]{U:dp}"]) -> None:
    reveal_type(sh.pad(x, ((0, 0), (1, 2)), constant_values=-1.0))
    reveal_type(sh.pad(y, 1, constant_values=-2))
    reveal_type(sh.pad(y, ((1, 0), (0, 0)), mode="edge"))
    sh.pad(y, 1, mode="maximum")
    sh.pad(x, 1, mode="edge")


# mypy says:
# 7:17: type f32[b@dp, t + 3]
# 8:17: type f32[5,6]{U:dp}
# 9:17: type f32[4,4]{U:dp}
# 10:5: `max` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 10:5: each device holds one term of the sum, and max(a + b) is not max(a) + max(b)
# 10:5: in pad(f32[3,4]{U:dp}), by max(f32[3,4]{U:dp})
# 10:5: fix: sh.reshard(y, "[3, 4]{I:dp}")   [forward: all-reduce over `dp`; backward: none]
# 11:5: `concatenate` acts along dim 0 (`b`), which is sharded on mesh axis `dp`  [sharding]
# 11:5: each device holds only its slice of that dim, and the result needs all of it
# 11:5: in pad(f32[b@dp, t]), by concatenate(f32[1, t]{U:dp}, f32[b@dp, t], f32[1, t]{U:dp})
# 11:5: fix: sh.reshard(x, "[b, t]{U:dp}")   [free, but each device holds all of it]
