from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@ddp]"], y: A[sh.Array, "f32[n@dp]"]) -> None:
    sh.reshard(y, "[_@sp]")
    sh.all_gather(y, "pp")


# mypy says:
# 6:10: the mesh has no axis `ddp`; it has `dp`, `tp`  [sharding]
# 7:5: the mesh has no axis `sp`; it has `dp`, `tp`  [sharding]
# 7:5: try: `tp`
# 8:5: the mesh has no axis `pp`; it has `dp`, `tp`  [sharding]
# 8:5: try: `tp`
