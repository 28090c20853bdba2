from typing import Annotated as A

import shtypes as sh


def f(u: A[sh.Array, "f32[seq, batch@dp]{U:tp}"]) -> None:
    reveal_type(sh.reshard(u, tp="R"))
    reveal_type(sh.reshard(u, tp=0))
    reveal_type(sh.reshard(u, tp="I", dp=0))
    sh.reshard(u, tp=5)
    sh.reshard(u)


# mypy says:
# 7:17: type f32[seq, batch@dp]
# 8:17: type f32[seq@tp, batch@dp]
# 9:17: type f32[seq@dp, batch]{I:tp}
# 10:5: f32[seq, batch@dp]{U:tp} has no dim 5  [sharding]
# 11:5: `reshard` needs a target type or axes by name  [sharding]
# 11:5: try: sh.reshard(x, "[_, ...]{U:tp}")
