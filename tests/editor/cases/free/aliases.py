import typing
from collections.abc import Callable
from typing import Annotated as A
from typing import TypeAlias

import shtypes as sh

Acts = A[sh.Array, "f32[seq, batch@dp]"]
Named: TypeAlias = A[sh.Array, "f32[n]"]
SEQ, BATCH = 16, 8
TEXT = f"f32[seq={SEQ}, batch={BATCH}@dp]"
OfText = A[sh.Array, TEXT]
OfNumbers = A[sh.Array, f"f32[{SEQ}, batch={BATCH}@dp]"]
Other = typing.Annotated[sh.Array, "f32[m@tp]"]
Pair = tuple[A[sh.Array, "f32[a@dp]"], A[sh.Array, "f32[b]"]]
Maybe = A[sh.Array, "f32[a@dp]"] | None
Norm = Callable[[A[sh.Array, "f32[a@dp]"]], A[sh.Array, "f32[a]"]]
Tree = dict[str, list[Pair]]


def f(x: Acts, y: Named, z: Other, v: OfText, w: OfNumbers) -> Acts:
    reveal_type(x)
    reveal_type(y)
    reveal_type(z)
    reveal_type(v)
    reveal_type(w)
    return x * 2


def g(pair: Pair, maybe: Maybe, norm: Norm, tree: Tree) -> None:
    first, second = pair
    reveal_type(first)
    reveal_type(second)
    if maybe is not None:
        reveal_type(maybe)
    reveal_type(norm(first))
    norm(second)
    reveal_type(tree["w"][0][1])


def h() -> None:
    Local = A[sh.Array, f"i32[seq={SEQ + 1}, batch={BATCH // 2 - 1}@dp]"]

    def inner(x: Local) -> None:
        reveal_type(x)


# mypy says:
# 22:17: type f32[seq, batch@dp]
# 23:17: type f32[n]
# 24:17: type f32[m@tp]
# 25:17: type f32[seq=16, batch=8@dp]
# 26:17: type f32[16, batch=8@dp]
# 32:17: type f32[a@dp]
# 33:17: type f32[b]
# 35:21: type f32[a@dp]
# 36:17: type f32[a]
# 37:10: argument `1` of `norm` is f32[b], not f32[a@dp]  [sharding]
# 37:10: dim 0 (`a`) is not sharded, and the signature has it sharded over `dp`
# 37:10: dim 0 has size `b`, not `a`
# 38:17: type f32[b]
# 45:21: type i32[seq=17, batch=3@dp]
