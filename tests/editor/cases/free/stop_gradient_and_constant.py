from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n]{I:dp}"], u: A[sh.Array, "f32[n]{U:dp}"]) -> None:
    reveal_type(sh.stop_gradient(u))
    reveal_type(sh.constant(x))
    reveal_type(sh.constant(x, to="I"))


# mypy says:
# 7:17: type f32[n]{U:dp}
# 8:17: type f32[n]
# 9:17: type f32[n]{I:dp}
