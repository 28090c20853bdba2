from typing import Annotated as A

import shtypes as sh


# names against sizes


def f_0(
    x: A[sh.Array, "f32[n, 8]"], y: A[sh.Array, "f32[8, 8]"], z: A[sh.Array, "f32[m, 8]"], one: A[sh.Array, "f32[1, 8]"]
) -> None:
    reveal_type(x + y)
    reveal_type(x * one)
    x + z


# sizes in parentheses


def f_1(e: A[sh.Array, "f32[k]"], j: A[sh.Array, "f32[j]"], b: A[sh.Array, "f32[k*(j - 1)]"]) -> A[sh.Array, "f32[k*j - 1]"]:
    reveal_type(b)
    reveal_type(sh.kron(e, e[1:]))
    reveal_type(sh.ravel(sh.outer(e, j))[1:])
    reveal_type(sh.ravel(sh.outer(e, j[:-2])))
    return sh.ravel(sh.outer(e, j[1:]))


# sizes of names


def f_2(x: A[sh.Array, "f32[seq=4, batch@dp]"], y: A[sh.Array, "f32[seq, batch@dp]"]) -> None:
    reveal_type(x.reshape(2, 2, -1))
    reveal_type(x * 2)
    reveal_type(x + y)


# reshape with names


def f_3(x: A[sh.Array, "f32[seq, batch@dp, 12]"]) -> None:
    n = x.shape[0]
    reveal_type(x.reshape(n, -1, 3, 4))
    reveal_type(x.reshape(-1))
    reveal_type(sh.expand_dims(x, (0, 2)))
    reveal_type(sh.squeeze(sh.expand_dims(x, 0), 0))


# shapes of arrays


def f_4(x: A[sh.Array, "f32[n@dp, h, w, c]"], y: A[sh.Array, "bf16[n@dp, k]"], z: A[sh.Array, "f32[3, c@tp]"]) -> None:
    reveal_type(x.reshape(x.shape[0], x.shape[1], -1))
    reveal_type(sh.broadcast_to(y, (3, *y.shape)))
    reveal_type(sh.zeros(y.type) + y)
    reveal_type(sh.zeros(x.shape[1:3], y.dtype))
    reveal_type(sh.pad(x, [(0, 0)] * 4))
    for row in z:
        reveal_type(row)
    a, b, _ = z
    reveal_type([a, b])
    first, second = sh.random.split(sh.random.key(0))
    reveal_type(sh.random.normal(first, x.type))
    sh.split(x, x.shape[1], axis=1)


# sizes that the program computes of others


