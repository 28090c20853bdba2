from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated as A

import shtypes as sh

Rows = A[sh.Array, "f32[n@dp, k]"]
Change = Callable[[Rows], Rows]


def squared(y: A[sh.Array, "f32[rows@dp, columns]"]) -> A[sh.Array, "f32[rows@dp, columns]"]:
    return y * y


def turned(y: A[sh.Array, "f32[n, k@dp]"]) -> A[sh.Array, "f32[n, k@dp]"]:
    return y


def apply(f: Change, x: Rows) -> Rows:
    return f(x)


def twice(f: Change) -> Change:
    return lambda x: f(f(x))


CHANGES: dict[str, Change] = {"squared": squared}


def use(x: A[sh.Array, "f32[batch@dp, hidden]"], w: A[sh.Array, "f32[hidden]"]) -> None:
    reveal_type(apply(squared, x))
    reveal_type(apply(lambda v: v + w, x))
    reveal_type(twice(squared)(x))
    reveal_type(CHANGES["squared"](x))
    half = functools.partial(apply, squared)
    reveal_type(half(x))
    functools.partial(apply, x=x)(squared) + x
    apply(turned, x)


# mypy says:
# 33:17: type f32[batch@dp, hidden]
# 34:17: type f32[batch@dp, hidden]
# 35:17: type ?
# 36:17: type ?
# 38:17: type ?
# 40:11: Argument 1 to "apply" has incompatible type "Callable[[Array[Literal['f32[n, k@dp]']]], Array[Literal['f32[n, k@dp]']]]"; expected "Callable[[Array[Literal['f32[n@dp, k]']]], Array[Literal['f32[n@dp, k]']]]"  [arg-type]
