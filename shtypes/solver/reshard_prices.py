"""What reshards send and take, for all pairs of states at once: the plans that run, of each kind of pair once.

The states are those of `axis_states`, one for each mesh axis. Which dims a pair names does not count, only where it
names one again, so that few plans price many pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.resharding import plan
from shtypes.resharding.costs import CostModel
from shtypes.resharding.steps import Step
from shtypes.solver.axis_states import COTANGENTS, FRONT, INVARIANT, REDUCED, SHARDED, UNREDUCED, typed
from shtypes.types import dtypes
from shtypes.types.mesh import Mesh

#: Rows of states, one column for each mesh axis.
States = np.ndarray[Any, np.dtype[np.int64]]
Table = np.ndarray[Any, np.dtype[np.float64]]

_COTANGENTS: Final = np.array(COTANGENTS)
#: So few rows are not searched for those that are alike.
_FEW: Final = 16
#: More states than a value has along an axis, or a pair of them names.
_STATES: Final = 128
#: The most axes on which parts of axes may move alone in a plan that a table is made of.
_CUT: Final = 2


def cotangents(states: States) -> States:
    """The states of the cotangents."""
    return np.where(states < SHARDED, _COTANGENTS[np.minimum(states, UNREDUCED)], states)


def parts(states: States, sizes: Sequence[int]) -> Table:
    """Into how many parts a value is cut, for each row."""
    return np.asarray(np.prod(np.where(states >= SHARDED, np.array(sizes), 1), axis=-1), float)


def dims_of(states: States) -> States:
    """The dims that axes are on; negative ones for none."""
    return np.where(states >= SHARDED, (states - SHARDED) % FRONT, -1)


def in_order(states: States) -> States:
    """Rows in which axes are in front only of those that would come before them."""
    if (states < FRONT).all():
        return states
    dims, found = dims_of(states), states.copy()
    for a in range(states.shape[-1]):
        passes = (dims[..., :a] == dims[..., a, None]) & (states[..., :a] < FRONT)
        found[..., a] -= FRONT * ((states[..., a] >= FRONT) & ~passes.any(-1))
    return found


def distinct(rows: States) -> tuple[States, Any]:
    """The distinct rows, and which of them each row is; of few rows all."""
    if len(rows) <= _FEW:
        return rows, np.arange(len(rows))
    codes = rows @ (_STATES ** np.arange(rows.shape[-1]))
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    return rows[first], which.ravel()


def unlabelled(states: States) -> States:
    """Without the difference of reduced and invariant, which moves nothing."""
    return np.where(states == INVARIANT, REDUCED, states)


class Cost(NamedTuple):
    """Tables of what reshards cost: for each byte of the value, and for each run."""

    seconds: Table  # seconds for each byte of the value on all devices
    sent: Table  # bytes that each device sends, for each byte of the value on all devices
    latency: Table  # seconds that each run takes besides
    launches: Table  # how many collectives each run is


class Prices:
    """The prices of reshards on a mesh, by its links."""

    def __init__(self, mesh: Mesh, model: CostModel) -> None:
        self.mesh, self.model, self.sizes = mesh, model, mesh.axis_sizes
        links = [model.link(axis) for axis in mesh.axis_names]
        self.links = tuple((link.bandwidth, link.latency, link.launch) for link in links)
        self._patterns: dict[bytes, tuple[float, ...]] = {}

    def pairs(self, src: States, dst: States) -> Cost:
        """From each row of ``src`` to that of ``dst`` of the same number."""
        rows, which = distinct(_patterns(unlabelled(np.concatenate([in_order(src), in_order(dst)], -1))))
        return Cost(*np.array([self._pattern(row) for row in rows]).reshape(-1, len(Cost._fields))[which].T)

    def _pattern(self, pair: States) -> tuple[float, ...]:
        """Of a pair, by a value whose dims all axes divide."""
        key = pair.tobytes()
        if key not in self._patterns:
            one, other = pair.reshape(2, -1).tolist()
            shape = (4 * self.mesh.size,) * max(2, int(dims_of(pair).max()) + 1)
            src, dst = (typed(self.mesh, "f32", shape, states) for states in (one, other))
            few = sum(n > 1 for n in self.sizes) <= _CUT
            self._patterns[key] = self._priced(plan(src, dst, cut=few).steps, 4 * shape[0] ** len(shape))
        return self._patterns[key]

    def planned(self, dtype: str, shape: Sequence[int], src: States, dst: States) -> Cost:
        """Of one value from one row to another, by the plan that runs."""
        one, other = (typed(self.mesh, dtype, shape, states[0].tolist()) for states in (src, dst))
        return Cost(*np.array([self._priced(plan(one, other).steps, one.size * dtypes.itemsize(dtype))]).T)

    def _priced(self, steps: Sequence[Step], nbytes: int) -> tuple[float, ...]:
        steps = [s for s in steps if s.kind.communicates and s.launches and nbytes]
        transfer = sum(s.bytes / min(self.model.link(a).bandwidth for a in s.axes) for s in steps)
        latency = sum(map(self.model.seconds, steps)) - transfer
        sent, launches = (sum(each) for each in ([s.bytes for s in steps], [s.launches for s in steps]))
        return transfer / max(nbytes, 1), sent / max(nbytes, 1), latency, launches


def _patterns(pairs: States) -> States:
    """Pairs with their dims numbered in the order in which they name them: all that their prices depend on."""
    found, dims, numbers = pairs.copy(), dims_of(pairs), np.zeros(len(pairs), int)
    for j in range(pairs.shape[-1]):
        new, number = dims[:, j] >= 0, numbers.copy()
        for i in range(j):
            same = new & (dims[:, i] == dims[:, j])
            number[same] = dims_of(found[:, i])[same]
            new &= ~same
        found[:, j] += np.where(dims[:, j] >= 0, number - dims[:, j], 0)
        numbers += new
    return found
