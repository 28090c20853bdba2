"""What reshards send and take, for all pairs of states at once: shortest paths through the states of a value.

The states are those of `axis_states`, one for each mesh axis. A value is anywhere between replicated, pending and
sharded on each axis; a move is a collective on some axes. The cheapest plans from each state to each other are found
together, and not one by one as the planner does, which knows more ways (parts of axes) and is asked what really runs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.resharding import plan
from shtypes.resharding.costs import CostModel
from shtypes.resharding.planner import SAVES
from shtypes.solver.axis_states import COTANGENTS, INVARIANT, REDUCED, SHARDED, UNREDUCED, typed
from shtypes.types import dtypes
from shtypes.types.mesh import Mesh

#: Rows of states, one column for each mesh axis.
States = np.ndarray[Any, np.dtype[np.int64]]
Table = np.ndarray[Any, np.dtype[np.float64]]

_COTANGENTS: Final = np.array(COTANGENTS)
#: A launch more is worth so much of the bytes of a value: fewer launches where as much is sent.
_LAUNCH: Final = 1e-7
#: Of values with fewer elements than this for each device, what is sent is a matter of rounding.
_ROUNDED: Final = 16
#: States with more dims than this are priced with their dims numbered anew, pair by pair, for so many axes.
_DIMS: Final = {1: 16, 2: 6, 3: 4}
#: So few rows are not searched for those that are alike.
_FEW: Final = 16
#: More states than a value has along an axis.
_STATES: Final = 64
#: On meshes of so many axes a dim may have gaps on the way, as the planner's plans do.
_GAPS: Final = 2


def cotangents(states: States) -> States:
    """The states of the cotangents."""
    return np.where(states < SHARDED, _COTANGENTS[np.minimum(states, UNREDUCED)], states)


def parts(states: States, sizes: Sequence[int]) -> Table:
    """Into how many parts a value is cut, for each row."""
    return np.asarray(np.prod(np.where(states >= SHARDED, np.array(sizes), 1), axis=-1), float)


def distinct(rows: States) -> tuple[States, Any]:
    """The distinct rows, and which of them each row is; of few rows all."""
    if len(rows) <= _FEW:
        return rows, np.arange(len(rows))
    codes = rows @ (_STATES ** np.arange(rows.shape[-1]))
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    return rows[first], which.ravel()


class Cost(NamedTuple):
    """Tables of what reshards cost: for each byte of the value, and for each run."""

    seconds: Table  # seconds for each byte of the value on all devices
    sent: Table  # bytes that each device sends, for each byte of the value on all devices
    latency: Table  # seconds that each run takes besides

    def at(self, rows: Any, columns: Any) -> Cost:
        """The costs of some pairs."""
        return Cost(*(table[rows, columns] for table in self))


class Prices:
    """The prices of reshards on a mesh, by its links."""

    def __init__(self, mesh: Mesh, model: CostModel) -> None:
        links = [model.link(axis) for axis in mesh.axis_names]
        self.mesh, self.model, self.sizes = mesh, model, mesh.axis_sizes
        self.links = tuple((link.bandwidth, link.latency) for link in links)
        self._renamed: dict[Any, tuple[float, float, float]] = {}
        self._corrected: dict[Any, tuple[float, float, float]] = {}
        self._tables: dict[Any, Cost] = {}
        self.lowered = False  # whether a price was found to be lower than it was, so that bounds by it do not hold

    def table(self, src: States, dst: States) -> Cost:
        """From each row of ``src`` to each of ``dst``."""
        key = src.tobytes(), dst.tobytes()
        if key not in self._tables:
            self._tables[key] = self._corrected_table(src, dst)
        return self._tables[key]

    def _corrected_table(self, src: States, dst: States) -> Cost:
        cost = self._table(src, dst)
        if self._corrected:
            for (i, a), (j, b) in itertools.product(enumerate(src), enumerate(dst)):
                known = self._corrected.get(pattern(a, b))
                if known is not None:
                    for table, value in zip(cost, known, strict=True):
                        table[i, j] = value
        return cost

    def planned(self, dtype: str, shape: Sequence[int], src: Sequence[int], dst: Sequence[int]) -> Cost:
        """The same of one value, by the plan that runs."""
        one, other = (typed(self.mesh, dtype, shape, states) for states in (src, dst))
        nbytes = one.size * dtypes.itemsize(dtype)
        steps = [s for s in plan(one, other).steps if s.kind.communicates and s.launches and nbytes]
        sent = sum(s.bytes for s in steps) / nbytes if steps else 0.0
        transfer = sum(s.bytes / min(self.model.link(a).bandwidth for a in s.axes) for s in steps)
        latency = sum(map(self.model.seconds, steps)) - transfer
        return Cost(*(np.array(x) for x in (transfer / max(nbytes, 1), sent, latency)))

    def correct(self, dtype: str, shape: Sequence[int], src: Sequence[int], dst: Sequence[int]) -> bool:
        """Takes over what the plan of a pair sends and takes; whether that is another price than before."""
        if math.prod(shape) < _ROUNDED * self.mesh.size:
            return False
        found = self.planned(dtype, shape, src, dst)
        before = self.table(np.array([src]), np.array([dst]))
        if all(math.isclose(x, y[0, 0], rel_tol=1e-3, abs_tol=1e-15) for x, y in zip(found, before, strict=True)):
            return False
        self.lowered |= any(x < y[0, 0] * (1 - 1e-3) for x, y in zip(found, before, strict=True))
        self._corrected[pattern(src, dst)] = tuple(map(float, found))  # type: ignore[assignment]
        self._tables.clear()
        return True

    def _table(self, src: States, dst: States) -> Cost:
        n = len(self.sizes)
        dims = int(max(src.max(initial=0), dst.max(initial=0))) - SHARDED + 1
        if n not in _DIMS:
            return self._in_turn(src, dst)
        if dims > _DIMS[n]:
            return self._by_pattern(src, dst)
        return self._of(unlabelled(src), unlabelled(dst), max(dims, min(2, _DIMS[n])))

    def _of(self, src: States, dst: States, dims: int) -> Cost:
        """Of what stays pending along an axis nothing changes; axes on which a value stays replicated may share."""
        found = Cost(*(np.zeros((len(src), len(dst))) for _ in range(3)))
        one, other = src[:, None, :], dst[None, :, :]
        stays = np.where(one == other, np.where(one == UNREDUCED, 2, np.where(one == REDUCED, 1, 0)), 0)
        codes = stays @ (3 ** np.arange(stays.shape[-1]))
        for code in np.unique(codes):
            a, b = np.nonzero(codes == code)
            which = stays[a[0], b[0]]
            cost = self._without(which == 2, src[a], dst[b], dims)
            if (which == 1).any():
                apart = self._without(which > 0, src[a], dst[b], dims)
                shared = cost.sent <= float(SAVES) * apart.sent
                cost = Cost(*(np.where(shared, x, y) for x, y in zip(cost, apart, strict=True)))
            for table, values in zip(found, cost, strict=True):
                table[a, b] = values
        return found

    def _without(self, which: Any, src: States, dst: States, dims: int) -> Cost:
        """From each row to that of the same number, with some axes left alone."""
        if which.all():
            return Cost(*(np.zeros(len(src)) for _ in range(3)))
        paths = _shortest(_without(self.sizes, which), _without(self.links, which), dims)
        return paths.cost.at(paths.places(src[:, ~which]), paths.places(dst[:, ~which]))

    def _by_pattern(self, src: States, dst: States) -> Cost:
        """Pair by pair, with the dims numbered in the order in which the pair names them."""
        found = np.zeros((3, len(src), len(dst)))
        for (i, a), (j, b) in itertools.product(enumerate(src), enumerate(dst)):
            key = pattern(a, b)
            if key not in self._renamed:
                dims = max(*key[0], *key[1], SHARDED) - SHARDED + 1
                one, other = (np.array([states]) for states in key)
                small = dims <= _DIMS[len(self.sizes)]
                cost = self._table(one, other) if small else self._in_turn(one, other)
                self._renamed[key] = tuple(float(t[0, 0]) for t in cost)  # type: ignore[assignment]
            found[:, i, j] = self._renamed[key]
        return Cost(*found)

    def _in_turn(self, src: States, dst: States) -> Cost:
        """Axis after axis, those that make less of the value first: an upper bound, for meshes of many axes."""
        s, d = src[:, None, :], dst[None, :, :]
        local = np.broadcast_to((1 / parts(src, self.sizes))[:, None], (len(src), len(dst))).copy()
        seconds, sent, latency = np.zeros_like(local), np.zeros_like(local), np.zeros_like(local)
        whole = [[(x[..., a] == REDUCED) | (x[..., a] == INVARIANT) for a in range(len(self.sizes))] for x in (s, d)]

        def pay(mask: Any, axis: int, factor: float = 1.0) -> None:
            n, (bandwidth, delay) = self.sizes[axis], self.links[axis]
            b = np.where(mask, factor * (n - 1) / n * local, 0.0)
            sent[...] += b
            seconds[...] += b / bandwidth
            latency[...] += np.where(mask, factor * (n - 1) * delay, 0.0)

        axes = range(len(self.sizes))
        for a in axes:
            local = np.where(whole[0][a] & (d[..., a] >= SHARDED), local / self.sizes[a], local)
        for a in axes:
            mask = (s[..., a] == UNREDUCED) & (d[..., a] >= SHARDED)
            pay(mask, a)
            local = np.where(mask, local / self.sizes[a], local)
        for a in axes:
            pay((s[..., a] >= SHARDED) & (d[..., a] >= SHARDED) & (s[..., a] != d[..., a]), a)
            pay((s[..., a] == UNREDUCED) & whole[1][a], a, 2.0)
        for a in axes:
            mask = (s[..., a] >= SHARDED) & whole[1][a]
            local = np.where(mask, local * self.sizes[a], local)
            pay(mask, a)
        return Cost(seconds, sent, latency)


def _without(items: Sequence[Any], which: Any) -> tuple[Any, ...]:
    return tuple(x for x, out in zip(items, which, strict=True) if not out)


def unlabelled(states: States) -> States:
    """Without the difference of reduced and invariant, which moves nothing."""
    return np.where(states == INVARIANT, REDUCED, states)


def pattern(src: Sequence[int], dst: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A pair with its dims numbered in the order in which it names them: all that its price depends on."""
    numbers: dict[int, int] = {}

    def of(states: Sequence[int]) -> tuple[int, ...]:
        return tuple(int(s) if s < SHARDED else SHARDED + numbers.setdefault(int(s), len(numbers)) for s in states)

    return of(src), of(dst)


