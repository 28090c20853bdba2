"""Prices of reshards by shortest paths, against the plans that run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from shtypes.resharding.costs import CostModel, Link
from shtypes.resharding.planner import plan
from shtypes.solver.axis_states import REDUCED, SHARDED, UNREDUCED, shown, typed
from shtypes.solver.reshard_prices import Prices, parts, pattern
from shtypes.types.mesh import Mesh

STATES = (REDUCED, UNREDUCED, SHARDED, SHARDED + 1, SHARDED + 2)


def of_plan(mesh: Mesh, src: Sequence[int], dst: Sequence[int]) -> float:
    """Bytes that the plan sends, for each byte of the value."""
    shape = (mesh.size,) * 3
    steps = plan(typed(mesh, "f32", shape, src), typed(mesh, "f32", shape, dst)).steps
    return sum(s.bytes for s in steps if s.kind.communicates) / (4 * math.prod(shape))


def patterns(axes: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    each = list(itertools.product(STATES, repeat=axes))
    return sorted(
        {pattern(a, b) for a in each for b in each if max(*pattern(a, b)[0], *pattern(a, b)[1]) < SHARDED + 3}
    )


@pytest.mark.parametrize("size", [2, 3, 8])
def test_on_one_axis_they_are_those_of_the_plans(size: int) -> None:
    mesh = Mesh({"x": size})
    prices = Prices(mesh, CostModel(Link(1.0)))
    for src, dst in patterns(1):
        found = prices.table(np.array([src]), np.array([dst]))
        assert math.isclose(found.sent[0, 0], of_plan(mesh, src, dst), abs_tol=1e-9), (src, dst)
        assert math.isclose(found.seconds[0, 0], found.sent[0, 0], abs_tol=1e-9)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("chunk", range(6))
def test_on_two_axes_alike_they_are_those_of_the_plans(chunk: int) -> None:
    mesh = Mesh({"x": 4, "y": 4})
    prices = Prices(mesh, CostModel(Link(1.0)))
    wrong = []
    for src, dst in patterns(2)[chunk::6]:
        sent, planned = prices.table(np.array([src]), np.array([dst])).sent[0, 0], of_plan(mesh, src, dst)
        if not math.isclose(sent, planned, abs_tol=1e-9):
            wrong.append((*map(shown, src), "to", *map(shown, dst), float(sent), planned))
    assert wrong == []


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sizes", [(4, 2), (2, 2, 2)], ids=str)
def test_they_are_never_below_the_plans_by_more_than_parts_of_axes_save(sizes: tuple[int, ...]) -> None:
    mesh = Mesh({f"a{i}": n for i, n in enumerate(sizes)})
    prices = Prices(mesh, CostModel(Link(1.0)))
    rng = np.random.default_rng(0)
    for _ in range(40):
        src, dst = (tuple(map(int, rng.choice(STATES, len(sizes)))) for _ in range(2))
        sent = prices.table(np.array([src]), np.array([dst])).sent[0, 0]
        planned = of_plan(mesh, src, dst)
        assert (sent == 0) == (planned == 0)
        if len(sizes) < 3:
            assert sent >= planned - 1e-9


def test_a_pair_with_many_dims_costs_what_its_pattern_does() -> None:
    prices = Prices(Mesh({"x": 2, "y": 4}), CostModel(Link(1.0)))
    few = prices.table(np.array([[SHARDED, SHARDED + 1]]), np.array([[REDUCED, SHARDED]]))
    many = prices.table(np.array([[SHARDED + 8, SHARDED + 3]]), np.array([[REDUCED, SHARDED + 8]]))
    assert [float(x[0, 0]) for x in few] == [float(x[0, 0]) for x in many]


def test_links_and_latencies_make_the_time() -> None:
    model = CostModel(Link(10.0, 1.0), {"y": Link(100.0, 2.0)})
    prices = Prices(Mesh({"x": 2, "y": 4}), model)
    gathered = prices.table(np.array([[REDUCED, SHARDED]]), np.array([[REDUCED, REDUCED]]))
    assert math.isclose(gathered.seconds[0, 0], 0.75 / 100)
    assert gathered.latency[0, 0] == 3 * 2.0
    reduced = prices.table(np.array([[UNREDUCED, UNREDUCED]]), np.array([[REDUCED, REDUCED]]))
    assert math.isclose(reduced.seconds[0, 0], 2 * 7 / 8 / 10)  # at the pace of the slower link


def test_the_parts_of_a_value_are_those_of_the_axes_that_shard_it() -> None:
    assert parts(np.array([[REDUCED, SHARDED], [SHARDED, SHARDED], [UNREDUCED, REDUCED]]), (2, 4)).tolist() == [4, 8, 1]
