"""gather and scatter by dimension numbers against JAX on one device, over random types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jax.lax import GatherDimensionNumbers as Gathered
from jax.lax import ScatterDimensionNumbers as Scattered

import shtypes as sh
from tests.end_to_end import Case, check

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def ids(n: int, *shape: int) -> Any:
    """Positions of a dim of size ``n``, some of them out of range."""
    return rng.integers(-2, n + 2, shape).astype(np.int32)


ROWS = Gathered((1,), (0,), (0,))
INTO_ROWS = Scattered((1,), (0,), (0,))
DIFFERENT = np.array([[3], [1], [7], [-1]], np.int32)


def test_updates_that_a_device_drops_differ_if_all_do() -> None:
    mesh = sh.make_mesh({"x": 4})
    x, u = arr(8, 4), arr(4, 4)
    check(mesh, [
        Case(lambda m, x, i, u: m.scatter_mul(x, i, u, INTO_ROWS, unique_indices=True), (x, DIFFERENT, u),
             ("f32[8@x,4]", "i32[4,1]", "f32[4,4]"), out="f32[8@x,4]"),
        Case(lambda m, x, i, u: x.at[i[:, 0]].multiply(u, unique_indices=True), (x, DIFFERENT, u),
             ("f32[8@x,4]", "i32[4,1]", "f32[4,4]"), out="f32[8@x,4]"),
        Case(lambda m, x, i, u: m.scatter_max(x, i, u, INTO_ROWS), (x, DIFFERENT, u),
             ("f32[8@x,4]", "i32[4,1]", "f32[4,4]"), out="f32[8@x,4]", grad=False),
        Case(lambda m, x, i, u: m.scatter_min(x, i, u, INTO_ROWS), (x, DIFFERENT, u),
             ("f32[8@x,4]", "i32[4,1]", "f32[4,4]"), out="f32[8@x,4]", grad=False),
    ])  # fmt: skip


def test_a_window_of_a_sharded_dim_is_refused_with_prices() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        sh.gather(sh.array(arr(8, 4), "f32[8@x,4]"), ids(8, 4, 1), Gathered((0, 1, 2), (), (0,)), (2, 4))
    assert info.value.what.startswith("`gather` does not take these arguments")
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        sh.gather(sh.array(arr(8, 4), "f32[8@x,4]"), ids(8, 4, 1), Gathered((1, 2), (), (0,)), (2, 4))
    assert info.value.what == "`gather` acts along dim 0, which is sharded on mesh axis `x`"
    assert 'sh.reshard(x, "[8,4@x]")' in str(info.value)


ALONG = ids(8, 8, 4)
#: Ops that find the rows of a device, on operands of which a scope moves the rows first.
MOVED: list[tuple[Callable[..., Any], tuple[Any, ...], tuple[str, ...]]] = [
    (lambda m, x, i: x[i], (arr(8, 4), ids(8, 4) % 8), ("[8@x,4]", "[4@x]")),
    (lambda m, x, i: m.take_along_axis(x, i, 0, mode="clip"), (arr(8, 4), ALONG), ("[8@x,4]", "[8@x,4]")),
    (lambda m, x, i: m.gather(x, i, ROWS, (1, 4), mode="clip"), (arr(8, 4), ids(8, 4, 1)), ("[8@x,4]", "[4@x,1]")),
    (lambda m, x, i, u: x.at[i].set(u), (arr(8, 4), DIFFERENT[:, 0], arr(4, 4)), ("[8@x,4]", "[4@x]", "[4@x,4]")),
    (lambda m, x, i, u: m.scatter_add(x, i, u, INTO_ROWS), (arr(8, 4), ids(8, 4, 1), arr(4, 4)),
     ("[8@x,4]", "[4@x,1]", "[4@x,4]")),
    (lambda m, x: m.dynamic_slice(x, (0, 3), (8, 2)), (arr(8, 8),), ("[8@x,8@y]",)),
]  # fmt: skip


def test_rows_that_a_scope_moves_are_found_where_they_are_then() -> None:
    def moving(f: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with sh.implicit_comm():
                return f(*args)

        return run

    mesh = sh.make_mesh({"x": 2, "y": 2})
    check(mesh, [Case(moving(f), operands, types) for f, operands, types in MOVED])
