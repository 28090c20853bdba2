from typing import Annotated as A

import shtypes as sh


def f(x: A[sh.Array, "f32[8@dp, 4]"], y: A[sh.Array, "f32[n, 4]"], m: int) -> None:
    sh.sum(x, axis=5)
    sh.transpose(x, (0, 2))
    sh.concatenate([x, x], axis=2)
    x.reshape(3, 5)
    x.mean(3)
    x[1, 2, 3]
    sh.split(x, 3, axis=1)
    x & x
    sh.linalg.det(x)
    sh.argmax(x, axis=4).sum()
    reveal_type(sh.split(y, 3))
    reveal_type(sh.linalg.det(y))
    reveal_type(sh.sum(x, axis=m))
    reveal_type(sh.repeat(x, sh.argmax(x, 1), axis=0))


# mypy says:
# 7:5: `sum` does not take `axis=5`  [sharding]
# 7:5: axis 5 is out of bounds for array of dimension 2
# 8:5: `transpose` does not take `axes=(0, 2)`  [sharding]
# 8:5: axis 2 is out of bounds for array of dimension 2
# 9:5: `concatenate` does not take these arguments  [sharding]
# 9:5: axis 2 is out of bounds for array of dimension 2
# 10:5: `reshape` does not take these arguments  [sharding]
# 10:5: cannot reshape array of shape (8, 4) (size 32) into shape (3, 5) (size 15)
# 11:5: `mean` does not take `axis=3`  [sharding]
# 11:5: tuple index out of range
# 12:5: `getitem` does not take these arguments  [sharding]
# 12:5: Too many indices: array is 2-dimensional, but 3 were indexed
# 13:5: `split` does not take these arguments  [sharding]
# 13:5: array split does not result in an equal division: rest is 1
# 14:5: `bitwise_and` cannot be applied to f32 and f32  [sharding]
# 14:5: and does not accept dtype float32 at position 0. Accepted dtypes at position 0 are subtypes of integer, bool.
# 15:5: `det` does not take these arguments  [sharding]
# 15:5: Argument to _det() must have shape [..., n, n], got (8, 4)
# 16:5: `argmax` does not take `axis=4`  [sharding]
# 16:5: tuple index out of range
# 17:17: type list[?]
# 18:17: type ?
# 19:17: type ?
# 20:17: type ?
