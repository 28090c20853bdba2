"""Tables of the prices of reshards, against the plans that run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from shtypes.resharding.costs import CostModel, Link
from shtypes.resharding.planner import plan
from shtypes.solver.axis_states import FRONT, REDUCED, SHARDED, UNREDUCED, typed
from shtypes.solver.reshard_prices import Prices, parts
from shtypes.types.mesh import Mesh

STATES = (REDUCED, UNREDUCED, SHARDED, SHARDED + 1, SHARDED + 2)


def of_plan(mesh: Mesh, src: Sequence[int], dst: Sequence[int]) -> float:
    """Bytes that the plan sends, for each byte of the value."""
    shape = (mesh.size,) * 3
    steps = plan(typed(mesh, "f32", shape, src), typed(mesh, "f32", shape, dst)).steps
    return sum(s.bytes for s in steps if s.kind.communicates) / (4 * math.prod(shape))


def test_tables_hold_the_prices_of_plans_on_one_and_two_axes_and_little_more_on_three() -> None:
    rng = np.random.default_rng(0)
    for sizes in [(2,), (8,), (4, 4), (4, 2), (3, 5), (2, 2, 2), (4, 2, 1), (2, 3, 4)]:
        mesh = Mesh({f"a{i}": n for i, n in enumerate(sizes)})
        prices = Prices(mesh, CostModel(Link(1.0)))
        for _ in range(25):
            src, dst = (tuple(map(int, rng.choice(STATES, len(sizes)))) for _ in range(2))
            found, planned = prices.pairs(np.array([src]), np.array([dst])), of_plan(mesh, src, dst)
            assert (found.sent[0] == 0) == (planned == 0)
            assert found.sent[0] >= planned - 1e-9, (sizes, src, dst)
            assert math.isclose(found.seconds[0], found.sent[0], abs_tol=1e-9)
            if sum(n > 1 for n in sizes) < 3:
                assert math.isclose(found.sent[0], planned, abs_tol=1e-9), (sizes, src, dst)


def test_a_pair_with_many_dims_costs_what_its_pattern_does() -> None:
    prices = Prices(Mesh({"x": 2, "y": 4}), CostModel(Link(1.0)))
    few = prices.pairs(np.array([[SHARDED, SHARDED + 1]]), np.array([[REDUCED, SHARDED]]))
    many = prices.pairs(np.array([[SHARDED + 8, SHARDED + 3]]), np.array([[REDUCED, SHARDED + 8]]))
    assert [float(x[0]) for x in few] == [float(x[0]) for x in many]


def test_one_plan_prices_all_pairs_that_differ_in_the_names_of_equal_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, mesh = np.random.default_rng(0), Mesh({"x": 2, "y": 2, "z": 2})
    rows = rng.choice((*STATES[:4], SHARDED + FRONT, SHARDED + FRONT + 1), (100, 2, 1, 3))
    for links, fewer in (({}, True), ({"y": Link(3.0), "z": Link(2.0)}, False)):
        prices, alone = (Prices(mesh, CostModel(Link(1.0), links)) for _ in range(2))
        monkeypatch.setattr(alone, "_alike", [0, 1, 2])
        for each in (prices, alone):
            monkeypatch.setattr(each, "_costs", {})
        for src, dst in rows:
            one, other = (p.pairs(src, dst) for p in (prices, alone))
            assert math.isclose(one.sent[0], other.sent[0], abs_tol=1e-9), (src, dst)
            assert math.isclose(one.seconds[0], other.seconds[0], abs_tol=1e-9), (src, dst)
        assert (len(prices._costs) < len(alone._costs)) is fewer


def test_links_and_latencies_make_the_time() -> None:
    model = CostModel(Link(10.0, 1.0), {"y": Link(100.0, 2.0)})
    prices = Prices(Mesh({"x": 2, "y": 4}), model)
    gathered = prices.pairs(np.array([[REDUCED, SHARDED]]), np.array([[REDUCED, REDUCED]]))
    assert math.isclose(gathered.seconds[0], 0.75 / 100)
    assert gathered.latency[0] == 3 * 2.0
    reduced = prices.pairs(np.array([[UNREDUCED, UNREDUCED]]), np.array([[REDUCED, REDUCED]]))
    assert math.isclose(reduced.seconds[0], 2 * 7 / 8 / 10)  # at the pace of the slower link


def test_the_parts_of_a_value_are_those_of_the_axes_that_shard_it() -> None:
    assert parts(np.array([[REDUCED, SHARDED], [SHARDED, SHARDED], [UNREDUCED, REDUCED]]), (2, 4)).tolist() == [4, 8, 1]
