from __future__ import annotations

from typing import Annotated as A, Self

import shtypes as sh


class Cache:
    def __init__(self, keys: A[sh.Array, "f32[batch@dp, 16]"]) -> None:
        self.keys = keys

    @classmethod
    def empty(cls) -> Self:
        return cls(sh.zeros("f32[4@dp, 16]"))

    @classmethod
    def turned(cls) -> Self:
        return cls(sh.zeros("f32[4, 16@dp]"))


def f(x: A[sh.Array, "f32[a@dp, b]"], y: A[sh.Array, "f32[4@dp, b]"]) -> A[sh.Array, "f32[4@dp, b]"]:
    z: A[sh.Array, "f32[4@dp, b]"] = x
    several: list[A[sh.Array, "f32[a@dp, 8]"]] = [y]
    other: A[sh.Array, "f32[b@dp, a]"] = x
    unequal: A[sh.Array, "f32[8@dp, b]"] = y
    return x


def with_an_unknown(
    x: A[sh.Array, "f32[b@dp, 4]"], y: sh.Array
) -> tuple[A[sh.Array, "i32[b@dp, t]"], A[sh.Array, "f32[b@dp, beam]"]]:
    return y, x


# mypy says:
# 18:20: Argument 1 to "Cache" has incompatible type "Array[Literal['f32[4,16@dp]']]"; expected "Array[Literal['f32[batch@dp, 16]']]"  [arg-type]
# 24:42: Incompatible types in assignment (expression has type "Array[Literal['f32[a@dp, b]']]", variable has type "Array[Literal['f32[b@dp, a]']]")  [assignment]
# 25:44: Incompatible types in assignment (expression has type "Array[Literal['f32[4@dp, b]']]", variable has type "Array[Literal['f32[8@dp, b]']]")  [assignment]
