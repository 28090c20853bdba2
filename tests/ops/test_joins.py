"""Joins and splits against JAX on one device, over random types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import Case, check, host, sampled, some

pytestmark = pytest.mark.one_in(4)

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def _weighted(parts: Any) -> Any:
    """Each part in the result, differently; a part that is not used has no cotangent."""
    total = parts[0] * 2.0
    for i, part in enumerate(parts[2:], 3):
        total = total + part * float(i)
    return total


EXPRESSIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "concatenate 0": (lambda m, a, b: m.concatenate([a, b]), (arr(4, 4), arr(2, 4))),
    "concatenate 1": (lambda m, a, b, c: m.concatenate([a, b, c], 1), (arr(4, 4), arr(4, 2), arr(4, 4))),
    "concatenate all": (lambda m, a, b: m.concatenate([a, b], axis=None), (arr(4, 2), arr(4))),
    "concatenate twice the same": (lambda m, a: m.concatenate([a, a * 2.0], -1), (arr(4, 4),)),
    "concatenate one": (lambda m, a: m.concatenate([a]), (arr(4, 4),)),
    "concatenate dtypes": (
        lambda m, a, b: m.concatenate([a, b], 1),
        (arr(4, 4), rng.integers(0, 9, (4, 2)).astype(np.int32)),
    ),
    "stack 0": (lambda m, a, b: m.stack([a, b]), (arr(4, 4), arr(4, 4))),
    "stack -1": (lambda m, a, b: m.stack([a, b], -1), (arr(4, 4), arr(4, 4))),
    "stack scalars": (lambda m, a, b: m.stack([a, b, a]), (arr(), arr())),
    "hstack": (lambda m, a, b: m.hstack([a, b]), (arr(4), arr(2))),
    "vstack": (lambda m, a, b: m.vstack([a, b]), (arr(4), arr(2, 4))),
    "dstack": (lambda m, a, b: m.dstack([a, b]), (arr(4, 4), arr(4, 4))),
    "dstack vectors": (lambda m, a, b: m.dstack([a, b]), (arr(4), arr(4))),
    "column_stack": (lambda m, a, b: m.column_stack([a, b]), (arr(4), arr(4, 2))),
    "split": (lambda m, a: _weighted(m.split(a, 4, 1)), (arr(4, 8),)),
    "split at": (lambda m, a: m.concatenate(m.split(a, [1, 5], 1)[1:], 1), (arr(4, 8),)),
    "array_split": (lambda m, a: m.array_split(a, 3)[1] * 2.0, (arr(8, 2),)),
    "hsplit": (lambda m, a: _weighted(m.hsplit(a, 2)), (arr(4, 4),)),
    "vsplit": (lambda m, a: _weighted(m.vsplit(a, 2)), (arr(4, 4),)),
    "dsplit": (lambda m, a: _weighted(m.dsplit(a, 2)), (arr(2, 2, 4),)),
    "unstack": (lambda m, a: _weighted(m.unstack(a, axis=1)), (arr(4, 3, 2),)),
    "stack of a value": (lambda m, a: m.stack(a, 1), (arr(4, 2),)),
}


def test_every_join_that_types_is_right_forward_and_backward() -> None:
    mesh = sh.make_mesh({"x": 2, "y": 2})
    cases = [
        case
        for seed, (name, (fn, operands)) in enumerate(EXPRESSIONS.items())
        for case in sampled(mesh, fn, *operands, id=name, count=some(2, 4), seed=seed)
    ]
    assert len(cases) > len(EXPRESSIONS) / 2
    check(mesh, cases)


def test_joins_of_eager_values_are_right() -> None:
    mesh = sh.make_mesh({"x": 2})
    cases = [
        case
        for seed, (name, (fn, operands)) in enumerate(list(EXPRESSIONS.items())[:: some(5, 1)])
        for case in sampled(mesh, fn, *operands, id=name, count=1, seed=seed)
    ]
    check(mesh, cases, eager=True)


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_joins_have_the_types_that_the_law_gives(policy: Any) -> None:
    mesh = sh.make_mesh({"x": 2})
    join: Callable[..., Any] = EXPRESSIONS["concatenate 0"][0]
    a, b = EXPRESSIONS["concatenate 0"][1]
    with sh.policy(policy):
        check(
            mesh,
            [
                Case(join, (a, b), ("[4,4]{U:x}", "[2,4]{R:x}"), out="[6,4]{U:x}"),
                Case(join, (a, b), ("[4,4@x]", "[2,4]{I:x}"), out="[6,4@x]"),
                Case(join, (a, b), ("[4,4]{U:x}", None), out="[6,4]{U:x}"),
                Case(EXPRESSIONS["stack 0"][0], (a, a), ("[4@x,4]", "[4@x,4]"), out="[2,4@x,4]"),
            ],
        )


def test_gradients_of_joins_and_splits_print_as_what_they_are() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        a, b = sh.array(arr(4, 4), "[4@x,4]"), sh.array(arr(4, 2), "[4@x,2]")

        def loss(a: Any, b: Any) -> Any:
            joined = sh.concatenate([a, b], 1)
            return sh.all_reduce(sh.sum(joined * joined), to="I").to_jax()

        text = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(a, b))
    assert "transpose(concatenate)" in text
    assert "jvp(" not in text


def test_joins_map_over_a_dim() -> None:
    x, y = arr(3, 4), arr(2)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        a, b = sh.array(x, "[3,4]"), sh.array(y, "[2]")
        joined = sh.vmap(lambda row: sh.concatenate([row, b]))(a)
        both = sh.vmap(lambda row: sh.stack(sh.split(row, 2), 1))(a)
        np.testing.assert_array_equal(host(joined), np.stack([np.concatenate([r, y]) for r in x]))
        np.testing.assert_array_equal(host(both), np.stack([np.stack(np.split(r, 2), 1) for r in x]))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda a: sh.concatenate([a, a]), "`concatenate` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda a: sh.concatenate([]), "`concatenate` does not take these arguments"),
        (lambda a: sh.concatenate([sh.sum(a)]), "`concatenate` does not take these arguments"),
        (lambda a: sh.split(a, 2), "`split` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda a: sh.split(a, 3, 1), "`split` does not take these arguments"),
        (sh.unstack, "`unstack` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda a: sh.unstack(sh.sum(a)), "`unstack` does not take these arguments"),
    ],
)
def test_a_join_that_does_not_type_says_why(call: Callable[..., Any], what: str) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        call(sh.array(arr(4, 4), "[4@x,4]"))
    assert info.value.what == what
    assert "test_joins.py" in info.value.where


def test_a_join_along_a_sharded_dim_offers_priced_fixes() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        a = sh.array(arr(4, 4), "[4@x,4]")
        with pytest.raises(sh.ShardingTypeError) as info:
            sh.concatenate([a, a])
    assert 'sh.reshard(lhs, "[4,4@x]"); sh.reshard(rhs, "[4,4@x]")' in [f.code for f in info.value.fixes]
