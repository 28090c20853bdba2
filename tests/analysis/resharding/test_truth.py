"""What the report says of each step is what the simulated devices do and hold."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from shtypes.analysis.describe_plan import action, contents
from shtypes.analysis.device_slices import Holding, holding
from shtypes.analysis.explain_reshard import explain_reshard
from shtypes.resharding import Kind, Plan, Step
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh
from tests.end_to_end import some
from tests.resharding import simulate
from tests.resharding.large import large_shards

#: Meshes and shapes; how many pairs of types.
CASES = [
    (Mesh({"x": 2, "y": 4}), (8, 8), some(25, 120)),  # by default: with an axis that is cut in parts
    (Mesh({"x": 2, "y": 2}), (8,), 60),
    (Mesh({"x": 2, "y": 3}), (6, 6), 60),
    (Mesh({"x": 2, "y": 2, "z": 2}), (8, 8), 120),
    (Mesh({"x": 4, "y": 2}), (8, 1, 8), 60),
    (Mesh({"x": 2, "y": 1, "z": 2}), (4, 6), 60),
    (Mesh({"x": 2, "y": 2}), (4, 4, 2), 60),
    (Mesh({"x": 8, "y": 2}), (16, 8), 60),
    pytest.param(Mesh({"x": 2, "y": 4}), (8, 8), 1500, marks=pytest.mark.nightly),
    pytest.param(Mesh({"x": 4, "y": 2, "z": 2}), (16, 16), 800, marks=pytest.mark.nightly),
    pytest.param(Mesh({"x": 6, "y": 2, "z": 2}), (24, 12), 300, marks=pytest.mark.nightly),
]
LOCAL = (Kind.RELABEL, Kind.MASK, Kind.SLICE, Kind.PLACE)
Family = np.ndarray[Any, Any]


def plans(mesh: Mesh, shape: tuple[int, ...], count: int) -> Iterator[Plan]:
    """The plans of random pairs, forward and backward, as the report has them."""
    types = simulate.all_types(mesh, shape)
    rng = random.Random(0)
    for _ in range(count):
        for _, found in explain_reshard(rng.choice(types), rng.choice(types)).plans:
            yield found


def places(mesh: Mesh) -> list[dict[str, int]]:
    return [dict(zip(mesh.axis_names, device, strict=True)) for device in simulate.devices(mesh)]


def shards(family: Family, mesh: Mesh) -> list[Family]:
    """What each device holds, in the order of the devices."""
    return list(family.reshape(mesh.size, -1))


def taken(value: Family, cell: Holding) -> Family:
    """The elements of the array that a device is said to hold, in their order."""
    indices = [[i for span in spans for i in range(*span)] for spans in cell.spans]
    return value[np.ix_(*indices)].reshape(-1)


def check_held(t: ShType, whole: ShType, value: Family, family: Family) -> list[Holding]:
    """The devices hold what the drawing and the words say of them: which elements, which copies, which terms."""
    cells = [holding(t, place, whole) for place in places(whole.mesh)]
    found = shards(family, whole.mesh)
    terms: dict[Any, dict[Any, Family]] = {}
    for cell, data in zip(cells, found, strict=True):
        known = terms.setdefault(cell.spans, {}).setdefault(cell.term, data)
        np.testing.assert_array_equal(known, data, err_msg=f"{t}: {cell} is no copy")
    for cell in cells:
        total = sum(terms[cell.spans].values())
        np.testing.assert_array_equal(total, taken(value, cell), err_msg=f"{t} holds {cell}")
        assert (cell.term is None) == (not t.axes(State.UNREDUCED))
        assert len(terms[cell.spans]) == t.mesh.product(t.axes(State.UNREDUCED))
    check_words(contents(t, whole, range(whole.ndim)), t, whole, cells, found)
    return cells


def check_words(said: str, t: ShType, whole: ShType, cells: Sequence[Holding], found: Sequence[Family]) -> None:
    """The sentence's numbers are those of every device."""
    size = re.search(r"\(([\d,]+) B\)$", said)
    assert size is not None
    for cell, data in zip(cells, found, strict=True):
        assert int(size[1].replace(",", "")) == 4 * data.size
        said_dims = {}
        for count, n, _, pieces, each, dim in re.findall(
            r"(\d+) of (\d+)( \((\d+) pieces of (\d+)\))? along dim (\d+)", said
        ):
            said_dims[int(dim)] = (int(count), int(n), int(pieces or 1), int(each or count))
        for dim in re.findall(r"dim (\d+) whole", said):
            n = whole.shape[int(dim)]
            said_dims[int(dim)] = (n, n, 1, n)
        if "the whole array" in said:
            said_dims |= {i: (n, n, 1, n) for i, n in enumerate(whole.shape)}
        for i, spans in enumerate(cell.spans):
            lengths = {b - a for a, b in spans}
            count = sum(b - a for a, b in spans)
            assert {said_dims[i]} == {(count, whole.shape[i], len(spans), n) for n in lengths}
        assert math.prod(count for count, *_ in said_dims.values()) == data.size
    assert ("as a term of the sum over" in said) == bool(t.axes(State.UNREDUCED))


