from typing import Annotated as A

import shtypes as sh


def f(
    pair: tuple[A[sh.Array, "f32[n]"], A[sh.Array, "f32[m@dp]"]], many: list[A[sh.Array, "f32[n]"]]
) -> tuple[A[sh.Array, "f32[m@dp]"], A[sh.Array, "f32[n]"]]:
    return pair[1], pair[0]


def g(x: A[sh.Array, "f32[a]"], y: A[sh.Array, "f32[b@dp]"]) -> None:
    reveal_type(f((x, y), [x, x]))
    f((y, x), [x])


# mypy says:
# 13:17: type tuple[f32[b@dp], f32[a]]
# 14:8: argument `pair[0]` of `f` is f32[b@dp], not f32[n]  [sharding]
# 14:8: dim 0 (`n`) is sharded over `dp`, and the signature has it not sharded
# 14:8: fix: sh.reshard(y, "[b]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
# 14:11: argument `pair[1]` of `f` is f32[a], not f32[m@dp]  [sharding]
# 14:11: dim 0 (`m`) is not sharded, and the signature has it sharded over `dp`
# 14:11: fix: sh.reshard(x, "[a@dp]")   [forward: none; backward: none]
# 14:16: argument `many[0]` of `f` is f32[a], not f32[n]  [sharding]
# 14:16: dim 0 has size `a`, and `n` is `b` by `pair[0]`
