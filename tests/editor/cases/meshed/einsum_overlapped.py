from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[s@tp, 6]"], w: A[sh.Array, "f32[6, d@tp]"], up: A[sh.Array, "f32[8, f@tp]"]) -> None:
    down: A[sh.Array, "f32[f@tp, 12]"] = sh.zeros("f32[f@tp, 12]")
    reveal_type(sh.einsum("sh,hd->sd", x, w, out="[_, _@tp]", overlap=True))
    reveal_type(sh.matmul(up, down, out="[8@tp, 12]", overlap="bidirectional"))
    sh.matmul(up, down, out="[8, 12]", overlap=True)
    with sh.no_comm():
        sh.matmul(up, down, out="[8@tp, 12]", overlap=True)


# mypy says:
# 8:17: type f32[s, d@tp]
# 9:17: type f32[8@tp,12]
# 10:5: `overlap` has nothing to overlap: `out` asks for no gathered operand and no scattered sum  [sharding]
# 10:5: the einsum gives f32[8,12]{U:tp}, and `out` is f32[8,12]: all-reduce over `tp`
# 10:5: fix: leave `overlap` out   [forward: all-reduce over `tp`; backward: all-reduce over `tp`]
# 12:9: `no_comm` forbids a ring of permutes over `tp` in the forward pass: `einsum[nk,km->nm]` takes f32[8,12]{U:tp} to f32[8@tp,12]  [sharding]
# 12:9: the scope is that of line 11
