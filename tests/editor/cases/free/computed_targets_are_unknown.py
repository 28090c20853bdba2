from typing import Annotated as A

import shtypes as sh


def f(u: A[sh.Array, "f32[seq, batch@dp]{U:tp}"], target: str, axis: str, dim: int) -> None:
    reveal_type(sh.reshard(u, target))
    reveal_type(sh.reshard(u, f"[seq@{axis}, ...]"))
    reveal_type(sh.all_reduce(u, axis))
    reveal_type(sh.reduce_scatter(u, "tp", dim))


# mypy says:
# 7:17: type ?
# 8:17: type ?
# 9:17: type ?
# 10:17: type ?
