from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n]"]:
    return x


def g(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    y: A[sh.Array, "f32[n@dp]"] = x * 2
    return y


# mypy says:
# 7:12: Incompatible return value type (got "Array[Literal['f32[n@dp]']]", expected "Array[Literal['f32[n]']]")  [return-value]
