from typing import Annotated as A

import shtypes as sh


def f(i: A[sh.Array, "f32[n]{I:tp}"], x: A[sh.Array, "f32[n@tp]"], u: A[sh.Array, "f32[n]{U:tp}"]) -> None:
    with sh.no_comm("forward"):
        reveal_type(i * x)
        sh.all_reduce(u)
    with sh.no_comm("backward"):
        i * x
    with sh.no_comm():
        i * x


# mypy says:
# 8:21: type f32[n@tp]
# 9:9: `no_comm("forward")` forbids all-reduce over `tp` in the forward pass: `all_reduce` takes f32[n]{U:tp} to f32[n]  [sharding]
# 9:9: the scope is that of line 7
# 9:9: try: sh.all_reduce(u) before the scope
# 11:9: `no_comm("backward")` forbids all-gather over `tp` in the backward pass: `mul` casts f32[n]{I:tp} to f32[n@tp]  [sharding]
# 11:9: the gradient goes back from f32[n@tp] to f32[n]{I:tp}
# 11:9: the scope is that of line 10
# 11:9: try: sh.reshard(i, tp="R") before the scope
# 13:9: `no_comm` forbids all-gather over `tp` in the backward pass: `mul` casts f32[n]{I:tp} to f32[n@tp]  [sharding]
# 13:9: the gradient goes back from f32[n@tp] to f32[n]{I:tp}
# 13:9: the scope is that of line 12
# 13:9: try: sh.reshard(i, tp="R") before the scope
