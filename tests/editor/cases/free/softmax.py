from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[batch@dp, vocab]"], y: A[sh.Array, "f32[batch@dp, vocab@tp]"]) -> None:
    reveal_type(sh.nn.softmax(x))
    reveal_type(sh.softmax(y, axis=-1, out="[batch@dp, vocab@tp]"))
    reveal_type(sh.nn.log_softmax(x, axis=1))
    reveal_type(sh.nn.logsumexp(x, axis=-1))
    sh.nn.softmax(y)


# mypy says:
# 7:17: type f32[batch@dp, vocab]
# 8:17: type f32[batch@dp, vocab@tp]
# 9:17: type f32[batch@dp, vocab]
# 10:17: type f32[batch@dp]
# 11:19: `softmax` acts along dim 1 (`vocab`), which is sharded on mesh axis `tp`  [sharding]
# 11:19: each device holds only its slice of that dim, and the result needs all of it
# 11:19: in softmax(f32[batch@dp, vocab@tp])
# 11:19: fix: sh.nn.softmax(..., out="[batch@dp, vocab@tp]")   [forward: 2 times all-reduce over `tp`; backward: all-reduce over `tp`]
