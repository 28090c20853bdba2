from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n]"]:
    raise NotImplementedError


def g(unknown: sh.Array) -> A[sh.Array, "f32[m]{U:tp}"]:
    reveal_type(f(unknown))
    return unknown


# mypy says:
# 11:17: type ?
