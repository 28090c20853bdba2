from typing import Annotated as A

import shtypes as sh


def halves(x: A[sh.Array, "f32[n, 2*h]"]) -> A[sh.Array, "f32[n, h]"]:
    raise NotImplementedError


def doubled(x: A[sh.Array, "f32[n, h]"]) -> A[sh.Array, "f32[n, 2*h]"]:
    return sh.concatenate([x, x], axis=1)


def f(x: A[sh.Array, "f32[a, b]"]) -> None:
    reveal_type(doubled(x))
    reveal_type(doubled(doubled(x)))


# mypy says:
# 15:17: type f32[a, 2*b]
# 16:17: type f32[a, 4*b]
