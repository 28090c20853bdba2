from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[seq, batch@dp, hidden]"]) -> None:
    reveal_type(x[0])
    reveal_type(x[-1])
    reveal_type(x[1:])
    reveal_type(x[:, :, :-2])
    reveal_type(x[..., 0])
    reveal_type(x[None])
    reveal_type(x[:, 0])
    reveal_type(x[:])
    x[:, 1:]
    x[0, 0, 0, 0]


# mypy says:
# 7:17: type f32[batch@dp, hidden]
# 8:17: type f32[batch@dp, hidden]
# 9:17: type f32[seq - 1, batch@dp, hidden]
# 10:17: type f32[seq, batch@dp, hidden - 2]
# 11:17: type f32[seq, batch@dp]
# 12:17: type f32[1, seq, batch@dp, hidden]
# 13:17: type f32[seq, hidden]{U:dp}
# 14:17: type f32[seq, batch@dp, hidden]
# 15:5: `slice` acts along dim 1 (`batch`), which is sharded on mesh axis `dp`  [sharding]
# 15:5: each device holds only its slice of that dim, and the result needs all of it
# 15:5: in index(f32[seq, batch@dp, hidden]), by slice(f32[seq, batch@dp, hidden])
# 15:5: fix: sh.reshard(x, "[seq, batch, hidden]{U:dp}")   [free, but each device holds all of it]
