"""The search, against all assignments of small programs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.api import load
from shtypes.resharding.costs import CostModel, Link
from shtypes.resharding.devices import Device
from shtypes.solver import elimination, options
from shtypes.solver import search as search_
from shtypes.solver.axis_states import INVARIANT, REDUCED, SHARDED
from shtypes.solver.factors import combined
from shtypes.solver.graph import Graph
from shtypes.solver.minimize import minimize
from shtypes.solver.program import Function
from shtypes.solver.progress import Progress, watching
from shtypes.solver.reshard_prices import Prices
from shtypes.solver.search import Search
from shtypes.solver.starts import by_axis
from shtypes.solver.tables import Costs
from shtypes.solver.terms import dense
from shtypes.types.mesh import Mesh
from tests.end_to_end import some
from tests.solver.models import f32, gpt, gpt_loss, mlp, mlp_loss

load()  # derivatives of typed values, as each name of `sh` does

MACHINE = Device({"f32": 1e3}, bandwidth=1e2)


def searched(f: Any, args: Any, mesh: dict[str, int], **options: Any) -> Search:
    graph = Graph(Function(f, args, (0,)), Mesh(mesh), grad=options.pop("grad", True))
    model = CostModel(Link(10.0, 1e-2), {axis: Link(10.0 + 5 * i, 1e-2) for i, axis in enumerate(mesh)})
    return Search(Costs(graph, Prices(graph.mesh, model), MACHINE, 2.0))


def random_program(seed: int, length: int = 1) -> tuple[Any, Any]:
    """A short program, and its arguments."""
    rng = np.random.default_rng(seed)
    steps: list[Any] = [
        lambda w, x: jnp.tanh(x @ w),
        lambda w, x: (x @ w) * 2,
        lambda w, x: x + w,
        lambda w, x: jnp.exp(x) * w,
    ]
    reduce: Any = [lambda y: y, jnp.sum, lambda y: jnp.sum(y, 0), lambda y: y.T, lambda y: jnp.max(y, 1)][
        int(rng.integers(5))
    ]
    which = [int(i) for i in rng.integers(len(steps), size=length)]
    rows, columns = (int(n) for n in rng.choice([2, 4, 6, 8], 2))
    x, weights = f32(rows, columns), []
    for i in which:
        weights.append(f32(columns, int(rng.choice([4, 8]))) if i < 2 else f32(rows, columns))
        columns = weights[-1].shape[1]

    def run(ws: Any, x: Any) -> Any:
        for i, w in zip(which, ws, strict=True):
            x = steps[i](w, x)
        return reduce(x)

    return run, (weights, x)


def test_transfers_of_nodes_with_the_same_rows_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    search = searched(mlp_loss, mlp(64, 16, 32), {"x": 2, "y": 2})
    point, priced = search.solve(), list[str]()
    transfer = Costs._transfer

    def noting(self: Costs, use: Any, *args: Any) -> Any:
        priced.append(use.place)
        return transfer(self, use, *args)

    monkeypatch.setattr(Costs, "_transfer", noting)
    costs = search.costs
    assert costs.price(point.assignment) == point.cost
    assert not priced
    argument = next(n for n in costs.graph.decisions if n.kind == "argument")
    other = {**point.assignment, argument.id: (0, 0) if any(point.assignment[argument.id]) else (1, 0)}
    costs.transfers(other)
    assert 0 < len(priced) < len(costs.uses) / 2


def test_ops_that_differ_in_what_they_take_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    priced, price = list[str](), Costs._op_cost

    def noting(self: Costs, node: Any, rows: Any) -> Any:
        priced.append(node.op.name)
        return price(self, node, rows)

    monkeypatch.setattr(Costs, "_op_cost", noting)
    costs = searched(lambda x, y, z: (x * y + y * z) * (x * z + y * x), [f32(4, 8)] * 3, {"x": 2}, grad=False).costs
    list(costs.factors({n.id: costs.domain(n, [0], {}) for n in costs.graph.decisions}))
    assert sorted(priced) == ["add", "mul"]


@pytest.mark.one_in(63)
@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize(("mesh", "length"), [({"x": 2}, 2), ({"x": 2, "y": 2}, 1)], ids=["one axis", "two axes"])
def test_the_assignment_costs_least_of_all(mesh: dict[str, int], length: int, seed: int) -> None:
    search = searched(*random_program(seed, length), mesh, grad=bool(seed % 2))
    costs = search.costs
    domains = {n.id: costs.domain(n, range(len(mesh)), {}) for n in costs.graph.decisions}
    byte = 1e-3 * (seed % 3)
    point = search.solve(byte)  # with the prices of the plans that run, from now on
    ids = sorted(domains)
    total = np.zeros([1] * len(ids))
    for over, terms in combined(costs.factors(domains), byte, 0.0).items():
        total = total + dense(terms).reshape([len(domains[i]) if i in over else 1 for i in ids])
    assert total.size == math.prod(map(len, domains.values()))
    rows = [np.flatnonzero((domains[i] == np.array(point.assignment[i])).all(-1)) for i in ids]
    assert math.isclose(total[tuple(int(row) for (row,) in rows)], total.min(), rel_tol=1e-9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mesh", [{"dp": 2}, {"dp": 2, "tp": 2}], ids=str)
def test_what_repeats_is_decided_once_and_costs_as_often(mesh: dict[str, int]) -> None:
    sizes = {"batch": 8, "seq": 8, "d": 16, "heads": 4, "k": 4, "f": 32, "vocab": 64}
    scanned, unrolled = (searched(gpt_loss, gpt(4, scanned=scanned, **sizes), mesh) for scanned in (True, False))
    assert len(unrolled.costs.graph.decisions) < len(scanned.costs.graph.decisions) + 10
    assert unrolled.costs.graph.layers[0][0] == 4
    assert unrolled.solve().seconds <= scanned.solve().seconds * 1.001


def test_the_first_front_is_below_the_bound_on_memory_and_the_bound_below_the_front() -> None:
    search = searched(mlp_loss, mlp(32, 16, 64), {"dp": 2, "tp": 2})
    free = search.solve()
    limit = (float(free.cost.memory) + float(search.solve(1e6).cost.memory)) / 2
    point = search.within(limit)
    assert point.cost.memory <= limit
    assert point.seconds >= free.seconds
    bound = search.bound(limit)
    assert bound is not None
    assert free.seconds * (1 - 1e-9) <= bound <= point.seconds * (1 + 1e-9)
    assert math.isclose(search.bound(None) or 0, free.seconds)
    seconds = [p.seconds for p in search.front(None)]
    assert seconds == sorted(seconds)


def test_what_fits_in_no_memory_is_refused_with_the_least_that_was_found() -> None:
    search = searched(mlp_loss, mlp(32, 16, 64), {"dp": 2})
    with pytest.raises(sh.ShardingTypeError, match="the least that was found needs"):
        search.within(10)


def on_three_axes(seed: int) -> float:
    """What is found for a short program, to the least there is."""
    rng = np.random.default_rng(seed)
    n, d, f = (int(n) for n in rng.choice([8, 16, 32, 64], 3))
    program = lambda w, x: jnp.sum(jnp.tanh(x @ w), 0), (f32(d, f), f32(n, d))
    search, every = (searched(*program, {"a": 2, "b": 2, "c": 2}) for _ in range(2))
    found, bound = search.solve().seconds, search.bound(None)
    every.block = 3
    assert every.exact
    least = every.solve().seconds
    assert bound == pytest.approx(least, rel=1e-9)
    return found / least


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", [range(1), range(1, 35)], ids=str)
def test_on_three_axes_the_best_is_found_and_a_bound_that_is_as_long(seeds: range) -> None:
    assert [on_three_axes(seed) for seed in seeds] == pytest.approx([1.0] * len(seeds), rel=1e-9)


@pytest.mark.parametrize("entries", [40, 80])
def test_what_depends_on_too_much_is_solved_nearly_and_with_a_bound(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = f32(8, 8), f32(8, 8)
    best = searched(lambda w, x: jnp.sum(jnp.tanh(x @ w)), args, {"a": 2, "b": 2}).solve().seconds
    for name in ("MOST_ENTRIES", "QUICK_ENTRIES"):
        monkeypatch.setattr(elimination, name, entries)
    search = searched(lambda w, x: jnp.sum(jnp.tanh(x @ w)), args, {"a": 2, "b": 2})
    assert best * (1 - 1e-9) <= search.solve().seconds <= 1.5 * best
    bound = search.bound(None)
    assert bound is not None
    assert 0.8 * best <= bound <= best * (1 + 1e-9)


def test_a_price_of_reshards_leaves_the_minimum_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    program, mesh = random_program(2, 3), {"x": 2, "y": 2}
    best = searched(*program, mesh).solve()
    monkeypatch.setattr(elimination, "MOST_ENTRIES", 2_500)
    monkeypatch.setattr(elimination, "QUICK_ENTRIES", 1)
    search = searched(*program, mesh)
    assert search.solve(reshard=1e-12).seconds == pytest.approx(best.seconds, rel=1e-9)


def test_an_axis_of_one_device_is_no_decision() -> None:
    search = searched(mlp_loss, mlp(32, 16, 64), {"a": 2, "one": 1, "b": 2})
    other = searched(mlp_loss, mlp(32, 16, 64), {"a": 2, "b": 2})
    other.costs.prices = type(other.costs.prices)(other.costs.graph.mesh, search.costs.prices.model)
    assert search.exact
    assert math.isclose(search.solve().seconds, other.solve().seconds)


def test_a_line_of_which_nothing_is_known_is_named() -> None:
    def f(w: Any, x: Any) -> Any:
        return jnp.sum(jax.experimental.io_callback(lambda y: y, x, x @ w))

    with pytest.raises(sh.ShardingTypeError):
        searched(f, (f32(8, 8), f32(8, 8)), {"x": 2})


@pytest.mark.one_in(67)
@pytest.mark.parametrize("overlap", [0.5, 1.0])
@pytest.mark.parametrize("seed", range(20))
def test_with_overlap_the_bound_is_below_all_assignments_and_the_plan_is_quicker_than_without(
    seed: int, overlap: float
) -> None:
    f, args = random_program(seed)
    search = searched(f, args, {"x": 2})
    plain = search.solve()
    costs = search.costs
    search = Search(costs, overlap=overlap)
    point = search.solve()
    domains = {n.id: [tuple(map(int, row)) for row in costs.domain(n, [0], {})] for n in costs.graph.decisions}
    best = math.inf
    for rows in itertools.islice(itertools.product(*domains.values()), some(200, 800)):
        cost = costs.price(dict(zip(domains, rows, strict=True)))
        best = min(best, cost.seconds + cost.comm - overlap * min(cost.seconds, cost.comm))
    bound = search.bound(None)
    assert bound is not None
    assert bound <= min(best, point.seconds) * (1 + 1e-9)
    assert point.seconds <= plain._replace(overlap=overlap).seconds * (1 + 1e-9)
    assert math.isclose(point.seconds, sum(point.cost[:2]) - overlap * min(point.cost[:2]))


@pytest.mark.nightly
def test_out_of_time_the_first_assignment_is_taken_and_said_to_be_unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    args = mlp(32, 16, 64)
    settled = searched(mlp_loss, args, {"a": 2, "b": 2, "c": 2})
    best = settled.solve()
    assert settled.settled
    late = Search(settled.costs, deadline=0.0)
    point = late.solve()
    assert not late.settled
    assert late.solves < settled.solves
    everywhere = {n.id: settled.costs.first_options(n) for n in settled.costs.graph.decisions}
    assert best.seconds <= point.seconds <= sum(settled.costs.price(everywhere)[:2])
    assert late.solve() == point  # nothing more is looked for
    smallest = late.solve(1e6, needed=True)
    assert smallest.cost.memory < point.cost.memory
    limit = float(smallest.cost.memory)
    assert late.within(limit).cost.memory <= limit


@pytest.mark.nightly
def test_a_search_that_is_stopped_between_two_pairs_keeps_the_better(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(most: int) -> Any:
        return lambda self: self.solves >= most

    search = searched(mlp_loss, mlp(32, 16, 64), {"a": 2, "b": 2, "c": 2})
    best = search.solve().seconds
    found = []
    for minima in (3, 5, 8):
        stopped = Search(search.costs)
        monkeypatch.setattr(Search, "timed_out", property(late(minima)))
        found.append(stopped.solve().seconds)
    assert found == sorted(found, reverse=True)
    assert found[-1] >= best * (1 - 1e-9)


def test_whoever_watches_is_told_how_many_pairs_are_settled() -> None:
    told: list[Progress] = []
    with watching(told.append):
        searched(lambda x: jnp.sum(jnp.sin(x)), (f32(8),), {"a": 2, "b": 2, "c": 2}).solve()
    assert {now.pairs for now in told} == {3}
    assert max(now.settled for now in told) == 3
    assert told[0].best is None
    assert told[-1].best is not None


@pytest.mark.nightly
def test_algorithms_across_shards_are_priced_once_along_axes_of_the_same_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever axes they are, and whatever lies along the others."""
    meshes, priced = [], options.comm_per_byte

    def noted(eqn: Any, mesh: Mesh, *args: Any, **more: Any) -> Any:
        meshes.append(mesh.axis_names)
        return priced(eqn, mesh, *args, **more)

    monkeypatch.setattr(options, "comm_per_byte", noted)
    search = searched(lambda x: jnp.sum(jnp.sin(jnp.cumsum(x, 0))), (f32(16, 8),), {"a": 2, "b": 2, "c": 2})
    search.solve()
    price_all(search.costs)
    assert {*meshes} == {("axis0",), ("axis0", "axis1"), ("axis0", "axis1", "axis2")}


