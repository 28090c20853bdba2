from typing import Annotated as A

import shtypes as sh


def block(
    x: A[sh.Array, "f32[seq, batch@dp, hidden]"],
    w1: A[sh.Array, "f32[hidden, inter@tp]"],
    w2: A[sh.Array, "f32[inter@tp, hidden]"],
) -> A[sh.Array, "f32[seq, batch@dp, hidden]"]:
    h = sh.einsum("sbh,hi->sbi", x, w1)
    reveal_type(h)
    y = sh.einsum("sbi,ih->sbh", sh.silu(h), w2)
    reveal_type(y)
    return sh.all_reduce(y, "tp")


# mypy says:
# 12:17: type f32[seq, batch@dp, inter@tp]
# 14:17: type f32[seq, batch@dp, hidden]{U:tp}
