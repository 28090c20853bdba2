"""Names and messages of the rules that only move elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules.shape import broadcast, reshape, squeeze, transpose
from shtypes.rules.typing import Typing
from shtypes.types import ShType
from shtypes.types.mesh import Mesh

MESH = Mesh({"x": 2, "y": 4})


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


@pytest.mark.parametrize(
    ("old", "shape", "new"),
    [
        ("f32[batch=8@x,16@y]", (8, 4, 4), "f32[batch=8@x,4@y,4]"),
        ("f32[32@(x,y)]", (2, -1), "f32[2@x,16@y]"),
        ("f32[32@(x,y)]", (8, 4), "f32[8@(x,y),4]"),
        ("f32[2@x,16@y]", (32,), "f32[32@(x,y)]"),
        ("f32[8@x,1,4]", (32,), "f32[32@x]"),
        ("f32[8,seq=4@y]", (2, 4, 1, 4), "f32[2,4,1,seq=4@y]"),
        ("f32[8,4]{U:x,V:y}", (32,), "f32[32]{U:x,V:y}"),
        ("f32[0@y,4]", (4, 0), "f32[4@y,0]"),
        ("f32[0,4@y]", (0, 4, 1), "f32[0,4@y,1]"),
        ("f32[0@y,n=8]", (0, 2), "f32[0@y,2]"),
        ("f32[]", (1, 1), "f32[1,1]"),
        ("f32[batch=8,1@z]", (8, 1), "f32[batch=8,1@z]"),
    ],
)
def test_a_reshape_deals_the_axes_major_to_minor(old: str, shape: tuple[int, ...], new: str) -> None:
    mesh = Mesh({"x": 2, "y": 4, "z": 1})
    (got,) = reshape(ShType.parse(old, mesh), shape).results
    wanted = ShType.parse(new, mesh)
    assert (got, got.names) == (wanted, wanted.names)


@pytest.mark.parametrize(
    ("old", "shape", "what"),
    [
        (
            "f32[8,16@y]",
            (128,),
            "`reshape` from (8, 16) to (128,) merges dim 1, sharded on mesh axis `y`, behind dim 0",
        ),
        ("f32[32@(x,y)]", (2, 2, 8), "`reshape` from (32,) to (2, 2, 8) cannot keep mesh axis `y` whole"),
        ("f32[8,16]", (3, -1), "`reshape` cannot turn 128 elements of shape (8, 16) into shape (3, -1)"),
        ("f32[8,16]", (-1, -1), "`reshape` cannot turn 128 elements of shape (8, 16) into shape (-1, -1)"),
    ],
)
def test_a_reshape_that_would_move_elements_between_devices_is_refused(
    old: str, shape: tuple[int, ...], what: str
) -> None:
    with pytest.raises(ShardingTypeError) as info:
        reshape(t(old), shape)
    assert info.value.what == what


def test_the_same_elements_stay_on_each_device_there_and_back() -> None:
    x = t("f32[2@x,16@y,3]")
    (flat,) = reshape(x, (96,)).results
    assert reshape(flat, x.shape).results == (x,)


def test_names_move_with_their_dims() -> None:
    x = t("f32[a=8@x,b=16]")
    assert transpose(x).results[0].names == ("b", "a")
    assert squeeze(broadcast(x, (x.shape[0], 1, x.shape[1]), (0, 2)).results[0]).results[0].names == ("a", "b")
    assert broadcast(x, (3, 8, 16), (1, 2)).results[0].names == (None, "a", "b")


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: transpose(x, (0, 0)), "`transpose` names a dim twice: (0, 0)"),
        (lambda x: transpose(x, (0,)), "`transpose` needs each of the 2 dims once, not (0,)"),
        (lambda x: squeeze(x, 0), "`squeeze` cannot drop dim 0 of size 8"),
        (lambda x: broadcast(x, (8, 17), (0, 1)), "`broadcast` cannot stretch dim 1 of size 16 to size 17"),
        (lambda x: broadcast(x, (8, 16), (1, 0)), "`broadcast` needs 2 increasing dims of 2, not (1, 0)"),
    ],
)
def test_dims_that_do_not_fit_are_refused(call: Callable[[ShType], Typing], what: str) -> None:
    with pytest.raises(ShardingTypeError) as info:
        call(t("f32[8,16]"))
    assert info.value.what == what


@pytest.mark.parametrize(
    "call",
    [squeeze, lambda x: reshape(x, (8,)), lambda x: broadcast(x, (8, 4), (0, 1))],
    ids=["squeeze", "reshape", "broadcast"],
)
def test_a_dim_of_size_1_over_an_axis_of_size_1_is_not_dropped(call: Callable[[ShType], Typing]) -> None:
    with pytest.raises(ShardingTypeError, match="cannot stretch or drop dim 1"):
        call(ShType.parse("f32[8,1@z]", Mesh({"z": 1})))