def price_all(costs: Costs) -> int:
    """Prices ops across shards of several axes with all options, whether plans take them or not; returns how many."""
    first, count = {n.id: costs.first_options(n) for n in costs.graph.decisions}, 0
    for n in costs.graph.decisions:
        domain = costs.domain(n, range(len(costs.sizes)), first)
        for row in domain.tolist():
            count += len(costs.price_across({**first, n.id: tuple(row)}, {n.id: domain}))
    return count


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [4, 64])
def test_only_what_a_plan_takes_is_priced_along_several_axes_and_the_plan_is_the_best(rows: int) -> None:
    def f(k: Any, x: Any) -> Any:
        y = jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")
        return jnp.sum(jnp.tanh(jnp.cumsum(jax.lax.conv_general_dilated(y, k, (1, 1), "SAME"), 2)))

    search = searched(f, (f32(2, 2, 3, 3), f32(1, 2, rows, rows)), {"x": 2, "y": 2})
    least = search.solve().seconds
    assert price_all(search.costs)
    search.reset()
    assert math.isclose(search.solve().seconds, least, rel_tol=1e-9)


def test_an_argument_is_replicated_in_one_way_along_all_axes_in_each_step_of_a_search() -> None:
    """A search over one axis at a time would not get from one way to the other: its gradient is summed at once."""
    costs = searched(mlp_loss, mlp(16, 8, 32), {"a": 2, "b": 2, "c": 2}).costs
    arguments = [n for n in costs.graph.decisions if n.kind == "argument" and costs.graph.has_cotangent(n.results[0])]
    assert len(arguments) == 2
    for node in arguments:
        rows = costs.domain(node, [0], {node.id: costs.first_options(node)})
        states = {tuple(row) for row in costs.result_states(node, rows, 0).tolist()}
        assert {(REDUCED,) * 3, (INVARIANT,) * 3} <= states
        assert all(REDUCED not in row or INVARIANT not in row for row in states)
        assert {row[1:] for row in states if row[0] >= SHARDED} == {(REDUCED,) * 2, (INVARIANT,) * 2}