def check_action(step: Step, whole: ShType, before: Sequence[Holding], after: Sequence[Holding]) -> None:
    """Who sends what to whom, counted on shards that carry the marks of their owners."""
    said = action(step, whole)
    every = whole.mesh.size
    marks = (1 << np.arange(every)).reshape(*step.src.mesh.axis_sizes, *(1,) * step.src.ndim)
    family = np.broadcast_to(marks, (*step.src.mesh.axis_sizes, *step.src.local_shape)).astype(np.int64)
    got = shards(simulate.run(step, family), whole.mesh)
    senders = [{k for x in set(data.tolist()) for k in range(every) if x >> k & 1} for data in got]
    sent = any(s - {i} for i, s in enumerate(senders))
    assert ("nothing is sent" in said or "nothing is done or sent" in said) == (not sent)
    if step.group > 1 and step.kind.communicates and step.kind is not Kind.PERMUTE:
        assert said.startswith(f"{grouped(len(senders[0]), every)}, ")
        assert all(len(s) == len(senders[0]) for s in senders)
        assert all(s == senders[i] for s in senders for i in s), "groups do not overlap"
    if step.kind is Kind.PERMUTE and step.pieces is not None:
        parts, rounds = map(int, re.findall(r"the (\d+) pieces of its new shard, in (\d+) round", said)[0])
        lacks = [sum(i not in {int(x).bit_length() - 1} for x in data.tolist()) for i, data in enumerate(got)]
        assert max(lacks) == rounds * (got[0].size // parts)
    elif step.kind is Kind.PERMUTE and sent:
        moved = sum(s != {i} for i, s in enumerate(senders))
        assert said.startswith(f"all {every} devices change" if moved == every else f"{moved} of the {every} devices c")
        assert all(len(s) == 1 for s in senders)
        assert len({frozenset(s) for s in senders}) == every
    if step.kind is Kind.ALL_TO_ALL and step.group > 1:
        assert f"in {step.group} along" in said
        for data in got:
            assert {int((data == x).sum()) for x in set(data.tolist())} == {data.size // step.group}
    if step.kind is Kind.MASK and step.group > 1:
        kept = sum(bool(s) for s in senders)
        assert said.startswith(f"{grouped(every // kept, every)}, the first keeps")
    check_dims(step, said, before[0], after[0])


def grouped(n: int, every: int) -> str:
    if n == every:
        return "between the two devices" if n == 2 else f"among all {n} devices"
    return "in each pair of devices" if n == 2 else f"in each group of {n} devices"


def check_dims(step: Step, said: str, before: Holding, after: Holding) -> None:
    """The dims that a step speaks of are those of which a device drops something, or gets something."""
    pairs = [
        [{i for span in spans for i in range(*span)} for spans in ends]
        for ends in zip(before.spans, after.spans, strict=True)
    ]
    grows = step.kind in (Kind.ALL_GATHER, Kind.PLACE)
    wanted = {i for i, (a, b) in enumerate(pairs) if (b - a if grows else a - b)}
    found = re.search(r"dims? (\d+(?:, \d+)*(?: and \d+)?)", said)
    named = {int(n) for n in re.findall(r"\d+", found[1])} if found else set()
    assert named == (wanted if step.kind not in (Kind.PERMUTE, Kind.RELABEL, Kind.MASK, Kind.ALL_REDUCE) else set())


def test_what_is_said_of_large_shards_is_done_too() -> None:
    with large_shards():
        pieces = 0
        for found in plans(Mesh({"x": 2, "y": 2, "z": 2}), (8, 8), some(60, 120)):
            value = np.arange(1, 65).reshape(8, 8)
            family = simulate.split(found.src, value, np.random.default_rng(0))
            cells = check_held(found.src, found.src, value, family)
            for step in found.steps:
                family = simulate.run(step, simulate.seen_as(step.src, family))
                before, cells = cells, check_held(step.dst, found.src, value, family)
                check_action(step, found.src, before, cells)
                pieces += step.pieces is not None
        assert pieces > 5


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("mesh", "shape", "count"), CASES, ids=str)
def test_each_step_does_what_is_said_and_leaves_what_is_said(mesh: Mesh, shape: tuple[int, ...], count: int) -> None:
    rng = np.random.default_rng(0)
    value = np.arange(1, math.prod(shape) + 1).reshape(shape)
    kinds: set[Kind] = set()
    strided = parts = 0
    for found in plans(mesh, shape, count):
        whole = found.src
        family = simulate.split(whole, value, rng)
        cells = check_held(whole, whole, value, family)
        for step in found.steps:
            family = simulate.run(step, simulate.seen_as(step.src, family))
            before, cells = cells, check_held(step.dst, whole, value, family)
            check_action(step, whole, before, cells)
            kinds.add(step.kind)
            strided += any(len(spans) > 1 for spans in cells[0].spans)
            parts += step.dst.mesh is not mesh
        assert [c.part for c in cells] == [holding(found.dst, place).part for place in places(mesh)]
    assert kinds >= {Kind.ALL_GATHER, Kind.SLICE, Kind.ALL_REDUCE, Kind.REDUCE_SCATTER}
    if mesh == Mesh({"x": 2, "y": 4}):
        assert strided
        assert parts


@pytest.mark.parametrize("own", ["", "{V:z}"])
def test_views_say_what_the_axes_and_dims_of_the_steps_are(own: str) -> None:
    mesh = Mesh({"x": 2, "y": 4, "z": 2})
    found = explain_reshard(f"i32[8@x, 8]{own}", f"[8@y, 8]{own}", mesh=mesh)
    assert found.notes(found.forward)[0] == "`y:(1)2`, `y:(2)2`: the axis `y` of 4 devices in parts of 2 and 2, " + (
        "major to minor"
    )
    for a, b in itertools.pairwise(found.forward.steps):
        assert a.dst.local_bytes == b.src.local_bytes
    assert ("of its own value over `z`" in str(found)) == bool(own)
