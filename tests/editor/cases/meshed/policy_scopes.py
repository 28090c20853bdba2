from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"], i: A[sh.Array, "f32[n]{I:dp}"]) -> None:
    with sh.policy("jax"):
        reveal_type(sh.all_gather(x, "dp"))
    reveal_type(sh.all_gather(x, "dp"))
    reveal_type(i)


# mypy says:
# 8:21: type f32[n]{I:dp}
# 9:17: type f32[n]
# 10:17: type f32[n]{I:dp}
