from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[seq, batch@dp, hidden]"], i: A[sh.Array, "i8[n@dp]"]) -> None:
    reveal_type(sh.sum(x))
    reveal_type(x.sum(0))
    reveal_type(x.sum(axis=(0, 1)))
    reveal_type(x.sum(axis=-1, keepdims=True))
    reveal_type(sh.mean(x, axis=1))
    reveal_type(i.sum())
    reveal_type(i.mean())
    reveal_type(sh.count_nonzero(x, axis=1))
    x.sum(3)


# mypy says:
# 7:17: type f32[]{U:dp}
# 8:17: type f32[batch@dp, hidden]
# 9:17: type f32[hidden]{U:dp}
# 10:17: type f32[seq, batch@dp, 1]
# 11:17: type f32[seq, hidden]{U:dp}
# 12:17: type i32[]{U:dp}
# 13:17: type f32[]{U:dp}
# 14:17: type i32[seq, hidden]{U:dp}
