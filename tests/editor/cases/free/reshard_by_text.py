from typing import Annotated as A

import shtypes as sh


def f(u: A[sh.Array, "f32[seq, batch@dp, hidden]{U:tp}"]) -> None:
    reveal_type(sh.reshard(u, "[...]"))
    reveal_type(sh.reshard(u, "[_...]"))
    reveal_type(sh.reshard(u, "[seq@tp, ...]"))
    reveal_type(u.reshard("[_@tp, _@..., _]"))
    reveal_type(sh.reshard(u, "f32[seq, batch@dp, hidden]{I:tp}"))
    sh.reshard(u, "[seq, batch]")
    sh.reshard(u, "i32[...]")
    sh.reshard(u, "[seq@tp")


# mypy says:
# 7:17: type f32[seq, batch@dp, hidden]
# 8:17: type f32[seq, batch, hidden]
# 9:17: type f32[seq@tp, batch@dp, hidden]
# 10:17: type f32[seq@tp, batch@dp, hidden]
# 11:17: type f32[seq, batch@dp, hidden]{I:tp}
# 12:5: the type has 2 dims, and the value has 3  [sharding]
# 12:5: the value has shape (`seq`, `batch`, `hidden`)
# 13:5: the type has dtype `i32`, and the value has dtype `f32`  [sharding]
# 13:5: giving a value a type never casts it
# 13:5: try: leave the dtype out of the type
# 14:5: cannot read the type: expected `,` or `]`, not the end  [sharding]
# 14:5: try: a type is written like `f32[8@x,4]{U:y}`
