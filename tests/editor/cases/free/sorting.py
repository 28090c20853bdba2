from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, m]"]) -> None:
    reveal_type(sh.sort(x))
    reveal_type(x.argsort(axis=1))
    reveal_type(sh.top_k(x, 3))
    x.sort(0)


# mypy says:
# 7:17: type f32[n@dp, m]
# 8:17: type i32[n@dp, m]
# 9:17: type tuple[?, ?]
# 10:5: `sort` acts along dim 0 (`n`), which is sharded on mesh axis `dp`  [sharding]
# 10:5: each device holds only its slice of that dim, and the result needs all of it
# 10:5: in sort(f32[n@dp, m])
# 10:5: fix: sh.reshard(x, "[n, m@dp]")   [forward: permute over `dp`; backward: permute over `dp`]
