from typing import Annotated as A

import shtypes as sh


def of_any(x: A[sh.Array, "f32[n, width]"]) -> None:
    reveal_type(sh.reshape(x, (-1,)))
    reveal_type(x[0])


def of_heads(x: A[sh.Array, "f32[n, heads]"], y: A[sh.Array, "f32[m, 16]"]) -> None:
    reveal_type(x[:, :8])
    reveal_type(y[:, :8])
    reveal_type(x[0])
    reveal_type(y[0])


# mypy says:
# 7:17: type f32[n*width]
# 8:17: type f32[width]
# 12:17: type f32[n, 8]
# 13:17: type f32[m, 8]
# 14:17: type f32[heads]
# 15:17: type f32[16]
