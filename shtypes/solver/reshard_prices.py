"""Prices of reshards for many pairs of states at once, from the plans that run.

The states are those of `axis_states`, one for each mesh axis. Pairs that differ only by a renumbering of dims, or of
axes of one size with equal links, have one price, so few plans price many pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.caches import Bounded
from shtypes.resharding import collectives, plan
from shtypes.resharding.costs import Collective, CostModel
from shtypes.solver.axis_states import COTANGENTS, FRONT, INVARIANT, REDUCED, SHARDED, UNREDUCED, typed
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh

#: Rows of states, one column for each mesh axis.
States = np.ndarray[Any, np.dtype[np.int64]]
Table = np.ndarray[Any, np.dtype[np.float64]]

_COTANGENTS: Final = np.array(COTANGENTS)
#: The most rows that `distinct` returns unchanged.
_FEW: Final = 16
#: An upper bound on the states of a value along an axis, and on those of a pair.
_STATES: Final = 128
#: The most meshes whose prices are not forgotten.
_MESHES: Final = 64
#: The most axes for which a plan may split an axis into factors.
_CUT: Final = 2
#: The most tables of pairs that are remembered: values of many sizes have the same.
_MOST_PAIRS: Final = 128

#: By mesh and links, the costs of pairs of states, and of their forms.
_prices: Final[Bounded[dict[Any, tuple[float, ...]]]] = Bounded(_MESHES)


def cotangents(states: States) -> States:
    """The states of the cotangents."""
    return np.where(states < SHARDED, _COTANGENTS[np.minimum(states, UNREDUCED)], states)


def parts(states: States, sizes: Sequence[int]) -> Table:
    """The number of shards of a value, for each row of states."""
    return np.asarray(np.prod(np.where(states >= SHARDED, np.array(sizes), 1), axis=-1), float)


def dims_of(states: States) -> States:
    """The dim that each axis shards; negative for none."""
    return np.where(states >= SHARDED, (states - SHARDED) % FRONT, -1)


def in_order(states: States) -> States:
    """Clears ``FRONT`` where an axis precedes the others of its dim in the mesh, too."""
    if (states < FRONT).all():
        return states
    dims, cleared = dims_of(states), states.copy()
    for a in range(states.shape[-1]):
        passes = (dims[..., :a] == dims[..., a, None]) & (states[..., :a] < FRONT)
        cleared[..., a] -= FRONT * ((states[..., a] >= FRONT) & ~passes.any(-1))
    return cleared


def distinct(rows: States) -> tuple[States, Any]:
    """The distinct rows, and the index of each row among them."""
    if len(rows) <= _FEW:
        return rows, np.arange(len(rows))
    codes = rows @ (_STATES ** np.arange(rows.shape[-1]))
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    return rows[first], which.ravel()


def unlabelled(states: States) -> States:
    """Replaces invariant by reduced, between which a reshard moves nothing."""
    return np.where(states == INVARIANT, REDUCED, states)


class Cost(NamedTuple):
    """Tables of the costs of reshards, per byte of the global array and per run."""

    seconds: Table  # per byte
    sent: Table  # bytes that each device sends, per byte
    latency: Table  # seconds per run
    launches: Table  # collectives per run


class Prices:
    """The prices of reshards on a mesh with a cost model."""

    def __init__(self, mesh: Mesh, model: CostModel) -> None:
        self.mesh, self.model, self.sizes = mesh, model, mesh.axis_sizes
        links = [model.link(axis) for axis in mesh.axis_names]
        self.links = tuple((link.bandwidth, link.latency, link.launch) for link in links)
        self._pairs: Bounded[Cost] = Bounded(_MOST_PAIRS)
        self._costs = _prices.get_or_create((mesh, self.links), dict)
        alike = [*zip(self.sizes, self.links, strict=True)]
        #: A number for each axis, equal for those that may be renamed without changing a price.
        self._alike = [*map(alike.index, alike)]

    def pairs(self, src: States, dst: States) -> Cost:
        """The costs from each row of ``src`` to the same row of ``dst``."""
        key = src.tobytes(), dst.tobytes()
        return self._pairs.get_or_create(key, lambda: self._new_pairs(src, dst))

    def _new_pairs(self, src: States, dst: States) -> Cost:
        rows, which = distinct(_patterns(unlabelled(np.concatenate([in_order(src), in_order(dst)], -1))))
        keys = np.ascontiguousarray(rows).view(f"V{rows.itemsize * rows.shape[1]}").ravel().tolist()
        for key, row in zip(keys, rows, strict=True):
            if key not in self._costs:
                self._costs[key] = self._pattern(row)
        return Cost(*np.array([self._costs[key] for key in keys]).reshape(-1, len(Cost._fields))[which].T)

    def _pattern(self, pair: States) -> tuple[float, ...]:
        """The cost of a pair, for a value whose dims all axes divide."""
        form = self._form(pair)
        if form not in self._costs:
            shape = (4 * self.mesh.size,) * max(2, int(dims_of(pair).max()) + 1)
            src, dst = (typed(self.mesh, "f32", shape, states) for states in pair.reshape(2, -1).tolist())
            few = sum(n > 1 for n in self.sizes) <= _CUT
            self._costs[form] = self._priced(collectives(src, dst, cut=few), 4 * shape[0] ** len(shape))
        return self._costs[form]

    def _form(self, pair: States) -> Any:
        """What a price depends on: the axes on each dim, the most major first, and those on none.

        Pairs that differ only in the names of dims and of axes that are alike have one form, of a few where several
        such axes are in the same places.
        """
        every = pair.reshape(2, -1).tolist()
        dims: dict[int, tuple[list[int], list[int]]] = {}
        for i, states in enumerate(every):
            for a in sorted(range(len(states)), key=lambda a: states[a] < FRONT):
                if states[a] >= SHARDED:
                    dims.setdefault((states[a] - SHARDED) % FRONT, ([], []))[i].append(a)
        kinds = [(n, *(min(x, SHARDED) for x in states)) for n, *states in zip(self._alike, *every, strict=True)]
        places: list[Any] = [[kind] for kind in kinds]
        for both in dims.values():
            of_dim = [[kinds[a] for a in axes] for axes in both]
            for i, axes in enumerate(both):
                for k, a in enumerate(axes):
                    places[a].append((i, k, of_dim))
        order = sorted(range(len(kinds)), key=places.__getitem__)
        numbers = {a: k for k, a in enumerate(order)}
        placed = sorted([[numbers[a] for a in axes] for axes in both] for both in dims.values())
        return repr((placed, [kinds[a] for a in order]))

    def planned(self, dtype: str, shape: Sequence[int], src: States, dst: States) -> Cost:
        """The cost for one value from one row to another, from its plan."""
        return self.of_types(*(typed(self.mesh, dtype, shape, states[0].tolist()) for states in (src, dst)))

    def of_types(self, src: ShType, dst: ShType) -> Cost:
        """The cost from one type to another, from its plan."""
        steps = [s for s in plan(src, dst).steps if s.kind.communicates and s.launches]
        return Cost(*np.array([self._priced(steps, src.size * dtypes.itemsize(src.dtype_name))]).T)

    def _priced(self, steps: Sequence[Collective], nbytes: int) -> tuple[float, ...]:
        transfer = sum(s.bytes / min(self.model.link(a).bandwidth for a in s.axes) for s in steps)
        latency = sum(map(self.model.seconds, steps)) - transfer
        sent, launches = (sum(each) for each in ([s.bytes for s in steps], [s.launches for s in steps]))
        return transfer / max(nbytes, 1), sent / max(nbytes, 1), latency, launches


def _patterns(pairs: States) -> States:
    """Renumbers the dims of pairs by first occurrence, since prices depend only on that."""
    renumbered, dims, numbers = pairs.copy(), dims_of(pairs), np.zeros(len(pairs), int)
    for j in range(pairs.shape[-1]):
        new, number = dims[:, j] >= 0, numbers.copy()
        for i in range(j):
            same = new & (dims[:, i] == dims[:, j])
            number[same] = dims_of(renumbered[:, i])[same]
            new &= ~same
        renumbered[:, j] += np.where(dims[:, j] >= 0, number - dims[:, j], 0)
        numbers += new
    return renumbered
