from typing import Annotated as A

import shtypes as sh


def f(
    q: A[sh.Array, "f32[b@dp, t, 8, h]"],
    k: A[sh.Array, "f32[b@dp, s, 2, h]"],
    mask: A[sh.Array, "bool[8, 1, s]"],
    bias: A[sh.Array, "f32[b@dp, 1, t, s]"],
    split: A[sh.Array, "f32[b, t, 8@tp, h]"],
) -> None:
    reveal_type(sh.nn.dot_product_attention(q, k, k))
    reveal_type(sh.nn.dot_product_attention(q, k, k, mask=mask, bias=bias, is_causal=True))
    reveal_type(sh.nn.dot_product_attention(split, k, k))


# mypy says:
# 13:17: type f32[b@dp, t, 8, h]
# 14:17: type f32[b@dp, t, 8, h]
# 15:17: type f32[b@dp, t, 8@tp, h]
