"""`concatenate` and `stack` against the meaning oracle, and their messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules.shape import concatenate, pad, stack
from shtypes.rules.typing import NO_CONSTANTS
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.policy import policy
from tests.meaning import Array, Site
from tests.rules.cases import Case, case, problems

MESH = Mesh({"x": 2, "y": 4})


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


def concatenate_case(dim: int, *shapes: tuple[int, ...], constants: frozenset[int] = NO_CONSTANTS) -> Case:
    return case(
        f"concatenate {dim} {shapes} {set(constants)}",
        shapes,
        lambda operands, site: np.concatenate(operands, dim),
        lambda types: concatenate(types, dim, "f32", constants),
        constants=constants,
    )


def stack_case(dim: int, *shapes: tuple[int, ...], constants: frozenset[int] = NO_CONSTANTS) -> Case:
    return case(
        f"stack {dim} {shapes} {set(constants)}",
        shapes,
        lambda operands, site: np.stack(operands, dim),
        lambda types: stack(types, dim, "f32", constants),
        constants=constants,
    )


def pad_case(along: tuple[int, ...], shape: tuple[int, ...], constants: frozenset[int] = NO_CONSTANTS) -> Case:
    """One more on each side of the dims ``along``, linear in what is put there."""

    def apply(operands: Sequence[Array], site: Site) -> Array:
        x, value = operands
        inside = np.pad(x, [(1, 1) if d in along else (0, 0) for d in range(x.ndim)])
        frame = np.pad(np.zeros_like(x), [(1, 1) if d in along else (0, 0) for d in range(x.ndim)], constant_values=1)
        return np.asarray(inside + frame * value)

    result = tuple(n + 2 if d in along else n for d, n in enumerate(shape))
    return case(
        f"pad {along} {shape} {set(constants)}",
        [shape, ()],
        apply,
        lambda types: pad(types, along, result, constants),
        constants=constants,
    )


def cases(n: int) -> list[Case]:
    return [
        concatenate_case(0, (n, n), (2 * n, n)),
        concatenate_case(1, (n, n), (n, n), (n, n)),
        concatenate_case(1, (n, n), (n, n), constants=frozenset({1})),
        concatenate_case(0, (n, n)),
        stack_case(0, (n,), (n,)),
        stack_case(2, (n, n), (n, n)),
        stack_case(0, (), ()),
        stack_case(1, (n,), (n,), constants=frozenset({0})),
        pad_case((0,), (n, n)),
        pad_case((0, 1), (n, n)),
        pad_case((1,), (n, n), frozenset({1})),
    ]


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("index", range(len(cases(2))), ids=[c.op.name for c in cases(2)])
def test_joins_are_what_the_meanings_say(index: int, n: int) -> None:
    assert problems(cases(n)[index], (n,)) == []


@pytest.mark.one_in(13)
@pytest.mark.parametrize("index", [4, 0, 7], ids=lambda i: cases(2)[i].op.name)
def test_joins_are_right_on_two_by_two_devices_and_under_the_other_policy(index: int) -> None:
    with policy("jax"):
        assert problems(cases(2)[index], (2, 2)) == []


@pytest.mark.parametrize(
    ("given", "dim", "result"),
    [
        (["f32[seq=8@x,hidden=4]", "f32[8,hidden=4]"], 1, "f32[seq=8@x,8]"),
        (["f32[seq=8@(x,y),4]", "f32[8@x,2]{U:y}"], 1, None),
        (["f32[seq=8,4]{U:x}", "f32[seq=4,4]"], 0, "f32[12,4]{U:x}"),
        (["f32[seq=8,hidden=4@y]"], 0, "f32[seq=8,hidden=4@y]"),
    ],
)
def test_the_joined_dim_loses_its_name_and_the_others_keep_theirs(
    given: list[str], dim: int, result: str | None
) -> None:
    types = tuple(map(t, given))
    if result is None:
        with pytest.raises(ShardingTypeError, match="cannot combine sharded with unreduced on mesh axis `y`"):
            concatenate(types, dim, "f32")
        return
    (got,) = concatenate(types, dim, "f32").results
    assert (got, got.names) == (t(result), t(result).names)


@pytest.mark.parametrize(
    ("given", "dim", "what"),
    [
        (
            ["f32[8,16]", "f32[8@(x,y),4]"],
            0,
            "`concatenate` acts along dim 0, which is sharded on mesh axes `x`, `y`",
        ),
        (
            ["f32[seq=8,16]", "f32[6,16]"],
            1,
            "`concatenate` cannot join dim 0 (`seq`) of operand 0, of size 8, with dim 0 of operand 1, of size 6",
        ),
        (["f32[8,16]", "f32[8]"], 0, "`concatenate` cannot join arrays of 2 and of 1 dims"),
        (["f32[8]"], 1, "`concatenate` has no dim 1: the operand has 1 dims"),
    ],
)
def test_a_join_that_does_not_fit_says_what_does_not(given: list[str], dim: int, what: str) -> None:
    with pytest.raises(ShardingTypeError) as info:
        concatenate(tuple(map(t, given)), dim, "f32")
    assert info.value.what == what


def test_a_stack_has_as_many_places_as_dims_and_one_more() -> None:
    assert stack((t("f32[8@x]"), t("f32[8]")), -1, "f32").results == (t("f32[8@x,2]"),)
    with pytest.raises(ShardingTypeError, match="`stack` has no dim 2: the result has 2 dims"):
        stack((t("f32[8]"),), 2, "f32")
