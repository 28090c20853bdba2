from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[a@dp, b]"], y: A[sh.Array, "f32[b, c@dp]"], z: A[sh.Array, "f32[b, a]"]) -> None:
    sh.einsum("ab,bc->ac", x, y)
    sh.einsum("ab,ab->ab", x, z)
    sh.einsum("ab,b", x)
    sh.einsum("abc->a", x)


# mypy says:
# 7:5: `einsum` meets two different dims sharded on mesh axis `dp`: dim 0 (`a`) of lhs and dim 1 (`c`) of rhs  [sharding]
# 7:5: a device would combine its slice of dim 0 (`a`) of lhs with the same device's slice of dim 1 (`c`) of rhs only, but every pair of slices is needed: one of the two must be resharded
# 7:5: in einsum(f32[a@dp, b], f32[b, c@dp])
# 7:5: fix: sh.reshard(x, "[a, b]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
# 8:5: `einsum` label `a` has size `a` in dim 0 (`a`) of lhs and size `b` in dim 0 (`b`) of rhs  [sharding]
# 8:5: in einsum(f32[a@dp, b], f32[b, a])
# 9:5: the equation `ab,b` cannot be read: it names 2 operands, and there are 1  [sharding]
# 10:5: the equation `abc->a` cannot be read: `abc` names 3 dims of the operand, which has 2  [sharding]
