from typing import Annotated as A

import shtypes as sh


def total(*xs: A[sh.Array, "f32[n@dp]"], **named: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    raise NotImplementedError


def g(x: A[sh.Array, "f32[k@dp]"], y: A[sh.Array, "f32[k]"]) -> None:
    reveal_type(total(x, x, z=x))
    total(x, y)
    total(z=y)


# mypy says:
# 11:17: type f32[k@dp]
# 12:14: argument `xs` of `total` is f32[k], not f32[n@dp]  [sharding]
# 12:14: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 12:14: fix: sh.reshard(y, "[k@dp]")   [forward: none; backward: none]
# 13:13: argument `named` of `total` is f32[k], not f32[n@dp]  [sharding]
# 13:13: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 13:13: fix: sh.reshard(y, "[k@dp]")   [forward: none; backward: none]