# the shortest paths

#: An axis on a dim, and one that the dim leaves room for: ``y`` behind a gap of ``x`` holds every ``x``-th slice.
_On = tuple[int, bool]


class _Place(NamedTuple):
    """How a value lies: the axes on each dim, major first, with gaps between; and those with a sum pending."""

    dims: tuple[tuple[_On, ...], ...]
    pending: frozenset[int] = frozenset()

    @property
    def sharded(self) -> dict[int, int]:
        """The dim of each axis that shards one."""
        return {a: d for d, axes in enumerate(self.dims) for a, there in axes if there}


class _Move(NamedTuple):
    there: _Place
    axes: tuple[int, ...]
    sent: float  # of the local part before it
    steps: float  # of latency
    launches: int


class _Paths:
    """The least costs between all places of a value on a mesh."""

    def __init__(self, sizes: tuple[int, ...], links: tuple[tuple[float, float], ...], dims: int) -> None:
        self.sizes, self.links = sizes, links
        every = [*_places(len(sizes), dims, gaps=len(sizes) <= _GAPS)]
        number = {place: i for i, place in enumerate(every)}
        self._index = np.full((SHARDED + dims,) * len(sizes), -1)
        for i, place in enumerate(every):
            if all(axes == tuple((a, True) for a in sorted(a for a, _ in axes)) for axes in place.dims):
                self._index[self._states(place)] = i  # as types have them: in the order of the mesh, without gaps
        weight, *costs = self._direct(every, number)
        for k in range(len(every)):
            through = weight[:, k, None] + weight[None, k, :]
            rows, columns = np.nonzero(through < weight - 1e-12)
            if len(rows):
                weight[rows, columns] = through[rows, columns]
                for c in costs:
                    c[rows, columns] = c[rows, k] + c[k, columns]
        self.cost = Cost(*costs)

    def _states(self, place: _Place) -> tuple[int, ...]:
        on = place.sharded
        return tuple(
            UNREDUCED if a in place.pending else SHARDED + on[a] if a in on else REDUCED for a in range(len(self.sizes))
        )

    def places(self, states: States) -> Any:
        """The numbers of states."""
        return self._index[tuple(states.T)]

    def _direct(self, every: list[_Place], number: dict[_Place, int]) -> list[Table]:
        """The costs of single steps."""
        n = len(every)
        weight = np.full((n, n), np.inf)
        seconds, sent, latency = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
        np.fill_diagonal(weight, 0.0)
        alike: dict[Any, list[int]] = {}
        for i, place in enumerate(every):
            alike.setdefault(_partition(place, self.sizes), []).append(i)
        for i, place in enumerate(every):
            local = 1 / math.prod(self.sizes[a] for a in place.sharded)
            swaps = [
                _Move(every[j], tuple({*place.sharded, *every[j].sharded}), 1, 1, 1)
                for j in alike[_partition(place, self.sizes)]
                if j != i
            ]
            for move in itertools.chain(_moves(place, self.sizes), swaps):
                j = number.get(move.there, i)
                w = move.sent * local + _LAUNCH * move.launches
                if w < weight[i, j]:
                    weight[i, j], sent[i, j] = w, move.sent * local
                    if move.launches:
                        seconds[i, j] = sent[i, j] / min(self.links[a][0] for a in move.axes)
                        latency[i, j] = move.steps * max(self.links[a][1] for a in move.axes)
        return [weight, seconds, sent, latency]


