from typing import Annotated as A

import shtypes as sh


def norm(x: A[sh.Array, "f32[n, b@dp, h]"], scale: A[sh.Array, "f32[h]"]) -> A[sh.Array, "f32[n, b@dp, h]"]:
    return x * scale


def f(
    x: A[sh.Array, "f32[seq, batch@dp, hidden]"], g: A[sh.Array, "f32[hidden]"], bad: A[sh.Array, "f32[seq]"]
) -> None:
    reveal_type(norm(x, g))
    reveal_type(norm(norm(x, g), scale=g))
    norm(x, bad)
    norm(g, g)


# mypy says:
# 13:17: type f32[seq, batch@dp, hidden]
# 14:17: type f32[seq, batch@dp, hidden]
# 15:13: argument `scale` of `norm` is f32[seq], not f32[h]  [sharding]
# 15:13: dim 0 has size `seq`, and `h` is `hidden` by `x`
# 16:10: argument `x` of `norm` is f32[hidden], not f32[n, b@dp, h]  [sharding]
# 16:10: it has 1 dim, and the signature 3 dims
