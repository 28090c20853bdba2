from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[v@tp, d]"], i: A[sh.Array, "i32[b@dp]"], n: A[sh.Array, "i32[8]"], y: A[sh.Array, "f32[8, 6]"]
) -> None:
    reveal_type(sh.take(x, i, axis=0, mode="fill", fill_value=0))
    reveal_type(x.at[i].get(mode="fill", fill_value=-0.5))
    reveal_type(y.at[:, n].get(mode="fill"))
    reveal_type(y.at[n, 2].get(mode="fill"))
    reveal_type(sh.delete(y, 2, axis=0))
    reveal_type(sh.delete(y, [0, 2, -8], axis=0))
    reveal_type(sh.resize(y, (4, 4)))
    reveal_type(sh.choose(n, [y[:, 0], 0.0, y[:, 1]], mode="clip"))
    sh.delete(x, 0, axis=0)


# mypy says:
# 9:17: type f32[b@dp, d]{U:tp}
# 10:17: type f32[b@dp, d]{U:tp}
# 11:17: type f32[8,8]
# 12:17: type f32[8]
# 13:17: type f32[7,6]
# 14:17: `delete` does not take `axis=0`  [sharding]
# 14:17: delete requires ndarray or scalar arguments, got <class 'list'> at position 1.
# 14:17: type ?
# 15:17: type f32[4,4]
# 16:17: type f32[8]
# 17:5: `slice` acts along dim 0 (`v`), which is sharded on mesh axis `tp`  [sharding]
# 17:5: each device holds only its slice of that dim, and the result needs all of it
# 17:5: in delete(f32[v@tp, d]), by slice(f32[v@tp, d])
# 17:5: fix: sh.reshard(x, "[v, d]{U:tp}")   [free, but each device holds all of it]
