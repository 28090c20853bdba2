from dataclasses import dataclass
from typing import Annotated as A
from typing import Protocol

import shtypes as sh


class Norm(Protocol):
    def __call__(self, x: A[sh.Array, "f32[n, h]"]) -> A[sh.Array, "f32[n, h]"]: ...


def f(norm: Norm, x: A[sh.Array, "f32[a, b]"], y: A[sh.Array, "f32[a, b@dp]"]) -> None:
    reveal_type(norm(x))
    norm(y)


@dataclass
class Scale:
    w: A[sh.Array, "f32[d]"]

    def __call__(self, x: A[sh.Array, "f32[b, d]"]) -> A[sh.Array, "f32[b, d]"]:
        return x * self.w


def good(x: A[sh.Array, "f32[i, j]"]) -> A[sh.Array, "f32[i, j]"]:
    return x


def turned(x: A[sh.Array, "f32[i, j]"]) -> A[sh.Array, "f32[j, i]"]:
    return x.T


class Named(Norm):
    """A class, not a function, though it says that it is a norm."""


def one(named: Named) -> None: ...


def only(norm: Norm) -> Norm:
    return norm


def g(norm: Norm, scale: Scale, x: A[sh.Array, "f32[a, b]"]) -> None:
    f(norm, x, x)
    f(scale, x, x)
    f(good, x, x)
    only(good)
    only(turned)
    only(lambda x: x * 2)
    only(3)
    one(good)


# mypy says:
# 13:17: type f32[a, b]
# 14:10: argument `x` of `norm` is f32[a, b@dp], not f32[n, h]  [sharding]
# 14:10: dim 1 (`h`) is sharded over `dp`, and the signature has it not sharded
# 14:10: fix: sh.reshard(y, "[a, b]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
# 45:16: argument `y` of `f` is f32[a, b], not f32[a, b@dp]  [sharding]
# 45:16: dim 1 (`b`) is not sharded, and the signature has it sharded over `dp`
# 45:16: fix: sh.reshard(x, "[a, b@dp]")   [forward: none; backward: none]
# 46:17: argument `y` of `f` is f32[a, b], not f32[a, b@dp]  [sharding]
# 46:17: dim 1 (`b`) is not sharded, and the signature has it sharded over `dp`
# 46:17: fix: sh.reshard(x, "[a, b@dp]")   [forward: none; backward: none]
# 47:16: argument `y` of `f` is f32[a, b], not f32[a, b@dp]  [sharding]
# 47:16: dim 1 (`b`) is not sharded, and the signature has it sharded over `dp`
# 47:16: fix: sh.reshard(x, "[a, b@dp]")   [forward: none; backward: none]
# 49:10: Argument 1 to "only" has incompatible type "Callable[[Array[Literal['f32[i, j]']]], Array[Literal['f32[j, i]']]]"; expected "Callable[[Array[Literal['f32[n, h]']]], Array[Literal['f32[n, h]']]]"  [arg-type]
# 51:10: Argument 1 to "only" has incompatible type "int"; expected "Callable[[Array[Any]], Array[Any]]"  [arg-type]
# 52:9: Argument 1 to "one" has incompatible type "Callable[[Array[Literal['f32[i, j]']]], Array[Literal['f32[i, j]']]]"; expected "Named"  [arg-type]
