from typing import Annotated as A

import shtypes as sh


def f(
    q: A[sh.Array, "bf16[batch@dp, seq, heads@tp, head]"],
    mask: A[sh.Array, "bool[seq, keys]"],
    k: A[sh.Array, "bf16[batch@dp, keys, heads@tp, head]"],
    bias: A[sh.Array, "f32[seq, keys@ep]"],
    far: A[sh.Array, "bf16[batch, keys@dp, heads@tp, head]"],
    logits: A[sh.Array, "bf16[batch@dp, vocab]"],
    wide: A[sh.Array, "f32[batch@dp, vocab@tp]"],
    labels: A[sh.Array, "i32[batch@dp]"],
    pending: A[sh.Array, "f32[batch@dp, vocab]{U:tp}"],
) -> None:
    reveal_type(sh.nn.dot_product_attention(q, k, k, mask=mask))
    reveal_type(sh.nn.dot_product_attention(q / (q.shape[-1] ** 0.5), q, q, is_causal=True, scale=1.0))
    reveal_type(sh.nn.dot_product_attention(q, k, k, bias, out="[_@dp, _, _@tp, _]"))
    sh.nn.dot_product_attention(q, k, k, bias)
    sh.nn.dot_product_attention(q, far, far)
    reveal_type(sh.nn.cross_entropy(logits, labels))
    reveal_type(sh.nn.cross_entropy(wide, labels, out="[_@dp]{I:tp}"))
    sh.nn.cross_entropy(wide, labels)
    sh.nn.cross_entropy(pending, labels)


# mypy says:
# 17:17: type bf16[batch@dp, seq, heads@tp, head]
# 18:17: type bf16[batch@dp, seq, heads@tp, head]
# 19:17: type bf16[batch@dp, seq, heads@tp, head]
# 20:5: `softmax` acts along dim 3 (`keys`), which is sharded on mesh axis `ep`  [sharding]
# 20:5: each device holds only its slice of that dim, and the result needs all of it
# 20:5: in softmax(f32[batch@dp, heads@tp, seq, keys@ep])
# 21:5: `dot_product_attention` acts along dim 1 (`keys`), which is sharded on mesh axis `dp`  [sharding]
# 21:5: each device holds only its slice of that dim, and the result needs all of it
# 21:5: in dot_product_attention(bf16[batch@dp, seq, heads@tp, head], bf16[batch, keys@dp, heads@tp, head], bf16[batch, keys@dp, heads@tp, head])
# 22:17: type f32[batch@dp]
# 23:17: type f32[batch@dp]{I:tp}
# 24:5: `cross_entropy` acts along dim 1 (`vocab`), which is sharded on mesh axis `tp`  [sharding]
# 24:5: each device holds only its slice of that dim, and the result needs all of it
# 24:5: in cross_entropy(f32[batch@dp, vocab@tp], i32[batch@dp])
# 24:5: fix: sh.nn.cross_entropy(..., out="[batch@dp]{I:tp}")   [forward: 2 times all-reduce over `tp`; backward: none]
# 25:25: `max` is nonlinear in the operand, which is unreduced on mesh axis `tp`  [sharding]
# 25:25: each device holds one term of the sum, and max(a + b) is not max(a) + max(b)
# 25:25: in max(f32[batch@dp, vocab]{U:tp})
# 25:25: fix: sh.reshard(pending, "[batch@(dp,tp), vocab]")   [forward: reduce-scatter over `tp`; backward: all-gather over `tp`]
