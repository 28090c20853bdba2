from typing import Annotated as A

import shtypes as sh


def scaled(x: A[sh.Array, "f32[*b, h]"], w: A[sh.Array, "f32[h]"]) -> A[sh.Array, "f32[*b, h]"]:
    return x


def anything(x: A[sh.Array, "f32[...]"]) -> A[sh.Array, "f32[]"]:
    raise NotImplementedError


def f(x: A[sh.Array, "f32[s, b@dp, k]"], w: A[sh.Array, "f32[k]"], i: A[sh.Array, "i32[k]"]) -> None:
    reveal_type(scaled(x, w))
    reveal_type(scaled(w, w))
    reveal_type(anything(x))
    scaled(x, x)
    anything(i)


# mypy says:
# 15:17: type f32[s, b@dp, k]
# 16:17: type f32[k]
# 17:17: type f32[]
# 18:15: argument `w` of `scaled` is f32[s, b@dp, k], not f32[h]  [sharding]
# 18:15: it has 3 dims, and the signature 1 dim
# 19:14: argument `x` of `anything` is i32[k], not f32[...]  [sharding]
# 19:14: its dtype is `i32`
