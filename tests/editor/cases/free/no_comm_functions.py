from typing import Annotated as A

import shtypes as sh


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


# mypy says:
# 13:12: `no_comm` forbids all-reduce over `tp` in the forward pass: `all_reduce` takes f32[n]{U:tp} to f32[n]  [sharding]
# 13:12: the scope is that of line 12
# 13:12: try: sh.all_reduce(u) before the scope
# 27:5: `no_comm` cannot vouch for `other`, which takes arrays and is not `no_comm` itself  [sharding]
# 27:5: the scope is that of line 25
# 27:5: try: @sh.no_comm on `other`
