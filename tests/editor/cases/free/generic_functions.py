from typing import Annotated as A
from typing import TypeVar

import shtypes as sh

T = TypeVar("T")


def same(x: T) -> T:
    return x


def f(x: A[sh.Array, "f32[n@dp]"]) -> None:
    reveal_type(same(x))
    reveal_type([x, x])
    reveal_type([sh.exp(v) for v in (x, x)])


# mypy says:
# 14:17: type f32[n@dp]
# 15:17: type list[f32[n@dp]]
# 16:17: type list[f32[n@dp]]
