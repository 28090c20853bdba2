"""Dims and messages of reductions."""

from __future__ import annotations

import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules.along_dims import reduce_nonlinear, reduce_sum
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from tests.rules.cases import same_shape

MESH = Mesh({"x": 2, "y": 4})


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


@pytest.mark.parametrize(
    ("dims", "keepdims", "result"),
    [
        (0, False, "f32[hidden=16@y]{U:x}"),
        (-1, True, "f32[seq=8@x,1]{U:y}"),
        (None, False, "f32[]{U:(x,y)}"),
        ((0, -1), True, "f32[1,1]{U:(x,y)}"),
        ((), False, "f32[seq=8@x,hidden=16@y]"),
    ],
)
def test_a_sum_is_pending_on_the_axes_of_the_summed_dims(
    dims: int | tuple[int, ...] | None, keepdims: bool, result: str
) -> None:
    (got,) = reduce_sum("sum", t("f32[seq=8@x,hidden=16@y]"), dims, keepdims, "f32").results
    assert (got, got.names) == (t(result), t(result).names)


@pytest.mark.parametrize(
    ("dims", "what"),
    [
        (2, "`sum` has no dim 2: the operand has 2 dims"),
        ((0, -2), "`sum` names a dim twice: (0, -2)"),
    ],
)
def test_dims_that_are_not_there_are_refused(dims: int | tuple[int, ...], what: str) -> None:
    with pytest.raises(ShardingTypeError) as info:
        reduce_sum("sum", t("f32[8,16]"), dims, False, "f32")
    assert info.value.what == what


def test_the_largest_along_a_sharded_dim_needs_all_of_it() -> None:
    with pytest.raises(ShardingTypeError) as info:
        reduce_nonlinear("max", t("f32[seq=8@x,16]"), 0, False, "f32")
    assert str(info.value) == (
        "`max` reduces dim 0 (`seq`), which is sharded on mesh axis `x`\n"
        "  why:   each device holds only its slice of that dim, and the result needs all of it"
    )


def test_an_op_along_a_sharded_dim_needs_all_of_it() -> None:
    assert same_shape("flip", t("f32[8@x,16]"), 1, linear=True).results == (t("f32[8@x,16]"),)
    with pytest.raises(ShardingTypeError, match="`flip` acts along dim 0, which is sharded"):
        same_shape("flip", t("f32[8@x,16]"), 0, linear=True)
    with pytest.raises(ShardingTypeError, match="`softmax` is nonlinear"):
        same_shape("softmax", t("f32[8,16]{U:x}"), 1, linear=False)