def f_5(x: A[sh.Array, "f32[b@dp, s, d]"], y: A[sh.Array, "f32[b*s, 4*b]"], z: A[sh.Array, "f32[6, 500000]"]) -> None:
    merged = sh.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))
    reveal_type(merged)
    reveal_type(merged + sh.zeros("f32[128@dp, 24]"))
    reveal_type(x.reshape(x.shape[0], x.shape[1] * x.shape[2]))
    reveal_type(sh.ravel(x))
    reveal_type(sh.zeros(y.shape))
    reveal_type(sh.zeros((x.shape[0] - 1, z.shape[0] * 200000, z.shape[1] * 3)))
    reveal_type(sh.zeros((x.shape[0] // 2,)))
    reveal_type(sh.zeros((x.shape[0] // 200,)))
    reveal_type(sh.zeros((x.shape[0] // x.shape[1],)))
    reveal_type(sh.zeros((-x.shape[0] + x.shape[1] + 7,)))


# parts of sizes that have a name


def f_6(x: A[sh.Array, "f32[n, c]"]) -> None:
    reveal_type(x[::2])
    reveal_type(x[:, ::64])


# types of arrays, with another dtype


def f_7(key: A[sh.Array, "key<fry>[]"], x: A[sh.Array, "f32[n@dp, d]"]) -> None:
    reveal_type(sh.random.bernoulli(key, 0.5, x.type))
    reveal_type(sh.where(sh.random.bernoulli(key, 0.5, x.type), x, 0.0))
    reveal_type(sh.random.normal(key, x.type, "bf16"))
    reveal_type(sh.zeros(x.type, "i32"))
    sh.random.randint(key, x.type)
    sh.random.bernoulli(key, 0.5, "f32[8@dp]")


# a part of a size that is not known


def f_parts(x: A[sh.Array, "f32[n@dp, k]"], y: A[sh.Array, "f32[n@dp, 4000]"]) -> None:
    reveal_type(x[:, ::1000])
    reveal_type(sh.arange(0, x.shape[1], 1000))
    reveal_type(sh.pad(y, ((0, 0), (100, 28))))
    reveal_type(sh.reshape(y, (x.shape[0], 8, 500)))


# sizes that a scope gives names


def f_scope(x: A[sh.Array, "f32[batch@dp, k]"], n: int) -> None:
    with sh.dims(batch=16, k=4):
        y = sh.zeros("f32[batch@dp, k]")
        reveal_type(y @ sh.ones("f32[k, 3]"))
        reveal_type(sh.sum(x, axis=1) + y[:, 0])
        with sh.dims(batch=n):
            reveal_type(sh.zeros("f32[batch@dp, 4]"))
    reveal_type(y)


# mypy says:
# 12:17: type ?
# 13:17: type f32[n, 8]
# 14:5: `add` cannot broadcast dim 0 (`n`) of lhs, of size `n`, with dim 0 (`m`) of rhs, of size `m`  [sharding]
# 14:5: in add(f32[n, 8], f32[m, 8])
# 21:17: type f32[k*(j - 1)]
# 22:17: type f32[k*(k - 1)]
# 23:17: type f32[j*k - 1]
# 24:17: type f32[k*(j - 2)]
# 25:12: Incompatible return value type (got "Array[Literal['f32[k*(j - 1)]']]", expected "Array[Literal['f32[j*k - 1]']]")  [return-value]
# 32:17: type f32[2, 2, batch@dp]
# 33:17: type f32[seq=4, batch@dp]
# 34:17: type ?
# 42:17: type ?
# 43:17: type ?
# 44:17: type f32[1, seq, 1, batch@dp, 12]
# 45:17: type f32[seq, batch@dp, 12]
# 52:17: type f32[n@dp, h, c*w]
# 53:17: type bf16[3, n@dp, k]
# 54:17: type bf16[n@dp, k]
# 55:17: type bf16[h, w]
# 56:17: type ?
# 58:21: type f32[c@tp]
# 60:17: type list[f32[c@tp]]
# 62:17: type f32[n@dp, h, w, c]
# 71:17: type f32[b*s@dp, d]
# 72:17: type ?
# 73:17: type f32[b@dp, d*s]
# 74:17: type f32[b*d*s@dp]
# 75:17: type f32[b*s, 4*b]
# 76:17: type f32[b - 1, 1200000, 1500000]
# 77:17: type ?
# 78:17: type ?
# 79:17: type ?
# 80:17: type ?
# 87:17: type ?
# 88:17: type ?
# 95:17: type bool[n@dp, d]
# 96:17: type f32[n@dp, d]
# 97:17: type bf16[n@dp, d]
# 98:17: type i32[n@dp, d]
# 99:5: `randint` draws no `f32` values  [sharding]
# 99:5: randint only accepts integer dtypes, got float32
# 100:5: the type has dtype `f32`, and the array has dtype `bool`  [sharding]
# 100:5: giving a value a type never casts it
# 100:5: try: leave the dtype out of the type
# 107:17: type ?
# 108:17: type ?
# 109:17: type f32[n@dp, 4128]
# 110:17: type f32[n@dp, 8, 500]
# 119:21: type f32[batch=16@dp, 3]
# 120:21: type ?
# 122:25: type ?
# 123:17: type f32[batch=16@dp, k=4]
