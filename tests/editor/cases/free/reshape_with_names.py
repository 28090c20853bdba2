from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[seq, batch@dp, 12]"]) -> None:
    n = x.shape[0]
    reveal_type(x.reshape(n, -1, 3, 4))
    reveal_type(x.reshape(-1))
    reveal_type(sh.expand_dims(x, (0, 2)))
    reveal_type(sh.squeeze(sh.expand_dims(x, 0), 0))


# mypy says:
# 8:17: type ?
# 9:17: type ?
# 10:17: type f32[1, seq, 1, batch@dp, 12]
# 11:17: type f32[seq, batch@dp, 12]
