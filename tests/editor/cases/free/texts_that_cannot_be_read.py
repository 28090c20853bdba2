from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f99[n]"], y: A[sh.Array, "f32[n@dp, m@dp]"], z: A[sh.Array, "f32[n"]) -> None:
    reveal_type(x)


# mypy says:
# 6:10: there is no dtype `f99`  [sharding]
# 6:36: mesh axis `dp` is written twice; a mesh axis shards one dim or is in one other state  [sharding]
# 6:71: cannot read the type: expected `,`, `]` or `@`, not the end  [sharding]
# 7:17: type ?
