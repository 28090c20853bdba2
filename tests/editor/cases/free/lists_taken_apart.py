from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp, 8]"], u: A[sh.Array, "f32[4, 8]{U:dp}"]) -> None:
    values, places = sh.top_k(x, 2)
    reveal_type(values)
    reveal_type(places)
    reveal_type(sh.split(u, [1])[1])
    reveal_type(sh.array_split(u, 3)[-1])
    reveal_type(sh.broadcast_arrays(u, u[0, :1])[1])
    reveal_type(sh.unstack(u[:2]))
    first, second = sh.unstack(x, axis=1)[:2]
    reveal_type(first)
    several = sh.split(u, [1])
    reveal_type(several)
    reveal_type(several[0])
    few, *rest = sh.split(u, [1])
    reveal_type(few)
    sh.unstack(x)


# mypy says:
# 8:17: type ?
# 9:17: type ?
# 10:17: type f32[3,8]{U:dp}
# 11:17: type f32[1,8]{U:dp}
# 12:17: type f32[4,8]{U:dp}
# 13:17: type tuple[f32[8]{U:dp}, f32[8]{U:dp}]
# 15:17: type f32[n@dp]
# 17:17: type list[?]
# 18:17: type ?
# 20:17: type ?
