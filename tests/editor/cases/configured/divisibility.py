from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[6@dp, 8]"], y: A[sh.Array, "f32[6@tp]"]) -> None:
    reveal_type(x)
    reveal_type(sh.reshard(x, tp=1))
    sh.reshard(x, "[_, _@(dp,tp)]")
    sh.reshard(x, "[_@(dp,tp), _]")


# mypy says:
# 6:42: dim 0 of size 6 cannot be sharded in 4 equal parts; it is sharded over `tp` (size 4)  [sharding]
# 7:17: type f32[6@dp,8]
# 8:17: type f32[6@dp,8@tp]
# 10:5: dim 0 of size 6 cannot be sharded in 8 equal parts  [sharding]
# 10:5: it is sharded over `dp` (size 2) and `tp` (size 4), 8 devices together
# 10:5: try: use a size that 8 divides, such as 8
