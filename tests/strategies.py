"""Hypothesis strategies: meshes, types and their texts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import strategies as st

from shtypes.types import Dim, ShType, State, dtypes
from shtypes.types.mesh import Mesh

AXES = ("x", "y", "dp", "tp_2")
NAMES = ("seq", "batch", "d_model", "x")  # a dim may be named as a mesh axis is
DTYPES = (*dtypes.LONG, "key<fry>", "key<rbg>", "key<urbg>")
FLOATS = tuple(name for name in DTYPES if dtypes.differentiable(name))
POLICIES = ("partial", "jax")

policies = st.sampled_from(POLICIES)


@st.composite
def meshes(draw: st.DrawFn, max_axes: int = 4, max_size: int = 3) -> Mesh:
    """Meshes of one axis or more, in any order of names; sizes from 1."""
    names = draw(st.permutations(AXES))[: draw(st.integers(1, max_axes))]
    return Mesh({name: draw(st.integers(1, max_size)) for name in names})


@st.composite
def types(
    draw: st.DrawFn,
    mesh: st.SearchStrategy[Mesh] | None = None,
    dtype: Sequence[str] = DTYPES,
    states: Sequence[State] = tuple(State),
    max_rank: int = 4,
    named: bool = False,
) -> ShType:
    """Types with every axis in any of ``states``; several axes may shard a dim, in any order.

    Args:
        draw: Hypothesis gives it.
        mesh: The meshes.
        dtype: The dtypes.
        states: The states that an axis may be in.
        max_rank: At most so many dims.
        named: Whether dims may have names (no two the same).
    """
    over = draw(meshes() if mesh is None else mesh)
    name = draw(st.sampled_from(dtype))
    rank = draw(st.integers(0, max_rank))
    allowed = [
        s for s in states if (s is not State.SHARDED or rank) and (s is not State.UNREDUCED or dtypes.summable(name))
    ]
    given = {axis: draw(st.sampled_from(allowed)) for axis in over.axis_names}
    on: list[list[str]] = [[] for _ in range(rank)]
    for axis in draw(st.permutations(over.axis_names)):
        if given[axis] is State.SHARDED:
            on[draw(st.integers(0, rank - 1))].append(axis)
            del given[axis]
    names = draw(st.permutations((*NAMES, None, None))) if named else (None,) * rank
    dims = [
        Dim(over.product(axes) * draw(st.integers(0, 3)), tuple(axes), label)
        for axes, label in zip(on, names, strict=False)
    ]
    return ShType(over, name, dims, given)


@st.composite
def spaced(draw: st.DrawFn, text: str) -> str:
    """The text with white space between its words."""
    words = re.findall(r"[A-Za-z_][A-Za-z0-9_]*(?:<\w+>)?|[0-9]+|\.\.\.|\S", text)
    space = st.sampled_from(("", "", " ", "  ", "\n", "\t"))
    return "".join(draw(space) + word for word in words) + draw(space)


@st.composite
def garbled(draw: st.DrawFn) -> str:
    """Texts that are nearly types: a few words of the language in any order, or a type with a word changed."""
    words = [
        *("f32", "bool", "[", "]", "{", "}", "(", ")", ",", ":", "=", "@", "8", "x", "dp", "seq", "_", "...", "U"),
        "S",
    ]
    word = st.sampled_from([*words, "-", "é", " ", "key<fry>", "<", ""])
    text = list(draw(st.sampled_from(["f32[8@x,4]{U:dp}", "f32[seq=4, _@(x,dp)]", "bool[...]{I:x, R:dp}", ""])))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        text[at : at + draw(st.integers(0, 2))] = draw(word)
    return "".join(text)
