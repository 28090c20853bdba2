from typing import Annotated as A

import shtypes as sh


def f(u: A[sh.Array, "f32[n, m]{U:tp}"], x: A[sh.Array, "f32[n@tp, m]"], r: A[sh.Array, "f32[n, m]"]) -> None:
    with sh.no_comm():
        sh.all_reduce(u)
        sh.reshard(x, "[_, _@tp]")
        reveal_type(sh.reshard(r, "[_@tp, ...]"))
        reveal_type(x + r)
    sh.all_reduce(u)


# mypy says:
# 8:9: `no_comm` forbids all-reduce over `tp` in the forward pass: `all_reduce` takes f32[n, m]{U:tp} to f32[n, m]  [sharding]
# 8:9: the scope is that of line 7
# 8:9: try: sh.all_reduce(u) before the scope
# 9:9: `no_comm` forbids permute over `tp` in the forward pass: `reshard` takes f32[n@tp, m] to f32[n, m@tp]  [sharding]
# 9:9: the scope is that of line 7
# 9:9: try: sh.reshard(x, "[n, m@tp]") before the scope
# 10:21: type f32[n@tp, m]
# 11:21: type f32[n@tp, m]