def test_prices_that_are_no_higher_than_was_believed_end_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    search, minima = searched(mlp_loss, mlp(64, 16, 32), {"x": 2, "y": 2}), list[Any]()
    every = {n.id for n in search.costs.graph.decisions}

    def minimized(*args: Any, **options: Any) -> Any:
        minima.append(minimize(*args, **options))
        return minima[-1]

    priced = iter([every])
    monkeypatch.setattr(search.costs, "price_across", lambda *_: next(priced, set()))
    monkeypatch.setattr(search_, "minimize", minimized)
    point = search.solve()
    assert len(minima) == 1
    assert math.isclose(point.seconds, minima[0].total)


def test_two_options_that_an_op_refuses_together_are_refused_in_all_rows() -> None:
    @jax.custom_jvp
    def f(x: Any, b: Any) -> Any:
        return x * 2 + b

    f.defjvp(lambda xs, dots: (f(*xs), dots[0] * 2 + dots[1]))
    costs = searched(f, (f32(8, 8), f32(8)), {"x": 2, "y": 2, "z": 2}, grad=False).costs
    (node,) = (n for n in costs.graph.decisions if n.op is not None and n.op.name == "custom_jvp_call")
    (of_x,) = (i for i, v in enumerate(node.operands) if getattr(v, "name", "") == "x")
    (of_b,) = (i for i, v in enumerate(node.operands) if getattr(v, "name", "") == "b")

    def option(axis: int, operand: int, state: int) -> int:
        every = enumerate(node.options[axis])
        return next(k for k, o in every if o.operands[operand] == state and sum(s >= SHARDED for s in o.operands) == 1)

    pair = option(0, of_b, SHARDED), option(1, of_x, SHARDED + 1)
    rows = np.array([(*pair, 0), (*pair, option(2, of_x, SHARDED))])
    assert np.isfinite(costs.comm_per_byte(node, rows)[0]).all()
    assignment = {n.id: (0, 0, 0) for n in costs.graph.decisions} | {node.id: tuple(rows[0].tolist())}
    assert costs.correct(assignment, types=False)
    assert np.isinf(costs.comm_per_byte(node, rows)[0]).any((0, 2)).all()


def test_each_order_of_the_axes_is_tried_where_a_wide_problem_starts() -> None:
    rows = np.array([*itertools.product(range(3), repeat=2)])
    costs = np.full((3, 3), 4.0)
    costs[0, 0], costs[1, 0], costs[0, 1], costs[2, 1] = 3.0, 2.0, 2.5, 1.0  # the second axis first is the better order
    found = by_axis({(0,): [costs.ravel()]}, {0: rows}, {0: 0}, (0, 1))
    assert rows[found[0]].tolist() == [2, 1]


def test_an_op_equal_to_one_of_a_layer_is_decided_with_the_first_layer() -> None:
    def f(ws: Any, x: Any) -> Any:
        for w in ws:
            before = x
            x = jnp.sin(jnp.cos(jnp.cumsum(x, 0)) @ w) * 2
        return x + jnp.cumsum(before, 0)

    graph = Graph(Function(f, ([f32(8, 8)] * 6, f32(8, 8))), Mesh({"x": 2}), grad=False)
    assert len(graph.decisions) < len(graph.nodes)
    assert all(node.leader in graph.decisions for node in graph.nodes)
