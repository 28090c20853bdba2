from typing import Annotated as A

import shtypes as sh


def f(
    table: A[sh.Array, "f32[vocab@tp, hidden]"],
    ids: A[sh.Array, "i32[batch@dp]"],
    at: int,
    rows: A[sh.Array, "f32[n, m@dp]"],
    lengths: A[sh.Array, "i32[n]"],
) -> None:
    reveal_type(table[ids])
    reveal_type(sh.embedding(table, ids))
    reveal_type(rows[at])
    reveal_type(rows[lengths, 0])
    reveal_type(sh.take(rows, lengths, axis=0, mode="clip"))
    reveal_type(sh.one_hot(ids, 10))
    rows[ids]


# mypy says:
# 13:17: type f32[batch@dp, hidden]{U:tp}
# 14:17: type f32[batch@dp, hidden]{U:tp}
# 15:17: type f32[m@dp]
# 16:17: type f32[n]{U:dp}
# 17:17: type f32[n, m@dp]
# 18:17: type f32[batch@dp, 10]
# 19:5: `gather` meets two different dims sharded on mesh axis `dp`: dim 1 (`m`) of lhs and dim 0 (`batch`) of rhs  [sharding]
# 19:5: a device would combine its slice of dim 1 (`m`) of lhs with the same device's slice of dim 0 (`batch`) of rhs only, but every pair of slices is needed: one of the two must be resharded
# 19:5: in index(f32[n, m@dp], i32[batch@dp]), by gather(f32[n, m@dp], i32[batch@dp, 1])
# 19:5: fix: sh.reshard(ids, "[batch]")   [forward: all-gather over `dp`; backward: none]
