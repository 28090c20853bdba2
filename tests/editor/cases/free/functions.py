from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated as A, Protocol, TypeVar

import shtypes as sh


# jit keeps signatures


@sh.jit
def f_0(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return x * 2


def g_0(x: A[sh.Array, "f32[k@dp]"], y: A[sh.Array, "f32[k]"]) -> None:
    reveal_type(f_0(x))
    f_0(y)


# typed keeps signatures


@sh.typed
def f_1(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return x * 2


def g_1(x: A[sh.Array, "f32[k@dp]"], y: A[sh.Array, "f32[k]"]) -> None:
    reveal_type(f_1(x))
    f_1(y)


# lifted functions


def plain(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return x


def g_2(x: A[sh.Array, "f32[k@dp]"], y: A[sh.Array, "f32[k]"]) -> None:
    reveal_type(sh.lift(plain)(x))
    sh.lift(plain)(y)


# async functions


async def f_3(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return x


async def g_3(x: A[sh.Array, "f32[k@dp]"]) -> None:
    reveal_type(await f_3(x))


# functions of functions


def double(x: A[sh.Array, "f32[n]"]) -> A[sh.Array, "f32[n]"]:
    return x * 2


def f_4(x: A[sh.Array, "f32[k]"], y: A[sh.Array, "f32[m, k]"]) -> None:
    reveal_type(sh.checkpoint(double)(x))
    reveal_type(sh.jit(double)(x))
    reveal_type(sh.vmap(double)(y))
    reveal_type(sh.vmap(lambda row: x * 2)(y))
    reveal_type(sh.shard_map(double, out_specs="[_]")(x))
    reveal_type(sh.checkpoint(double)(y))


# callables need equal names


def f_5(g: Callable[[A[sh.Array, "f32[n]"]], A[sh.Array, "f32[n]"]], x: A[sh.Array, "f32[n]"]) -> None:
    reveal_type(g(x))


# generic functions


T = TypeVar("T")


def same(x: T) -> T:
    return x


def f_6(x: A[sh.Array, "f32[n@dp]"]) -> None:
    reveal_type(same(x))
    reveal_type([x, x])
    reveal_type([sh.exp(v) for v in (x, x)])


# nested functions have the dims around


def outer(x: A[sh.Array, "f32[n, m]"], y: A[sh.Array, "f32[k, m]"]) -> None:
    def inner(z: A[sh.Array, "f32[n, m]"]) -> A[sh.Array, "f32[n, m]"]:
        reveal_type(z + x)
        return z

    reveal_type(inner(x))
    inner(y)

    def free(z: A[sh.Array, "f32[a]"]) -> A[sh.Array, "f32[a]"]:
        return z

    reveal_type(free(x[0]))


# lambdas


def f_8(x: A[sh.Array, "f32[n@dp]"]) -> None:
    double = lambda v: v * 2
    reveal_type(double(x))


# protocols


class Norm(Protocol):
    def __call__(self, x: A[sh.Array, "f32[n, h]"]) -> A[sh.Array, "f32[n, h]"]: ...


def f_9(norm: Norm, x: A[sh.Array, "f32[a, b]"], y: A[sh.Array, "f32[a, b@dp]"]) -> None:
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


def g_9(norm: Norm, scale: Scale, x: A[sh.Array, "f32[a, b]"]) -> None:
    f_9(norm, x, x)
    f_9(scale, x, x)
    f_9(good, x, x)
    only(good)
    only(turned)
    only(lambda x: x * 2)
    only(3)
    one(good)


# mypy says:
# 17:17: type f32[k@dp]
# 18:9: argument `x` of `f_0` is f32[k], not f32[n@dp]  [sharding]
# 18:9: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 18:9: fix: sh.reshard(y, "[k@dp]")   [forward: none; backward: none]
# 30:17: type f32[k@dp]
# 31:9: argument `x` of `f_1` is f32[k], not f32[n@dp]  [sharding]
# 31:9: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 31:9: fix: sh.reshard(y, "[k@dp]")   [forward: none; backward: none]
# 42:17: type f32[k@dp]
# 43:20: argument `x` of `sh.lift(plain)` is f32[k], not f32[n@dp]  [sharding]
# 43:20: dim 0 (`n`) is not sharded, and the signature has it sharded over `dp`
# 43:20: fix: sh.reshard(y, "[k@dp]")   [forward: none; backward: none]
# 54:17: type f32[k@dp]
# 65:17: type f32[k]
# 66:17: type f32[k]
# 67:17: type f32[m, k]
# 68:17: type f32[m, k]
# 69:17: type ?
# 70:17: type ?
# 70:39: argument `x` of `sh.checkpoint(double)` is f32[m, k], not f32[n]  [sharding]
# 70:39: it has 2 dims, and the signature 1 dim
# 77:17: type f32[n]
# 91:17: type f32[n@dp]
# 92:17: type list[f32[n@dp]]
# 93:17: type list[f32[n@dp]]
# 101:21: type f32[n, m]
# 104:17: type f32[n, m]
# 105:11: argument `z` of `inner` is f32[k, m], not f32[n, m]  [sharding]
# 105:11: dim 0 has size `k`, not `n`
# 110:17: type f32[m]
# 118:17: Call to untyped function (unknown) in typed context  [no-untyped-call]
# 118:17: type Any
# 129:17: type f32[a, b]
# 130:10: argument `x` of `norm` is f32[a, b@dp], not f32[n, h]  [sharding]
# 130:10: dim 1 (`h`) is sharded over `dp`, and the signature has it not sharded
# 130:10: fix: sh.reshard(y, "[a, b]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
# 161:18: argument `y` of `f_9` is f32[a, b], not f32[a, b@dp]  [sharding]
# 161:18: dim 1 (`b`) is not sharded, and the signature has it sharded over `dp`
# 161:18: fix: sh.reshard(x, "[a, b@dp]")   [forward: none; backward: none]
# 162:19: argument `y` of `f_9` is f32[a, b], not f32[a, b@dp]  [sharding]
# 162:19: dim 1 (`b`) is not sharded, and the signature has it sharded over `dp`
# 162:19: fix: sh.reshard(x, "[a, b@dp]")   [forward: none; backward: none]
# 163:18: argument `y` of `f_9` is f32[a, b], not f32[a, b@dp]  [sharding]
# 163:18: dim 1 (`b`) is not sharded, and the signature has it sharded over `dp`
# 163:18: fix: sh.reshard(x, "[a, b@dp]")   [forward: none; backward: none]
# 165:10: Argument 1 to "only" has incompatible type "Callable[[Array[Literal['f32[i, j]']]], Array[Literal['f32[j, i]']]]"; expected "Callable[[Array[Literal['f32[n, h]']]], Array[Literal['f32[n, h]']]]"  [arg-type]
# 167:10: Argument 1 to "only" has incompatible type "int"; expected "Callable[[Array[Any]], Array[Any]]"  [arg-type]
# 168:9: Argument 1 to "one" has incompatible type "Callable[[Array[Literal['f32[i, j]']]], Array[Literal['f32[i, j]']]]"; expected "Named"  [arg-type]
