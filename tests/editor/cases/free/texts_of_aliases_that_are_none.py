from collections.abc import Callable
from typing import Annotated as A

import shtypes as sh

Empty = A[sh.Array, ""]
Half = A[sh.Array, "f32[n//2]"]
Other = A[sh.Array, 3]


def f(g: Callable[[A[sh.Array, "f32[n]"]], A[sh.Array, "f32[n]"]], x: Half, y: A[sh.Array, "f32[n, n]"]) -> None:
    reveal_type(x)
    g(y)


# mypy says:
# 6:9: cannot read the type: expected a dtype, `[` or `{`, not the end  [sharding]
# 12:17: type ?
# 13:7: argument `1` of `g` is f32[n, n], not f32[n]  [sharding]
# 13:7: it has 2 dims, and the signature 1 dim
