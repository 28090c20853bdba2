from typing import Annotated as A

import shtypes as sh


def f(u: A[sh.Array, "f32[seq, batch@dp]{U:tp}"], x: A[sh.Array, "f32[n@dp, m]"]) -> None:
    reveal_type(sh.all_reduce(u))
    reveal_type(sh.all_reduce(u, "tp", to="I"))
    reveal_type(sh.reduce_scatter(u, "tp", 0))
    reveal_type(sh.all_gather(u, "dp"))
    reveal_type(sh.all_to_all(x, "dp", 1))
    reveal_type(sh.shard(x, "tp", 1))
    sh.all_reduce(u, "dp")
    sh.all_gather(x, "tp")
    sh.all_to_all(u, "tp", 0)


# mypy says:
# 7:17: type f32[seq, batch@dp]
# 8:17: type f32[seq, batch@dp]{I:tp}
# 9:17: type f32[seq@tp, batch@dp]
# 10:17: type f32[seq, batch]{U:tp}
# 11:17: type f32[n, m@dp]
# 12:17: type f32[n@dp, m@tp]
# 13:5: `all_reduce` needs mesh axis `dp` unreduced  [sharding]
# 13:5: it is sharded in f32[seq, batch@dp]{U:tp}
# 13:5: try: sh.reshard(x, type) goes from any type to any other
# 14:5: `all_gather` needs mesh axis `tp` sharded  [sharding]
# 14:5: it is reduced in f32[n@dp, m]
# 14:5: try: sh.reshard(x, type) goes from any type to any other
# 15:5: `all_to_all` needs mesh axis `tp` sharded  [sharding]
# 15:5: it is unreduced in f32[seq, batch@dp]{U:tp}
# 15:5: try: sh.reshard(x, type) goes from any type to any other
