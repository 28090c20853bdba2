from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[6, m@dp]"]) -> None:
    reveal_type(sh.split(x, 3))
    first, *_ = sh.split(x, 2)
    reveal_type(first)
    sh.split(x, 2, axis=1)


# mypy says:
# 7:17: type list[f32[2, m@dp]]
# 9:17: type f32[3, m@dp]
# 10:14: `split` acts along dim 1 (`m`), which is sharded on mesh axis `dp`  [sharding]
# 10:14: each device holds only its slice of that dim, and the result needs all of it
# 10:14: in split(f32[6, m@dp])
# 10:14: fix: sh.reshard(x, "[6, m]{U:dp}")   [free, but each device holds all of it]
