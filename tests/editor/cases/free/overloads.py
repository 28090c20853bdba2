from typing import Annotated as A, Literal, overload

import shtypes as sh


@overload
def size(x: A[sh.Array, "f32[n@dp, k]"], how: Literal["rows"]) -> A[sh.Array, "f32[n@dp]"]: ...
@overload
def size(x: A[sh.Array, "f32[n@dp, k]"], how: Literal["all"]) -> A[sh.Array, "f32[]{U:dp}"]: ...
def size(x: A[sh.Array, "f32[n@dp, k]"], how: str) -> sh.Array:
    return sh.sum(x, 1) if how == "rows" else sh.sum(x)


def f(x: A[sh.Array, "f32[a@dp, b]"], y: A[sh.Array, "f32[4@dp, 8]"]) -> None:
    reveal_type(size(x, "rows") + sh.sum(x, 1))
    reveal_type(size(y, "all"))
    size(x, 3)


# mypy says:
# 15:17: type ?
# 16:17: type ?
# 17:5: No overload variant of "size" matches argument types "Array[Literal['f32[a@dp, b]']]", "int"  [call-overload]
# 17:5: Possible overload variants:
# 17:5:     def size(x: Array[Any], how: Literal['rows']) -> Array[Literal['f32[n@dp]']]
# 17:5:     def size(x: Array[Any], how: Literal['all']) -> Array[Literal['f32[]{U:dp}']]
