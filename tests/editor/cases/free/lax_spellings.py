from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[8, 6@dp, 4]"],
    y: A[sh.Array, "f32[8, 6]{U:dp}"],
    i: A[sh.Array, "i32[8]"],
    k: A[sh.Array, "i32[]"],
    image: A[sh.Array, "f32[n@dp, c, h, w]"],
    kernel: A[sh.Array, "f32[o, c, 3, 3]"],
) -> None:
    reveal_type(sh.rev(y, (0,)))
    reveal_type(sh.vsplit(x, 2)[1])
    reveal_type(sh.hsplit(y, [2])[1])
    reveal_type(sh.dsplit(x, [1])[1])
    reveal_type(sh.diagflat(i))
    reveal_type(sh.segment_max(x, i, 3))
    reveal_type(sh.dynamic_update_index_in_dim(x, x[0], 3, 0))
    reveal_type(sh.dynamic_update_index_in_dim(x, x[0], k, 0))
    reveal_type(sh.conv_with_general_padding(image, kernel, (1, 1), ((1, 1), (0, 0)), None, None))
    sh.segment_min(y, i, 3)


# mypy says:
# 14:17: type f32[8,6]{U:dp}
# 15:17: type f32[4,6@dp,4]
# 16:17: type f32[8,4]{U:dp}
# 17:17: type f32[8,6@dp,3]
# 18:17: type i32[8,8]
# 19:17: type f32[3,6@dp,4]
# 20:17: type f32[8,6@dp,4]
# 21:17: type f32[8,6@dp,4]
# 22:17: type f32[n@dp, o, h, w - 2]
# 23:5: `scatter_min` is nonlinear in operand 2, which is unreduced on mesh axis `dp`  [sharding]
# 23:5: each device holds one term of the sum, and scatter_min(a + b) is not scatter_min(a) + scatter_min(b)
# 23:5: in segment_min(f32[8,6]{U:dp}, i32[8]), by scatter_min(f32[3,6], i32[8,1], f32[8,6]{U:dp})
# 23:5: fix: sh.reshard(y, "[8, 6@dp]")   [forward: reduce-scatter over `dp`; backward: all-gather over `dp`]
