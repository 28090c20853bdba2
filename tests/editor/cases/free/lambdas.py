from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n@dp]"]) -> None:
    double = lambda v: v * 2
    reveal_type(double(x))


# mypy says:
# 8:17: Call to untyped function (unknown) in typed context  [no-untyped-call]
# 8:17: type Any
