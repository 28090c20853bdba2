import contextlib
from dataclasses import dataclass
from typing import Annotated as A, overload

import shtypes as sh


# no comm regions


def f_0(u: A[sh.Array, "f32[n, m]{U:tp}"], x: A[sh.Array, "f32[n@tp, m]"], r: A[sh.Array, "f32[n, m]"]) -> None:
    with sh.no_comm():
        sh.all_reduce(u)
        sh.reshard(x, "[_, _@tp]")
        reveal_type(sh.reshard(r, "[_@tp, ...]"))
        reveal_type(x + r)
    sh.all_reduce(u)


# no comm in one direction


def f_1(i: A[sh.Array, "f32[n]{I:tp}"], x: A[sh.Array, "f32[n@tp]"], u: A[sh.Array, "f32[n]{U:tp}"]) -> None:
    with sh.no_comm("forward"):
        reveal_type(i * x)
        sh.all_reduce(u)
    with sh.no_comm("backward"):
        i * x
    with sh.no_comm():
        i * x


# no comm functions


@sh.no_comm
def quiet(x: A[sh.Array, "f32[n@tp]"]) -> A[sh.Array, "f32[n@tp]"]:
    return sh.exp(x)


@sh.no_comm()
def loud(u: A[sh.Array, "f32[n]{U:tp}"]) -> A[sh.Array, "f32[n]"]:
    return sh.all_reduce(u)


def other(x: A[sh.Array, "f32[n@tp]"]) -> A[sh.Array, "f32[n@tp]"]:
    return x


def number(n: int) -> int:
    return n


@sh.no_comm
def caller(x: A[sh.Array, "f32[n@tp]"]) -> A[sh.Array, "f32[n@tp]"]:
    number(3)
    other(x)
    return quiet(x)


# no comm of an overload


Sums = A[sh.Array, "f32[n]{U:dp}"]
Whole = A[sh.Array, "f32[n]"]


@overload
def f_3(x: Sums) -> Whole: ...
@overload
def f_3(x: Sums, times: float) -> Whole: ...
@sh.no_comm
def f_3(x: Sums, times: float = 1.0) -> Whole:
    return sh.all_reduce(x, "dp") * times


# quiet functions stay quiet


Rows = A[sh.Array, "f32[n@dp]"]


@sh.jit
@sh.no_comm
def compiled(x: Rows) -> Rows:
    return x * 2


@sh.no_comm
def plain(x: Rows) -> Rows:
    return x * 2


again = sh.checkpoint(plain)
loud_4 = sh.jit(lambda x: x)


@sh.jit
def step(x: Rows) -> Rows:
    return x


@dataclass
class Layer:
    w: Rows

    def __call__(self, x: Rows) -> Rows:
        return x * self.w


@sh.no_comm
def f_4(x: Rows, layer: Layer) -> Rows:
    y = sh.jit(plain)(again(compiled(x)))
    y = step(y)
    return layer(y)


# implicit comm forgives


def f_5(x: A[sh.Array, "f32[n@dp]"], u: A[sh.Array, "f32[n]{U:dp}"]) -> None:
    with sh.implicit_comm():
        reveal_type(sh.exp(u))
        reveal_type(x + x)
        reveal_type(u + u)


# dim axes scopes are unknown


def f_6(x: A[sh.Array, "f32[n]"]) -> None:
    with sh.dim_axes({"n": "dp"}):
        reveal_type(sh.exp(x))


# scopes of others do not matter


def f_7(x: A[sh.Array, "f32[n@dp]"], value: object) -> None:
    with contextlib.nullcontext(value):
        reveal_type(sh.exp(x))


# mypy says:
# 13:9: `no_comm` forbids all-reduce over `tp` in the forward pass: `all_reduce` takes f32[n, m]{U:tp} to f32[n, m]  [sharding]
# 13:9: the scope is that of line 12
# 13:9: try: sh.all_reduce(u) before the scope
# 14:9: `no_comm` forbids permute over `tp` in the forward pass: `reshard` takes f32[n@tp, m] to f32[n, m@tp]  [sharding]
# 14:9: the scope is that of line 12
# 14:9: try: sh.reshard(x, "[n, m@tp]") before the scope
# 15:21: type f32[n@tp, m]
# 16:21: type f32[n@tp, m]
# 25:21: type f32[n@tp]
# 26:9: `no_comm("forward")` forbids all-reduce over `tp` in the forward pass: `all_reduce` takes f32[n]{U:tp} to f32[n]  [sharding]
# 26:9: the scope is that of line 24
# 26:9: try: sh.all_reduce(u) before the scope
# 28:9: `no_comm("backward")` forbids all-gather over `tp` in the backward pass: `mul` casts f32[n]{I:tp} to f32[n@tp]  [sharding]
# 28:9: the gradient goes back from f32[n@tp] to f32[n]{I:tp}
# 28:9: the scope is that of line 27
# 28:9: try: sh.reshard(i, tp="R") before the scope
# 30:9: `no_comm` forbids all-gather over `tp` in the backward pass: `mul` casts f32[n]{I:tp} to f32[n@tp]  [sharding]
# 30:9: the gradient goes back from f32[n@tp] to f32[n]{I:tp}
# 30:9: the scope is that of line 29
# 30:9: try: sh.reshard(i, tp="R") before the scope
# 43:12: `no_comm` forbids all-reduce over `tp` in the forward pass: `all_reduce` takes f32[n]{U:tp} to f32[n]  [sharding]
# 43:12: the scope is that of line 42
# 43:12: try: sh.all_reduce(u) before the scope
# 57:5: `no_comm` cannot vouch for `other`, which takes arrays and is not `no_comm` itself  [sharding]
# 57:5: the scope is that of line 55
# 57:5: try: @sh.no_comm on `other`
# 74:12: `no_comm` forbids all-reduce over `dp` in the forward pass: `all_reduce` takes f32[n]{U:dp} to f32[n]  [sharding]
# 74:12: the scope is that of line 73
# 74:12: try: sh.all_reduce(x, "dp") before the scope
# 114:9: `no_comm` cannot vouch for `step`, which takes arrays and is not `no_comm` itself  [sharding]
# 114:9: the scope is that of line 112
# 114:9: try: @sh.no_comm on `step`
# 115:12: `no_comm` cannot vouch for `Layer.__call__`, which takes arrays and is not `no_comm` itself  [sharding]
# 115:12: the scope is that of line 112
# 115:12: try: @sh.no_comm on `Layer.__call__`
# 123:21: type ?
# 124:21: type f32[n@dp]
# 125:21: type ?
# 133:21: type ?
# 141:21: type f32[n@dp]