@functools.lru_cache(maxsize=256)
def _shortest(sizes: tuple[int, ...], links: tuple[tuple[float, float], ...], dims: int) -> _Paths:
    return _Paths(sizes, links, dims)


def _partition(place: _Place, sizes: tuple[int, ...]) -> Any:
    """What places have in common between which devices only change whole parts."""
    if any(not there for axes in place.dims for _, there in axes):
        return place
    return place.pending, tuple(math.prod(sizes[a] for a, _ in axes) for axes in place.dims)


def _places(axes: int, dims: int, *, gaps: bool) -> Iterator[_Place]:
    """All places of a value: where each axis is, in which order those on one dim are, and with which gaps."""
    for where in itertools.product(range(-2, dims), repeat=axes):
        pending = frozenset(a for a in range(axes) if where[a] == -2)
        ways = []
        for d in range(dims):
            on = [(a, True) for a in range(axes) if where[a] == d]
            orders = list(itertools.permutations(on))
            if gaps and on:
                others = [(a, False) for a in range(axes) if where[a] != d]
                orders += [(gap, *order) for order in orders for gap in others]
            ways.append(orders)
        for chosen in itertools.product(*ways):
            yield _Place(tuple(chosen), pending)


def _moves(place: _Place, sizes: tuple[int, ...]) -> Iterator[_Move]:
    """What one step can do: slice, mask, place; gather, reduce, scatter, exchange."""
    dims, pending = place
    sharded = place.sharded
    for a in range(len(sizes)):
        if a not in sharded and a not in pending:
            yield _Move(_Place(dims, pending | {a}), (a,), 0, 0, 0)
            for there, _ in _added(dims, (a,)):
                yield _Move(_Place(there, pending), (a,), 0, 0, 0)
    for group in _groups(range(len(sizes))):
        n = math.prod(sizes[a] for a in group)
        share = (n - 1) / n
        if pending.issuperset(group):
            yield _Move(_Place(dims, pending - {*group}), group, 2 * share, 2 * (n - 1), 1)
            for there, _ in _added(dims, group):
                yield _Move(_Place(there, pending - {*group}), group, share, n - 1, 1)
        if all(a in sharded for a in group):
            rest = _taken(dims, group)
            yield _Move(_Place(rest, pending), group, n - 1, n - 1, 1)
            yield _Move(_Place(rest, pending | {*group}), group, 0, 0, 0)
            left = {sharded[a] for a in group}
            for there, onto in _added(rest, group):
                if len(group) == 1 or not left & set(onto):
                    yield _Move(_Place(there, pending), group, share, n - 1, 1)


