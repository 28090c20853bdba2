from typing import Annotated as A
from typing import overload

import shtypes as sh

Sums = A[sh.Array, "f32[n]{U:dp}"]
Whole = A[sh.Array, "f32[n]"]


@overload
def f(x: Sums) -> Whole: ...
@overload
def f(x: Sums, times: float) -> Whole: ...
@sh.no_comm
def f(x: Sums, times: float = 1.0) -> Whole:
    return sh.all_reduce(x, "dp") * times


# mypy says:
# 16:12: `no_comm` forbids all-reduce over `dp` in the forward pass: `all_reduce` takes f32[n]{U:dp} to f32[n]  [sharding]
# 16:12: the scope is that of line 15
# 16:12: try: sh.all_reduce(x, "dp") before the scope
