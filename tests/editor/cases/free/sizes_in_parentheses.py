from typing import Annotated as A

import shtypes as sh


def f(e: A[sh.Array, "f32[k]"], j: A[sh.Array, "f32[j]"], b: A[sh.Array, "f32[k*(j - 1)]"]) -> A[sh.Array, "f32[k*j - 1]"]:
    reveal_type(b)
    reveal_type(sh.kron(e, e[1:]))
    reveal_type(sh.ravel(sh.outer(e, j))[1:])
    reveal_type(sh.ravel(sh.outer(e, j[:-2])))
    return sh.ravel(sh.outer(e, j[1:]))


# mypy says:
# 7:17: type f32[k*(j - 1)]
# 8:17: type f32[k*(k - 1)]
# 9:17: type f32[j*k - 1]
# 10:17: type f32[k*(j - 2)]
# 11:12: Incompatible return value type (got "Array[Literal['f32[k*(j - 1)]']]", expected "Array[Literal['f32[j*k - 1]']]")  [return-value]
