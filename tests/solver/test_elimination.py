"""Elimination, against the sum of all tables over all combinations."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from shtypes.solver import bounds, elimination
from shtypes.solver.bounds import Minimum, narrowed, total_of
from shtypes.solver.elimination import Core, eliminate
from shtypes.solver.minimize import local_search, minimize, to_fix
from shtypes.solver.terms import as_terms, dense


def random_problem(seed: int) -> tuple[dict[int, int], dict[tuple[int, ...], np.ndarray]]:
    rng = np.random.default_rng(seed)
    sizes = {v: int(rng.integers(1, 5)) for v in range(7)}
    tables = {}
    for _ in range(int(rng.integers(5, 12))):
        ids = tuple(sorted(map(int, rng.choice(7, int(rng.integers(1, 4)), replace=False))))
        tables[ids] = rng.normal(size=[sizes[v] for v in ids])
    return sizes, tables


@pytest.mark.parametrize("seed", range(12))
def test_the_minimum_is_that_of_all_combinations(seed: int) -> None:
    sizes, tables = random_problem(seed)

    def total(values: tuple[int, ...]) -> float:
        return sum(float(t[tuple(values[v] for v in ids)]) for ids, t in tables.items())

    best = min(map(total, itertools.product(*(range(n) for n in sizes.values()))))
    chosen, value = eliminate(sizes, tables)
    assert math.isclose(value, best, rel_tol=1e-12, abs_tol=1e-12)
    assert math.isclose(total(tuple(chosen[v] for v in sizes)), best, rel_tol=1e-12, abs_tol=1e-12)


def test_the_order_that_adds_fewest_pairs_is_taken_where_it_needs_smaller_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(1821)
    sizes = {v: int(rng.integers(2, 6)) for v in range(7)}
    pairs = [tuple(sorted(map(int, rng.choice(7, 2, replace=False)))) for _ in range(11)]
    by_size, by_pairs = (elimination._order(sizes, pairs, by_fill=by_fill) for by_fill in (False, True))
    assert (by_size.width, by_pairs.width) == (720, 160)
    tables = {ids: rng.normal(size=[sizes[v] for v in ids]) for ids in pairs}
    least = eliminate(sizes, tables)
    monkeypatch.setattr(elimination, "QUICK_ENTRIES", 100)
    values, total = eliminate(sizes, tables)
    assert values == least[0]
    assert math.isclose(total, least[1])


def test_an_order_is_found_once_until_tables_change(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, tables = random_problem(0)
    found: list[bool] = []

    class Counted(elimination.Scopes):
        def __init__(self, *args: Any, by_fill: bool = False) -> None:
            found.append(by_fill)
            super().__init__(*args, by_fill=by_fill)

    monkeypatch.setattr(elimination, "Scopes", Counted)
    core = Core(sizes, tables)
    for _ in range(2):
        core.order(math.inf)
    core.eliminate(math.inf, lambda: None)
    assert found == [False]


def test_no_larger_tables_are_made_where_the_minimum_is_far_above_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    sizes = dict.fromkeys(range(9), 4)
    pairs = itertools.combinations(sizes, 2)
    tables: dict[tuple[int, ...], Any] = {ids: rng.permutation(1 - np.eye(4)) for ids in pairs}  # each may be free
    least = eliminate(sizes, tables)[1]
    monkeypatch.setattr(elimination, "QUICK_ENTRIES", 64)
    monkeypatch.setattr(elimination, "MOST_ENTRIES", 640)
    asked: list[float] = []
    run = Core.eliminate

    def eliminated(core: Core, entries: float, tick: Any) -> Any:
        asked.append(entries)
        return run(core, entries, tick)

    monkeypatch.setattr(Core, "eliminate", eliminated)
    found = minimize(sizes, tables)
    assert max(n for n in asked if n < math.inf) == 1
    assert found.bound < found.total == least


def test_what_has_one_value_may_meet_in_any_number() -> None:
    sizes = {0: 2, **dict.fromkeys(range(1, 100), 1)}
    tables: dict[tuple[int, ...], Any] = {(0, v): np.array([[3.0], [1.0]]) for v in range(1, 100)}
    assert eliminate(sizes, tables) == ({0: 1, **dict.fromkeys(range(1, 100), 0)}, 99.0)


@pytest.mark.parametrize("seed", range(4))
def test_tables_that_are_not_made_as_a_whole_have_the_same_minimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, tables = random_problem(seed)
    chosen, value = eliminate(sizes, tables)
    monkeypatch.setattr(elimination, "_BLOCK", 1)
    again, same = eliminate(sizes, tables)
    assert again == chosen
    assert math.isclose(same, value)  # parts may be added in another order


@pytest.mark.parametrize("seed", range(12))
def test_what_is_too_wide_is_nearly_the_minimum_with_small_tables(seed: int) -> None:
    sizes, tables = random_problem(seed)
    _, value = eliminate(sizes, tables)
    first = to_fix(sizes, as_terms(tables), 12, sizes)
    chosen, found = local_search(sizes, tables, 12, {})
    assert not to_fix({v: 1 if v in first else n for v, n in sizes.items()}, as_terms(tables), 12, sizes)
    assert math.isclose(found, sum(float(t[tuple(chosen[v] for v in ids)]) for ids, t in tables.items()))
    assert value - 1e-9 <= found <= value + 2
    assert first or math.isclose(found, value)
    begin = dict.fromkeys(sizes, 0)
    _, other = local_search(sizes, tables, 12, begin)
    assert other <= sum(float(t[tuple(begin[v] for v in ids)]) for ids, t in tables.items()) + 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_values_that_always_cost_more_are_dropped_and_never_all_of_equal_ones(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, tables = random_problem(seed)
    alone = {(v,): np.concatenate([np.zeros(n), np.zeros(n), np.full(n, 9.0)]) for v, n in sizes.items()}
    tables = {ids: np.tile(table, [3] * table.ndim) for ids, table in tables.items()}  # each value thrice, one dear
    for ids, table in alone.items():
        tables[ids] = tables.get(ids, np.zeros(table.shape)) + table
    sizes = {v: 3 * n for v, n in sizes.items()}
    core = Core(sizes, tables)
    core.drop_dominated(lambda: None)
    assert all(n <= sizes[v] * 2 // 3 for v, n in core.sizes.items())
    assert all(len(rows) and (rows < sizes[v] * 2 // 3).all() for v, rows in core.rows.items())
    _, value = eliminate(sizes, tables)
    found = minimize(sizes, tables)
    assert found.exact
    assert math.isclose(found.total, value)
    assert math.isclose(value, sum(float(t[tuple(found.values[v] for v in ids)]) for ids, t in tables.items()))
    monkeypatch.setattr(elimination, "QUICK_ENTRIES", 40)
    assert math.isclose(minimize(sizes, tables).total, value)


def test_values_are_compared_again_only_where_tables_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def none_dominated(tables: Any, n: int) -> Any:
        compared.append(n)
        return np.ones(n, bool)

    monkeypatch.setattr(elimination, "_undominated", none_dominated)
    sizes = {v: 2 + v for v in range(6)}  # a chain
    core = Core(sizes, {(v, v + 1): np.zeros((2 + v, 3 + v)) for v in range(5)})

    def compared_now() -> list[int]:
        compared.clear()
        core.drop_dominated(lambda: None)
        return compared

    assert compared_now() == [2, 3, 4, 5, 6, 7]
    assert compared_now() == []
    core.drop({3: np.arange(5) < 4})
    assert compared_now() == [4, 4, 6]
    core.eliminate(6, lambda: None)
    assert compared_now() == [3]


@pytest.mark.parametrize("seed", range(12))
def test_values_that_cost_more_than_known_ones_are_dropped_until_the_rest_is_minimized_exactly(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, tables = random_problem(seed)
    tables = {ids: table - table.min() for ids, table in tables.items()}
    _, value = eliminate(sizes, tables)
    monkeypatch.setattr(elimination, "QUICK_ENTRIES", 12)
    monkeypatch.setattr(elimination, "MOST_ENTRIES", 40)
    found = minimize(sizes, tables)
    assert math.isclose(found.total, sum(float(t[tuple(found.values[v] for v in ids)]) for ids, t in tables.items()))
    assert found.bound <= value * (1 + 1e-9) <= found.total * (1 + 2e-9)
    assert math.isclose(found.total, value, rel_tol=1e-9) or not found.exact


@pytest.mark.parametrize("seed", range(12))
def test_a_small_sum_is_returned_with_a_bound_if_that_is_asked_for(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, tables = random_problem(seed)
    _, value = eliminate(sizes, tables)
    monkeypatch.setattr(elimination, "QUICK_ENTRIES", 4)
    monkeypatch.setattr(elimination, "MOST_ENTRIES", 10)
    proven, near = (minimize(sizes, tables, proves=proves) for proves in (True, False))
    assert all(found.bound - 1e-9 <= value <= found.total + 1e-9 for found in (proven, near))
    assert near.bound <= proven.bound + 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_the_least_of_terms_is_as_their_table(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes, tables = random_problem(seed)
    shape = [sizes[v] for v in range(3)]
    terms: dict[tuple[int, ...], Any] = {ids: [table] for ids, table in tables.items()}
    terms[0, 1, 2] = [rng.normal(size=np.where(np.arange(3) == lacking, 1, shape)) for lacking in (0, 1)]
    tables[0, 1, 2] = dense(terms[0, 1, 2])
    upper = eliminate(sizes, tables)[1] + 1.0
    found, other = (narrowed(sizes, each, Minimum({}, upper, -math.inf), patience=3) for each in (terms, tables))
    assert math.isclose(found[0].total, other[0].total)
    assert math.isclose(found[0].bound, other[0].bound)
    assert all(np.array_equal(keep, other[1][v]) for v, keep in found[1].items())
    core = Core(sizes, terms)
    core.drop_dominated(lambda: None)
    assert math.isclose(eliminate(core.sizes, core.tables)[1], eliminate(sizes, tables)[1])


@pytest.mark.parametrize("seed", range(12))
def test_no_value_is_dropped_with_which_there_is_a_least_sum(seed: int) -> None:
    sizes, tables = random_problem(seed)
    best, value = eliminate(sizes, tables)

    def sum_of(known: dict[int, int]) -> float:
        return total_of(tables, known) if known else math.inf

    for known in ({}, dict.fromkeys(sizes, 0), best):
        found, kept = narrowed(sizes, tables, Minimum(known, sum_of(known), -math.inf), patience=3)
        assert found.bound <= value + 1e-9 <= found.total + 2e-9
        assert math.isclose(found.total, total_of(tables, found.values))
        assert found.total <= sum_of(known)
        for v, n in sizes.items():
            assert kept[v][found.values[v]]
            for k in range(n):
                at = {ids: np.take(t, [k], ids.index(v)) if v in ids else t for ids, t in tables.items()}
                assert kept[v][k] or eliminate({**sizes, v: 1}, at)[1] > found.total


@pytest.mark.parametrize("seed", range(6))
def test_a_sweep_ends_with_tables_of_which_the_next_has_nothing_to_gather_where_it_begins(seed: int) -> None:
    sizes, tables = random_problem(seed)
    state = bounds._Diffusion(sizes, as_terms(tables))
    for _ in range(3):
        state.sweep(math.inf)
        for ids, table in state._wide.items():
            first = min(ids, key=state._rank.__getitem__)
            assert np.abs(table.least(ids.index(first))).max() < 1e-12


def test_costs_drop_values_far_from_where_they_are_and_where_tables_meet_again() -> None:
    """A chain of forks, of which one side hardly costs to change: as means beside what they are of."""
    n, length = 6, 40
    change = 1.0 - np.eye(n)
    tables: dict[tuple[int, ...], Any] = {(0,): np.where(np.arange(n) == 2, 0.0, 9.0)}
    for v in range(0, 3 * length, 3):
        tables |= {(v, v + 1): change * 0.1, (v, v + 2): change * 4, (v + 1, v + 3): change * 0.1}
        tables[v + 2, v + 3] = change * 4
    tables[3 * length,] = np.where(np.arange(n) == 3, 0.0, 1.0)
    sizes = dict.fromkeys(range(3 * length + 1), n)
    found, kept = narrowed(sizes, tables, Minimum({}, 1.0, 0.0), patience=2)
    assert found.total == 1
    assert all(kept[v].tolist() == (np.arange(n) == 2).tolist() for v in range(3 * length) if v % 3 != 1)
