from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[n@dp, h, w, c]"],
    deep: A[sh.Array, "f32[n@dp, 8, 8, c@tp]"],
    k: A[sh.Array, "f32[3, 3, c, o@tp]"],
    back: A[sh.Array, "f32[3, 3, o, c@tp]"],
    split: A[sh.Array, "f32[n, h@dp, w, c]"],
) -> None:
    reveal_type(sh.conv_transpose(x, k, (2, 2), "SAME"))
    reveal_type(sh.conv_transpose(x, k, (2, 2), "VALID"))
    reveal_type(sh.conv_transpose(x, k, (2, 2), ((1, 1), (2, 2)), rhs_dilation=(1, 2)))
    reveal_type(sh.conv_transpose(deep, back, (2, 2), "SAME", transpose_kernel=True))
    sh.conv_transpose(split, k, (2, 2), "SAME")


# mypy says:
# 13:17: type f32[n@dp, 2*h, 2*w, o@tp]
# 14:17: type f32[n@dp, 2*h + 1, 2*w + 1, o@tp]
# 15:17: type f32[n@dp, 2*h - 1, 2*w - 1, o@tp]
# 16:17: type f32[n@dp, 16, 16, o]{U:tp}
# 17:5: `conv_general_dilated` acts along dim 1 (`h`), which is sharded on mesh axis `dp`  [sharding]
# 17:5: each device holds only its slice of that dim, and the result needs all of it
# 17:5: in conv_transpose(f32[n, h@dp, w, c], f32[3, 3, c, o@tp]), by conv_general_dilated(f32[n, h@dp, w, c], f32[3, 3, c, o@tp])
# 17:5: fix: sh.reshard(split, "[n, h, w, c]{U:dp}")   [free, but each device holds all of it]
