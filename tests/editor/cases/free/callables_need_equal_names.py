from collections.abc import Callable
from typing import Annotated as A

import shtypes as sh


def f(g: Callable[[A[sh.Array, "f32[n]"]], A[sh.Array, "f32[n]"]], x: A[sh.Array, "f32[n]"]) -> None:
    reveal_type(g(x))


# mypy says:
# 8:17: type f32[n]
