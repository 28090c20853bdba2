from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[n, n]"], i: A[sh.Array, "i32[n]"], key: A[sh.Array, "key<fry>[]"]) -> None:
    reveal_type(sh.one_hot(x, 4))
    reveal_type(x >> 1)
    reveal_type(x & i)
    reveal_type(~x)
    reveal_type(~i)
    reveal_type(~(x > 0))
    reveal_type(sh.exp(key))
    reveal_type(sh.sort(sh.random.split(key, 3)))
    reveal_type(sh.sum(sh.random.split(key, 3)))
    reveal_type(sh.random.split(key, 3)[0])


def looked_up(
    x: A[sh.Array, "bool[n, 4]"], i: A[sh.Array, "i32[b@dp]"], j: A[sh.Array, "i32[n, 4]"]
) -> A[sh.Array, "bool[b@dp, 4]"]:
    reveal_type(~sh.take_along_axis(x, j, 1))
    return sh.take(x, i, axis=0)


# mypy says:
# 7:17: `one_hot` needs integers, not float32  [sharding]
# 7:17: type ?
# 8:17: type ?
# 9:17: type ?
# 10:17: type ?
# 11:17: type i32[n]
# 12:17: type bool[n, n]
# 13:17: `exp` cannot be applied to key<fry>  [sharding]
# 13:17: Cannot interpret 'key<fry>' as a data type
# 13:17: type ?
# 14:17: type key<fry>[3]
# 15:17: `sum` does not take these arguments  [sharding]
# 15:17: Cannot interpret 'key<fry>' as a data type
# 15:17: type ?
# 16:17: type key<fry>[]
# 22:17: type bool[n, 4]
