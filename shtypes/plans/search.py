"""The cheapest sequence of collectives between two layouts: a best-first search over the layouts between them.

A *layout* says only which axes shard which dim (major to minor) and which are pending sums; the others are replicated.
Axes are small numbers here, and what does not change between source and destination has been taken out.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias

from shtypes.plans.moves import Kind
from shtypes.plans.steps import common_prefix

Axes: TypeAlias = tuple[int, ...]


class Layout(NamedTuple):
    """The axes on each dim, and the axes that are pending sums (sorted)."""

    dims: tuple[Axes, ...]
    pending: Axes


class Edge(NamedTuple):
    """One move out of a layout; the cost is in local elements, times the number of devices so that it is whole."""

    kind: Kind
    dst: Layout
    cost: int


#: Moves that one search may look at before it settles for a good plan instead of the best one. No search on three axes
#: gets there; with five axes there are tens of thousands of layouts, with hundreds of moves each.
LIMIT: Final = 12_000
#: Of more axes than this, only the direct placement is tried: there are too many others.
MANY: Final = 4


@functools.lru_cache(maxsize=65536)
def search(shape: tuple[int, ...], sizes: tuple[int, ...], src: Layout, dst: Layout) -> tuple[tuple[Kind, Layout], ...]:
    """The cheapest plan: fewest bytes, then launches, then memory, then steps.

    No layout on the way is larger than the larger of ``src`` and ``dst``, unless nothing else exists (or, of five axes
    and more, nothing else is found within the limit).

    Args:
        shape: The size of each dim; only what the axes have in common with it matters.
        sizes: The size of each axis, at least 2.
        src: Where it starts.
        dst: Where it ends.

    Returns:
        The kind and the layout after each step.
    """
    space, direct = _Space(shape, sizes, dst), _Space(shape, sizes, dst, direct=True)
    cap = max(space.local(src), space.local(dst))
    found = (
        _best_first(space, src, cap)
        or _best_first(space, src, cap, greedy=3, limit=5 * LIMIT)
        or _best_first(direct, src, cap, greedy=3)
        or _best_first(direct, src, None, greedy=3, limit=None)  # all can be gathered, and sliced again
    )
    if found is None:
        raise AssertionError("no plan was found; please report this")
    return found


def least_sent(shape: tuple[int, ...], sizes: tuple[int, ...], src: Layout, dst: Layout) -> Fraction:
    """What a device sends at least in any plan, as a part of what it holds at the start; arguments as of `search`."""
    space = _Space(shape, sizes, dst)
    return Fraction(space.bound(src), space.devices * space.local(src))


def _best_first(
    space: _Space, src: Layout, cap: int | None, greedy: int = 1, limit: int | None = LIMIT
) -> tuple[tuple[Kind, Layout], ...] | None:
    """A*, with an admissible bound or with an inflated one that ends sooner; None if it finds nothing."""
    dst, ticket = space.dst, itertools.count()
    bound = space.bound(src)
    start = (0, 0, space.local(src), 0)
    best: dict[Layout, tuple[int, int, int, int]] = {src: start}
    came: dict[Layout, tuple[Kind, Layout]] = {}
    heap = [((greedy * bound, int(bound > 0), start[2], 0), next(ticket), start, src)]
    looked = 0
    while heap:
        _, _, cost, here = heapq.heappop(heap)
        if here == dst:
            return _path(came, src, dst)
        if best[here] != cost:
            continue
        if limit is not None and looked > limit:
            return None
        for edge in space.edges(here):
            looked += 1
            there = edge.dst
            local = space.local(there)
            if cap is not None and local > cap:
                continue
            new = (cost[0] + edge.cost, cost[1] + (edge.cost > 0), max(cost[2], local), cost[3] + 1)
            old = best.get(there)
            if old is None or new < old:
                best[there] = new
                came[there] = edge.kind, here
                bound = space.bound(there)
                rank = (new[0] + greedy * bound, new[1] + (bound > 0), new[2], new[3])
                heapq.heappush(heap, (rank, next(ticket), new, there))
    return None


def _path(came: dict[Layout, tuple[Kind, Layout]], src: Layout, dst: Layout) -> tuple[tuple[Kind, Layout], ...]:
    steps: list[tuple[Kind, Layout]] = []
    here = dst
    while here != src:
        kind, before = came[here]
        steps.append((kind, here))
        here = before
    return tuple(reversed(steps))


class _Space:
    """The layouts, the moves between them and what they cost, for one destination.

    In a ``direct`` space, an axis moves to a dim only for the place that it has at the end.
    """

    def __init__(self, shape: tuple[int, ...], sizes: tuple[int, ...], dst: Layout, direct: bool = False) -> None:
        self.shape, self.sizes, self.dst, self.direct = shape, sizes, dst, direct
        self.rank = range(len(shape))
        self.devices = math.prod(sizes)
        self.total = math.prod(shape)
        self._products: dict[Axes, int] = {}
        self._locals: dict[tuple[Axes, ...], int] = {}

    def product(self, axes: Axes) -> int:
        found = self._products.get(axes)
        if found is None:
            found = self._products[axes] = math.prod([self.sizes[a] for a in axes])
        return found

    def local(self, at: Layout) -> int:
        """Elements per device."""
        found = self._locals.get(at.dims)
        if found is None:
            found = self._locals[at.dims] = self.total // math.prod([self.product(axes) for axes in at.dims])
        return found

    def replicated(self, at: Layout) -> Axes:
        used = {a for axes in at.dims for a in axes}.union(at.pending)
        return tuple(a for a in range(len(self.sizes)) if a not in used)

    def fits(self, dims: tuple[Axes, ...]) -> bool:
        return all(size % self.product(axes) == 0 for size, axes in zip(self.shape, dims, strict=True))

    def bound(self, at: Layout) -> int:
        """No plan from ``at`` costs less (in the units of `Edge`).

        Devices that differ only in the axes pending at the end are a group: one of them must hold each element.
        """
        dst = self.dst
        group = self.product(dst.pending)
        pending = [a for a in at.pending if a not in dst.pending]
        if pending:  # k terms of each element are joined by k - 1 messages, and each further group gets one
            groups = self.devices // group // math.prod([self.product(axes) for axes in dst.dims])
            return self.total * (self.product(tuple(pending)) + groups - 2)
        # What a group must hold at the end and does not hold yet, in the group that has least of it.
        common = 1
        for size, axes, there in zip(self.shape, at.dims, dst.dims, strict=True):
            here = axes
            if group > 1:  # what the group has together is no more than it would have without its first own axis
                here = axes[: next((i for i, a in enumerate(axes) if a in dst.pending), len(axes))]
            k = common_prefix(here, there)
            if k < len(here) and k < len(there):
                common = 0  # some group holds nothing of its part: its slices differ in the first place
                break
            common *= size // self.product(max(here, there, key=len))
        return (self.local(dst) - common) * self.devices // group

    def edges(self, at: Layout) -> Iterator[Edge]:
        """Every move out of a layout."""
        replicated = self.replicated(at)
        yield from self._local_moves(at, replicated)
        yield from self._losing(at)
        yield from self._reducing(at)
        yield from self._permuting(at, replicated)

    def _local_moves(self, at: Layout, replicated: Axes) -> Iterator[Edge]:
        # A mask can always come last: a replicated axis can do all that a pending one can.
        if at.dims == self.dst.dims and set(at.pending) < set(self.dst.pending):
            yield Edge(Kind.MASK, self.dst, 0)
        for axis in replicated:
            for dims in self._placed(at.dims, (axis,), tuple(self.rank)):
                yield Edge(Kind.SLICE, Layout(dims, at.pending), 0)
        for d in self.rank:
            if at.dims[d] and at.dims[d][-1] in self.dst.pending:
                *kept, last = at.dims[d]
                dims = (*at.dims[:d], tuple(kept), *at.dims[d + 1 :])
                yield Edge(Kind.PLACE, Layout(dims, tuple(sorted((*at.pending, last)))), 0)

    def _losing(self, at: Layout) -> Iterator[Edge]:
        """All-gathers and all-to-alls: minor axes leave their dims, for nowhere or for other dims."""
        local = self.local(at)
        for kept in itertools.product(*(range(len(axes), -1, -1) for axes in at.dims)):
            lost = tuple(a for axes, k in zip(at.dims, kept, strict=True) for a in axes[k:])
            if not lost:
                continue
            n = self.product(lost)
            dims = tuple(axes[:k] for axes, k in zip(at.dims, kept, strict=True))
            yield Edge(Kind.ALL_GATHER, Layout(dims, at.pending), (n - 1) * local * self.devices)
            # A dim that both lost and gained axes would send pieces of different sizes.
            open_dims = tuple(d for d in self.rank if kept[d] == len(at.dims[d]))
            for there in self._placed(dims, lost, open_dims):
                yield Edge(Kind.ALL_TO_ALL, Layout(there, at.pending), (n - 1) * local * self.devices // n)

    def _reducing(self, at: Layout) -> Iterator[Edge]:
        local = self.local(at)
        pending = [a for a in at.pending if a not in self.dst.pending]
        for count in range(1, len(pending) + 1):
            for axes in itertools.combinations(pending, count):
                n = self.product(axes)
                rest = tuple(a for a in at.pending if a not in axes)
                cost = (n - 1) * local * self.devices // n
                yield Edge(Kind.ALL_REDUCE, Layout(at.dims, rest), 2 * cost)
                for dims in self._placed(at.dims, axes, tuple(self.rank)):
                    yield Edge(Kind.REDUCE_SCATTER, Layout(dims, rest), cost)

    def _permuting(self, at: Layout, replicated: Axes) -> Iterator[Edge]:
        """Shards change places: each dim, the pending sums and the copies keep their numbers of devices."""
        slots = (*at.dims, at.pending, replicated)
        cost = self.local(at) * self.devices
        for new in _dealt(tuple(sorted(a for s in slots for a in s)), tuple(map(self.product, slots)), self.sizes):
            there = Layout(new[:-2], tuple(sorted(new[-2])))
            if there != at and (not self.direct or all(map(self._leads, self.rank, there.dims))):
                yield Edge(Kind.PERMUTE, there, cost)

    def _placed(self, dims: tuple[Axes, ...], axes: Axes, onto: Axes) -> Iterator[tuple[Axes, ...]]:
        """Every way to add ``axes`` to the dims ``onto``, as minor ones."""
        ways = (
            self._directly(dims, axes, onto) if self.direct or len(axes) > MANY else _placements(axes, onto, len(dims))
        )
        for added in ways:
            new = tuple(map(tuple.__add__, dims, added))
            if self.fits(new):
                yield new

    def _directly(self, dims: tuple[Axes, ...], axes: Axes, onto: Axes) -> Iterator[tuple[Axes, ...]]:
        """The one way in which each axis gets the place that it has in the end, if there is one."""
        added: list[Axes] = [()] * len(dims)
        for d in onto:
            if self._leads(d, dims[d]):
                rest = self.dst.dims[d][len(dims[d]) :]
                added[d] = tuple(itertools.takewhile(axes.__contains__, rest))
        if sum(map(len, added)) == len(axes):
            yield tuple(added)

    def _leads(self, d: int, axes: Axes) -> bool:
        """Whether axes are the major ones that a dim has in the end."""
        return self.dst.dims[d][: len(axes)] == axes


@functools.lru_cache(maxsize=4096)
def _placements(axes: Axes, onto: Axes, rank: int) -> tuple[tuple[Axes, ...], ...]:
    """Every way to give each dim an ordered tuple of ``axes``, none of them left over."""
    out: list[tuple[Axes, ...]] = []
    for order in itertools.permutations(sorted(axes)):
        for cuts in itertools.combinations_with_replacement(range(len(order) + 1), len(onto) - 1) if onto else ():
            ends = (0, *cuts, len(order))
            added: list[Axes] = [()] * rank
            for d, i, j in zip(onto, ends, ends[1:], strict=False):
                added[d] = order[i:j]
            out.append(tuple(added))
    return tuple(out)


@functools.lru_cache(maxsize=4096)
def _dealt(axes: Axes, products: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[tuple[Axes, ...], ...]:
    """Every way to deal ``axes`` to slots so that each slot's sizes multiply to its product; the last two are sets."""
    out: dict[tuple[Axes, ...], None] = {}
    for order in itertools.permutations(axes) if len(axes) <= MANY + 2 else ():
        slots: list[Axes] = []
        i = 0
        for product in products:
            j, n = i, 1
            while n < product and j < len(order):
                n *= sizes[order[j]]
                j += 1
            if n != product:
                break
            slots.append(order[i:j])
            i = j
        else:
            out[(*slots[:-2], tuple(sorted(slots[-2])), tuple(sorted(slots[-1])))] = None
    return tuple(out)
