"""JAX's own explicit mode on the same programs: where it types one, the policy "jax" gives the same type.

Where it does not, one of a few reasons is given; docs/migrating/jax-explicit.md tells them.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import pytest

import shtypes as sh
from tests.meaning import Layout
from tests.peers.compare import answer, combinations
from tests.peers.explicit import Native, native
from tests.peers.oracle import cotangent, forward_is_local
from tests.peers.programs import Program, programs
from tests.rules.cases import to_layout

#: Slices and frames that meet the shards' edges on the size that an axis happens to have; rules never look at it.
ON_THIS_SIZE_ONLY = ("a[", "m.slice", "m.pad(", "m.split(")
_CONTRACTIONS = ("m.einsum(", "m.matmul(", "m.dot(")


def asked(program: Program, given: Sequence[Layout], ours: Layout | None) -> Native:
    """JAX's answer; a contraction asks for the sharding that ours has, if JAX demands that one is named."""
    found = native(program, given)
    demands = found.result is None and "out_sharding" in found.error and program.text.startswith(_CONTRACTIONS)
    return native(program, given, ours) if demands and ours is not None else found


def _one_replicated(layout: Layout) -> Layout:
    return layout._replace(letters=layout.letters.replace("I", "R"))


def reason(program: Program, given: Sequence[Layout], theirs: Layout, ours: Layout | None) -> str:
    """Why JAX's type is another than ours."""
    if ours is not None and not program.differentiated and _one_replicated(theirs) == _one_replicated(ours):
        return "same"  # without a gradient, reduced and invariant are one state
    if not forward_is_local(program, given, theirs):
        return "communicates"
    if ours is None:
        mapped = program.text.removeprefix("m.vmap(lambda x: ")
        return "this size only" if mapped.startswith(ON_THIS_SIZE_ONLY) else "refused"
    pairs = {(a, b) for a, b in zip(theirs.letters, ours.letters, strict=True) if a != b}
    reduced = any("R" in given[i].letters for i in program.differentiated)
    return "loses R" if pairs == {("I", "R")} and reduced else "other"


def answers(program: Program, given: Sequence[Layout]) -> tuple[str, str]:
    """How JAX's answer relates to ours, and both in words."""
    got = answer(program, given)
    ours = to_layout(got.result) if got.result is not None else None
    theirs = asked(program, given, ours)
    mine = ours or got.refusal or got.crash
    shown = f"{program} of {' '.join(map(str, given))}: JAX says {theirs.result}, we say {mine}"
    if theirs.result is None:
        return ("ours alone" if ours is not None else "neither"), shown
    if theirs.gradients is not None:
        wanted = tuple(cotangent(given[i]) for i in program.differentiated)
        assert theirs.gradients == wanted, f"{shown}; JAX's gradients are {theirs.gradients}"
    return ("same" if theirs.result == ours else reason(program, given, theirs.result, ours)), shown


def _compared(
    chosen: Sequence[Program], mesh: tuple[int, ...], count: int
) -> tuple[collections.Counter[str], list[str]]:
    counts: collections.Counter[str] = collections.Counter()
    unexplained = []
    with sh.policy("jax"):
        for program in chosen:
            for given in combinations(program, mesh, count):
                relation, shown = answers(program, given)
                counts[relation] += 1
                if relation in ("refused", "other"):
                    unexplained.append(shown)
    return counts, unexplained


def test_what_jax_types_has_the_same_type_here_or_a_known_reason() -> None:
    counts, unexplained = _compared(programs()[5::60], (2,), 5)
    assert unexplained == []
    assert counts["same"] > 10
    assert counts["ours alone"] > 10


@pytest.mark.nightly
@pytest.mark.parametrize("mesh", [(2,), (2, 2), (2, 4)], ids=str)
@pytest.mark.parametrize("program", programs(), ids=str)
def test_all_that_jax_types_has_the_same_type_here_or_a_known_reason(program: Program, mesh: tuple[int, ...]) -> None:
    _, unexplained = _compared([program], mesh, 125 if len(mesh) == 1 else 40)
    assert unexplained == []


def _layout(text: str) -> Layout:
    """``"4,8@x U"``, on one axis of two devices."""
    dims, _, state = text.partition(" ")
    parts = [d.partition("@") for d in dims.split(",") if d]
    return Layout(
        (2,), tuple(int(n) for n, _, _ in parts), tuple((0,) if on else () for _, _, on in parts), state or "S"
    )


@pytest.mark.one_in(13)
@pytest.mark.parametrize(
    ("text", "given", "theirs", "ours", "why"),
    [
        # a contraction forgets that its operands are reduced
        ("m.einsum('ij,jk->ik', a, w)", ("4,8 R", "8,4 R"), "4,4 I", "4,4 R", "loses R"),
        ("a @ WEIGHT", ("4,8 R",), "4,4 I", "4,4 R", "loses R"),
        # sums and one-sided contractions are finished at once
        ("m.sum(a, 1)", ("4,8@x",), "4 I", "4 U", "communicates"),
        ("m.mean(a, 1)", ("4,8@x",), "4 I", "4 U", "communicates"),
        ("m.einsum('ij,jk->ik', a, w)", ("4,8@x", "8,4 I"), "4,4 I", "4,4 U", "communicates"),
        # an operand is gathered to meet another
        ("m.einsum('ij,jk->ik', a, w)", ("4@x,8", "8@x,4"), "4@x,4", None, "communicates"),
        # what is not pending along a dim is gathered
        ("m.max(a, 1)", ("4,8@x",), "4 I", None, "communicates"),
        ("m.flip(a, 1)", ("4,8@x",), "4,8@x", None, "communicates"),
        ("m.concatenate([a, b], 1)", ("4,8@x", "4,8@x"), "4,16@x", None, "communicates"),
    ],
)
def test_the_reasons_are_those_that_are_told(
    text: str, given: tuple[str, ...], theirs: str, ours: str | None, why: str
) -> None:
    (program,) = (p for p in programs() if p.text == text)
    layouts = tuple(map(_layout, given))
    with sh.policy("jax"):
        relation, shown = answers(program, layouts)
        got = answer(program, layouts).result
    assert relation == why, shown
    assert native(program, layouts).result == _layout(theirs), shown
    assert (got and to_layout(got)) == (ours and _layout(ours)), shown
