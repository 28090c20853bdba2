from typing import Annotated as A

import shtypes as sh


async def f(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return x


async def g(x: A[sh.Array, "f32[k@dp]"]) -> None:
    reveal_type(await f(x))


# mypy says:
# 11:17: type f32[k@dp]
