from typing import Annotated as A

import shtypes as sh


def outer(x: A[sh.Array, "f32[n, m]"], y: A[sh.Array, "f32[k, m]"]) -> None:
    def inner(z: A[sh.Array, "f32[n, m]"]) -> A[sh.Array, "f32[n, m]"]:
        reveal_type(z + x)
        return z

    reveal_type(inner(x))
    inner(y)

    def free(z: A[sh.Array, "f32[a]"]) -> A[sh.Array, "f32[a]"]:
        return z

    reveal_type(free(x[0]))


# mypy says:
# 8:21: type f32[n, m]
# 11:17: type f32[n, m]
# 12:11: argument `z` of `inner` is f32[k, m], not f32[n, m]  [sharding]
# 12:11: dim 0 has size `k`, not `n`
# 17:17: type f32[m]
