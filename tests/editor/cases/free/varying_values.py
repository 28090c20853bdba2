from typing import Annotated as A

import shtypes as sh


def f(v: A[sh.Array, "f32[n]{V:dp}"], x: A[sh.Array, "f32[n@dp]"], r: A[sh.Array, "f32[n]"]) -> None:
    reveal_type(v * r)
    reveal_type(sh.exp(v))
    v + x
    sh.reshard(v, "[...]")


# mypy says:
# 7:17: type f32[n]{V:dp}
# 8:17: type f32[n]{V:dp}
# 9:5: `add` cannot combine varying with sharded on mesh axis `dp`  [sharding]
# 9:5: lhs is a family of values, one per device, and each device holds only a slice of rhs, which has one value
# 9:5: in add(f32[n]{V:dp}, f32[n@dp])
# 9:5: fix: sh.reshard(x, "[n]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
# 10:5: cannot reshard f32[n]{V:dp} to f32[n]: only one of them varies over mesh axis `dp`  [sharding]
# 10:5: a varying value is a family of values without a global meaning, so no move keeps what it denotes
# 10:5: try: sh.lax.psum(x, "dp", to="reduced") adds the values
