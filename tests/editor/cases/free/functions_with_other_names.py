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


def three(a: A[sh.Array, "f32[n]"], b: A[sh.Array, "f32[n]"], c: A[sh.Array, "f32[m]"]) -> None: ...


def apply_to_three(f: Callable[[A[sh.Array, "f32[n]"], A[sh.Array, "f32[m]"], A[sh.Array, "f32[n]"]], None]) -> None: ...


def use(x: A[sh.Array, "f32[batch@dp, hidden]"], w: A[sh.Array, "f32[hidden]"]) -> None:
    reveal_type(apply(squared, x))
    reveal_type(apply(lambda v: v + w, x))
    reveal_type(twice(squared)(x))
    reveal_type(CHANGES["squared"](x))
    half = functools.partial(apply, squared)
    reveal_type(half(x))
    functools.partial(apply, x=x)(squared) + x
    apply(turned, x)
    apply_to_three(three)


# mypy says:
# 39:17: type f32[batch@dp, hidden]
# 40:17: type f32[batch@dp, hidden]
# 41:17: type ?
# 42:17: type ?
# 44:17: type ?
# 46:11: Argument 1 to "apply" has incompatible type "Callable[[Array[Literal['f32[n, k@dp]']]], Array[Literal['f32[n, k@dp]']]]"; expected "Callable[[Array[Literal['f32[n@dp, k]']]], Array[Literal['f32[n@dp, k]']]]"  [arg-type]
# 47:20: Argument 1 to "apply_to_three" has incompatible type "Callable[[Array[Literal['f32[n]']], Array[Literal['f32[n]']], Array[Literal['f32[m]']]], None]"; expected "Callable[[Array[Literal['f32[n]']], Array[Literal['f32[m]']], Array[Literal['f32[n]']]], None]"  [arg-type]
