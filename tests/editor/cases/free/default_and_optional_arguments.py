from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[n]"], bias: A[sh.Array, "f32[n]"] | None = None, *, scale: float = 1.0
) -> A[sh.Array, "f32[n]"]:
    return x * scale if bias is None else x + bias


def g(x: A[sh.Array, "f32[k]"], m: A[sh.Array, "f32[m]"]) -> None:
    reveal_type(f(x))
    reveal_type(f(x, x))
    reveal_type(f(x, None, scale=2.0))
    f(x, bias=m)


# mypy says:
# 13:17: type f32[k]
# 14:17: type f32[k]
# 15:17: type f32[k]
# 16:15: argument `bias` of `f` is f32[m], not f32[n]  [sharding]
# 16:15: dim 0 has size `m`, and `n` is `k` by `x`
