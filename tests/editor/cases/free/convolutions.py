from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[n@dp, h, w, c]"],
    k: A[sh.Array, "f32[3, 3, c, o@tp]"],
    deep: A[sh.Array, "f32[n@dp, 16, 16, c@tp]"],
    row: A[sh.Array, "bf16[3, 3, c@tp, o]"],
    split: A[sh.Array, "f32[n, h@dp, w, c]"],
) -> None:
    reveal_type(sh.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    reveal_type(sh.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    reveal_type(sh.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    reveal_type(
        sh.conv_general_dilated(deep, row, (2, 2), ((1, 1), (0, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC"))
    )
    sh.conv_general_dilated(split, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


# mypy says:
# 13:17: type f32[n@dp, h, w, o@tp]
# 14:17: type f32[n@dp, h - 2, w - 2, o@tp]
# 15:17: type ?
# 17:9: type ?
# 19:5: `conv_general_dilated` acts along dim 1 (`h`), which is sharded on mesh axis `dp`  [sharding]
# 19:5: each device holds only its slice of that dim, and the result needs all of it
# 19:5: in conv_general_dilated(f32[n, h@dp, w, c], f32[3, 3, c, o@tp])
# 19:5: fix: sh.reshard(split, "[n, h, w, c]{U:dp}")   [free, but each device holds all of it]
