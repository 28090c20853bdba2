"""Equations: what they stand for, and what is said of those that stand for nothing."""

from __future__ import annotations

import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules.einsum_like import canonical_equation, einsum
from shtypes.types import ShType
from shtypes.types.mesh import Mesh

MESH = Mesh({"x": 2, "y": 4})


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


@pytest.mark.parametrize(
    ("equation", "ndims", "canonical"),
    [
        ("ij,jk->ik", (2, 2), "ij,jk->ik"),
        (" i j , j k -> i k ", (2, 2), "ij,jk->ik"),
        ("ij,jk", (2, 2), "ij,jk->ik"),
        ("ba", (2,), "ba->ab"),
        ("ii", (2,), "ii->"),
        ("...ij,jk", (4, 2), "abij,jk->abik"),
        ("...i,...i->...", (3, 2), "abi,bi->ab"),
        ("...->...", (2,), "ab->ab"),
        ("a...->...a", (3,), "abc->bca"),
        ("i...->i", (3,), "iab->i"),
        (",->", (0, 0), ",->"),
    ],
)
def test_an_equation_is_written_out_in_full(equation: str, ndims: tuple[int, ...], canonical: str) -> None:
    assert canonical_equation(equation, ndims) == canonical


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ij,jk->iz", "the equation `ij,jk->iz` cannot be read: the result's label `z` is in no operand"),
        ("ij,jk->ii", "the equation `ij,jk->ii` cannot be read: the result names label `i` 2 times"),
        ("i1,jk", "the equation `i1,jk` cannot be read: `1` is not a letter"),
        ("i......,jk", "the equation `i......,jk` cannot be read: `.` is not a letter"),
        ("ij,jk,k", "the equation `ij,jk,k` cannot be read: it names 3 operands, and there are 2"),
        ("ij", "the equation `ij` cannot be read: it names 1 operand, and there are 2"),
        ("ijk,jk", "the equation `ijk,jk` cannot be read: `ijk` names 3 dims of lhs, which has 2"),
        ("ij,...jkl", "the equation `ij,...jkl` cannot be read: `...jkl` names at least 3 dims of rhs, which has 2"),
        ("ij,ij", "`einsum` label `i` has size 8 in dim 0 of lhs and size 16 in dim 0 (`hidden`) of rhs"),
    ],
)
def test_a_bad_equation_is_refused_with_its_reason(equation: str, message: str) -> None:
    with pytest.raises(ShardingTypeError) as info:
        einsum(equation, (t("f32[8,16]"), t("f32[hidden=16,4]")), "f32")
    assert info.value.what == message


@pytest.mark.parametrize(
    ("equation", "operands", "cast", "result"),
    [
        ("ij,jk", ["f32[8,16@(x,y)]", "f32[16@x,32]"], ["f32[8,16@(x,y)]", "f32[16@(x,y),32]"], "f32[8,32]{U:(x,y)}"),
        ("ij,jk", ["f32[8@x,16@y]", "f32[16,32]"], ["f32[8@x,16@y]", "f32[16@y,32]"], "f32[8@x,32]{U:y}"),
        ("i,i,i", ["f32[8@x]", "f32[8@(x,y)]", "f32[8]"], ["f32[8@(x,y)]"] * 3, "f32[]{U:(x,y)}"),
        ("ij,jk", ["f32[8@x,1]", "f32[16,32@y]"], ["f32[8@x,1]", "f32[16,32@y]"], "f32[8@x,32@y]"),
        ("ii->i", ["f32[8,8@x]"], ["f32[8,8@x]"], "f32[8@x]"),
        ("ii,i->i", ["f32[8,8@x]", "f32[8@(x,y)]"], ["f32[8,8@(x,y)]", "f32[8@(x,y)]"], "f32[8@(x,y)]"),
        ("ii,i->i", ["f32[8,8]", "f32[8@x]"], ["f32[8@x,8]", "f32[8@x]"], "f32[8@x]"),
    ],
)
def test_missing_minor_axes_are_sliced(equation: str, operands: list[str], cast: list[str], result: str) -> None:
    typing = einsum(equation, [t(s) for s in operands], "f32")
    assert (list(typing.operands), typing.results) == ([t(s) for s in cast], (t(result),))


@pytest.mark.parametrize(
    ("equation", "operands", "what", "axes"),
    [
        (
            "ij,jk",
            ["f32[8,16@(x,y)]", "f32[16@y,32]"],
            "`einsum` meets label `j` sharded over `(x, y)` in lhs and over `(y)` in rhs",
            ("x", "y"),
        ),
        (
            "ij,jk",
            ["f32[8@y,16]", "f32[16,out=32@y]"],
            "`einsum` meets two different dims sharded on mesh axis `y`: dim 0 of lhs and dim 1 (`out`) of rhs",
            ("y",),
        ),
        (
            "ij,jk",
            ["f32[8,16]{U:x}", "f32[16,32]{U:x}"],
            "`einsum` cannot combine unreduced with unreduced on mesh axis `x`",
            ("x",),
        ),
        (
            "ii->i",
            ["f32[8@x,8@y]"],
            "`einsum` takes a diagonal of the operand (label `i` twice), and both dims are sharded",
            ("x", "y"),
        ),
    ],
)
def test_states_that_do_not_meet_are_refused_with_the_axes_at_fault(
    equation: str, operands: list[str], what: str, axes: tuple[str, ...]
) -> None:
    with pytest.raises(ShardingTypeError) as info:
        einsum(equation, [t(s) for s in operands], "f32")
    assert (info.value.what, info.value.axes) == (what, axes)
    assert info.value.why


def test_the_result_is_named_by_the_first_operand_that_names_a_label() -> None:
    first = einsum("ij,jk->ik", (t("f32[8,16]"), t("f32[16,out=32]")), "f32").results[0]
    second = einsum("ij,jk->ik", (t("f32[seq=8,16]"), t("f32[16,32]")), "f32").results[0]
    assert first == second
    assert (first.names, second.names) == ((None, "out"), ("seq", None))


def test_operands_of_two_meshes_do_not_meet() -> None:
    other = ShType.parse("f32[16,4]", Mesh({"x": 2}))
    with pytest.raises(ShardingTypeError, match="different meshes"):
        einsum("ij,jk", (t("f32[8,16]"), other), "f32")


def test_a_dim_of_size_1_that_is_stretched_cannot_be_sharded() -> None:
    mesh = Mesh({"x": 1})
    lhs, rhs = ShType.parse("f32[8,1@x]", mesh), ShType.parse("f32[16,4]", mesh)
    with pytest.raises(ShardingTypeError, match="on a larger mesh") as info:
        einsum("ij,jk", (lhs, rhs), "f32")
    assert "cannot stretch or drop dim 1 of lhs" in info.value.what