def _groups(axes: Sequence[int] | range) -> Iterator[tuple[int, ...]]:
    for k in range(1, len(axes) + 1):
        yield from itertools.combinations(axes, k)


def _added(dims: Any, group: tuple[int, ...]) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """The dims with the axes of a group on them, in any way: in gaps, or behind the axes that are there."""
    axis, rest = group[0], group[1:]
    for d, axes in enumerate(dims):
        ways = [(*axes, (axis, True))] if (axis, False) not in axes else []
        if (axis, False) in axes:
            ways.append(tuple((a, there or a == axis) for a, there in axes))
        elif not rest and not axes:  # in front of a gap that is filled later on
            ways += [((other, False), (axis, True)) for other in range(_GAPS) if other != axis]
        for way in ways:
            there = (*dims[:d], way, *dims[d + 1 :])
            if rest:
                yield from ((more, (d, *onto)) for more, onto in _added(there, rest))
            else:
                yield there, (d,)


def _taken(dims: Any, group: tuple[int, ...]) -> Any:
    """The dims without a group; an axis that others are behind leaves a gap."""
    found = []
    for axes in dims:
        left = [(a, there and a not in group) for a, there in axes]
        while left and not left[-1][1]:
            left.pop()
        found.append(tuple(left))
    return tuple(found)
