from typing import Annotated as A

import shtypes as sh


def vector(w: A[sh.Array, "f32[h]"]) -> A[sh.Array, "f32[h]"]:
    return w


def whole(w: A[sh.Array, "f32[h]"]) -> A[sh.Array, "i32[]"]:
    raise NotImplementedError


def g() -> None:
    sh.grad(vector)
    sh.grad(whole)


def pair(w: A[sh.Array, "f32[m]"]) -> tuple[A[sh.Array, "f32[]"], A[sh.Array, "f32[m]"]]:
    return w.sum(), w


def of_a_pair(w: A[sh.Array, "f32[m]"]) -> None:
    sh.grad(pair)(w)
    sh.value_and_grad(pair, has_aux=True)(w)


# mypy says:
# 15:13: a gradient needs a scalar loss, not f32[h]  [sharding]
# 15:13: a gradient is of one number
# 15:13: try: sh.sum(loss) or sh.mean(loss)
# 16:13: a gradient needs a loss of real numbers, not i32[]  [sharding]
# 16:13: try: loss.astype(float)
# 24:13: a gradient needs a scalar loss; `pair` returned tuple  [sharding]
