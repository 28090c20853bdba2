"""What decisions cost: tables of seconds, bytes of memory and reshards, for a block of mesh axes that vary together."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.analysis.flops import product_flops
from shtypes.resharding.devices import Device
from shtypes.solver.axis_states import FRONT, INVARIANT, REDUCED, SHARDED, UNREDUCED, typed
from shtypes.solver.graph import Graph, Node, Use
from shtypes.solver.items import Value, is_value, trip_count
from shtypes.solver.options import NEVER, Option, Sent, only_places
from shtypes.solver.reshard_prices import (
    Cost,
    Prices,
    States,
    Table,
    cotangents,
    dims_of,
    distinct,
    in_order,
    parts,
    unlabelled,
)
from shtypes.types import ShType

#: The part of the memory traffic of equations that are no products which is left when a compiler has fused them.
FUSED: Final = 0.4

#: The most entries of a factor that is remembered.
_SMALL: Final = 4096
#: Seconds that nothing is worth.
_NEVER: Final = 1e9
#: The part of what is counted that is less than any work counts.
_LITTLE: Final = 1e-10

#: For each decision, the number of an option for each mesh axis.
Assignment = dict[int, tuple[int, ...]]
#: For each decision, rows of those.
Domains = dict[int, Any]


def _parts_fit(values: Sequence[States], count: int) -> Any:
    """Which rows of states an op can have: of two axes on one dim of a value no other value lacks the major one alone.

    Its shards would not be parts of the others'.
    """
    ok = np.ones(count, bool)
    for a, b in itertools.combinations(range(values[0].shape[-1] if values else 0), 2):
        both, in_front, without = np.zeros(count, bool), np.zeros(count, bool), np.zeros((2, count), bool)
        for states in values:
            on_a, on_b = dims_of(states[:, a]), dims_of(states[:, b])
            shared = (on_a >= 0) & (on_a == on_b)
            both |= shared
            in_front |= shared & (states[:, b] >= FRONT)
            without |= np.stack([(on_a < 0) & (on_b >= 0), (on_b < 0) & (on_a >= 0)])
        ok &= ~(both & np.where(in_front, without[1], without[0]))
    return ok


def _summed(whole: Cost, first: Cost, second: Cost, may_join: Any) -> Cost:
    """The price of a gradient that is brought to a cotangent's type first, to its argument's second.

    It is one reshard where it may be, where the first sends nothing and that ``whole`` one is nowhere more.
    """
    one = may_join & (first.sent == 0) & (whole.sent <= second.sent) & (whole.launches <= second.launches)
    return Cost(*(np.where(one, w, a + b) for w, a, b in zip(whole, first, second, strict=True)))


class Measure(NamedTuple):
    """What something costs, as numbers or as tables over decisions."""

    seconds: Any  # of computing
    comm: Any  # seconds of communication
    memory: Any  # bytes on each device
    sent: Any  # bytes that each device sends
    reshards: Any  # how many a reader sees

    def weighed(self, byte: float, reshard: float, shares: tuple[float, float] = (1.0, 1.0)) -> Any:
        """The seconds, computing and communication by their shares, with prices for a byte of memory and a reshard."""
        return shares[0] * self.seconds + shares[1] * self.comm + byte * self.memory + reshard * self.reshards

    def __add__(self, other: Any) -> Measure:
        return Measure(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def first(self) -> Measure:
        """The first entries, as numbers."""
        return Measure(*(float(np.ravel(x)[0]) for x in self))

    def times(self, n: float, *, reshards: float | None = None) -> Measure:
        """It so often."""
        count = n if reshards is None else reshards
        return Measure(self.seconds * n, self.comm * n, self.memory * n, self.sent * n, self.reshards * count)


NOTHING: Final = Measure(0.0, 0.0, 0.0, 0.0, 0.0)


class Factor(NamedTuple):
    """The cost of some decisions together: the cheapest of some ways."""

    ids: tuple[int, ...]
    ways: list[Measure]


class _Data(NamedTuple):
    """The options of a node along an axis as arrays."""

    operands: Any
    results: Any
    divides: Any
    sent: Any  # forward and backward

    @classmethod
    def of(cls, options: Sequence[Option]) -> _Data:
        operands, results = (np.array([o[k] for o in options], np.int64) for k in range(2))
        return cls(operands, results, np.array([o.divides for o in options]), np.array([o[2:4] for o in options]))


class Way(NamedTuple):
    """How a value comes to a use: its types before and after, and whether from its second form."""

    use: Use
    src: ShType
    dst: ShType
    second: bool
    cost: Measure
    spared: bool = False  # whether another use has it sent, or no use takes it


class Costs:
    """The costs of the decisions of a graph, with so many bytes of optimizer ``state`` for each of what is trained.

    Communication counts by its ``weights`` forward and backward; where it counts alone, it is ``by_bytes``.
    """

    def __init__(
        self,
        graph: Graph,
        prices: Prices,
        device: Device,
        state: float,
        weights: tuple[float, float] = (1.0, 1.0),
        *,
        by_bytes: bool = False,
    ) -> None:
        self.graph, self.prices, self.device, self.state = graph, prices, device, state
        self.weights, self.by_bytes = weights, by_bytes
        self.sizes = graph.sizes
        self._data = {n.id: [_Data.of(each) for each in n.options] for n in graph.decisions}
        self._known: dict[Any, tuple[Table, Table, Table]] = {}
        self._factors: dict[Any, Factor] = {}
        #: What rows of options send together, of decisions whose rows are not the sum of their options.
        self._together: dict[int, dict[tuple[int, ...], Sent]] = {}
        self.nodes, self.uses = self._alike()
        #: The results of a program whose results lie as they like: what is pending is to be reduced after it.
        free = graph.program.outputs if graph.completes else []
        self.finished = [Use(Node(-1, "result", (), [v], [], 1), 0, v, 1) for v in free if is_value(v)]
        self.allowed: dict[int, list[Sequence[int] | None]] = {}  # options that the user leaves, for each axis

    # domains

    def domain(self, node: Node, axes: Sequence[int], fixed: Assignment) -> Any:
        """Rows of options: all of ``axes`` that fit, with those of ``fixed`` for the other axes."""
        limits = self.allowed.get(node.id, [None] * len(self.sizes))
        ranges: list[Sequence[int]] = []
        for a, limit in enumerate(limits):
            every: Sequence[int] = range(len(node.options[a])) if limit is None else limit
            ranges.append(every if a in axes else [fixed[node.id][a]])
        rows = np.array(list(itertools.product(*ranges)), np.int64).reshape(-1, len(self.sizes))
        ok, fronts = np.ones(len(rows), bool), np.zeros(rows.shape, bool)
        states = [(v, self.made(node, rows, i)) for i, v in enumerate(node.results)]
        states += [(x, self.needed(node, rows, i)) for i, x in enumerate(node.operands) if is_value(x)]
        for v, each in states:
            ok &= self.graph.fits(v, each)
            fronts |= each >= FRONT
        if node.op is not None:
            ok &= _parts_fit([each for _, each in states], len(rows))
        for a, options in enumerate(node.options):  # an axis in front of nothing is not another option
            ok &= fronts[:, a] | ~np.array([o.fronts for o in options])[rows[:, a]]
        return rows[ok]

    def first(self, node: Node) -> tuple[int, ...]:
        """The first option for each axis."""
        return tuple(
            [0 if limit is None else limit[0] for limit in self.allowed.get(node.id, [None] * len(self.sizes))]
        )

    def made(self, node: Node, rows: Any, i: int) -> States:
        """The states of a result."""
        return in_order(np.stack([d.results[rows[:, a], i] for a, d in enumerate(self._data[node.first.id])], -1))

    def needed(self, node: Node, rows: Any, i: int) -> States:
        """The states that a node takes an operand in."""
        return in_order(np.stack([d.operands[rows[:, a], i] for a, d in enumerate(self._data[node.first.id])], -1))

    @staticmethod
    def row(node: Node, now: Assignment) -> Any:
        """The row of an assignment that decides a node."""
        return np.array([now[node.first.id]])

    @staticmethod
    def chosen(node: Node, row: Sequence[int]) -> list[Option]:
        """The options of a node that a row takes, for each axis."""
        return [each[i] for each, i in zip(node.first.options, row, strict=True)]

    # costs of one decision

    def alone(self, node: Node, rows: Any) -> Measure:
        """What the options of a node cost by themselves."""
        cost = Measure(*(np.zeros(len(rows)) for _ in Measure._fields))
        if node.op is not None:
            cost += self._computing(node, rows)
        if node.kind == "argument" and not self.graph.completes:
            v = node.results[0]
            states = self.made(node, rows, 0)
            trained = self.graph.has_cotangent(v)
            memory = (2 + self.state if trained else 1) * v.nbytes / parts(states, self.sizes)
            cost += Measure(0.0, 0.0, memory, 0.0, 0.0)
            if trained:  # its gradient is brought to its type
                comm, sent = self._moved(v, cotangents(states), states, (1.0, 0.0), False)
                cost += Measure(0.0, comm, 0.0, sent, 1.0 * (sent > 0))
            elif self.graph.grad:  # data comes from outside at each step
                slowest = min(bandwidth for bandwidth, *_ in self.prices.links)
                cost += Measure(0.0, v.nbytes / parts(states, self.sizes) / slowest, 0.0, 0.0, 0.0)
            if v.id in self.graph.sliced:  # a reader expects no axis on the dim of the layers
                cost += Measure(0.0, 0.0, 0.0, 0.0, 0.5 * (dims_of(states) == 0).any(-1))
        for i, v in enumerate(node.results):
            if v.id in self.graph.saved or v.id in self.graph.repeats.needed:
                times = trip_count(v.within) if v.id in self.graph.saved else 1 / self.graph.checkpoints
                kept = times * v.nbytes / parts(self.made(node, rows, i), self.sizes)
                cost += Measure(0.0, 0.0, kept, 0.0, 0.0)
        return cost

    def _computing(self, node: Node, rows: Any) -> Measure:
        op, graph = node.op, self.graph
        assert op is not None
        divided = np.ones(len(rows))
        for a, n in enumerate(self.sizes):
            divided = np.where(self._data[node.first.id][a].divides[rows[:, a]], divided * n, divided)
        operands = [(i, x) for i, x in enumerate(op.operands) if isinstance(x, Value)]
        traffic = np.zeros(len(rows))
        for i, x in operands:
            cut = parts(self.needed(node, rows, i), self.sizes) if is_value(x) else divided
            traffic += x.nbytes / cut
        for i, v in enumerate(op.results):
            traffic += v.nbytes / parts(self.made(node, rows, i), self.sizes)
        has_cotangent = any(map(graph.has_cotangent, op.results))
        once = graph.is_live(node) * trip_count(op.results[0].within) / node.times
        if only_places(op.eqn):
            v = op.results[0]
            src, dst = self.needed(node, rows, 0), self.made(node, rows, 0)
            comm, sent = self._moved(v, src, dst, graph.runs(Use(node, 0, v, node.times)), graph.has_cotangent(v))
            return Measure(0.0, comm, 0.0, sent, 0.0).times(node.times)
        runs = once + node.again + (sum(graph.has_cotangent(x) for _, x in operands) if has_cotangent else 0)
        work = product_flops(op.eqn) or 0
        dtype = op.operands[0].dtype if work else op.results[0].dtype
        moving = (1 if work else FUSED) * traffic / self.device.bandwidth
        seconds = np.maximum(work / divided / self.device.rate(dtype), moving)
        comm, sent = np.zeros(len(rows)), np.zeros(len(rows))
        for share, n, (bandwidth, latency, launch) in zip(
            self._shares(node, rows), self.sizes, self.prices.links, strict=True
        ):
            comm += np.isinf(share[:, 0]) * _NEVER
            share = np.where(np.isinf(share), 0.0, share) * np.array([once + node.again, float(has_cotangent)])
            if share.any():
                b = share * (op.results[0].nbytes / parts(self.made(node, rows, 0), self.sizes))[:, None]
                sent += b.sum(1)
                comm += b @ self.weights / bandwidth + np.where(share.any(1), launch + 2 * (n - 1) * latency, 0.0)
        comm += (sent > 0) * self.graph.is_silent(node) * _NEVER
        return Measure(seconds * runs, comm, 0.0, sent, 0.0).times(node.times)

    def _shares(self, node: Node, rows: Any) -> Any:
        """What each row sends along each axis, forward and backward; of what is not a sum all along the slowest."""
        found = np.stack([d.sent[rows[:, a]] for a, d in enumerate(self._data[node.first.id])])
        together = self._together.setdefault(node.first.id, {})
        asked = (found[:, :, 0] > 0).sum(0) > 1
        if together:
            asked |= np.array([tuple(row) in together for row in rows.tolist()])
        slowest = min(range(len(self.sizes)), key=lambda a: (self.sizes[a] == 1, self.prices.links[a][0]))
        for k in np.flatnonzero(asked):
            row = tuple(rows[k].tolist())
            if row not in together:
                together[row] = self.graph.together(node, self.chosen(node, row)) or NEVER
            found[:, k] = 0.0
            found[slowest, k] = together[row]
        return found

    def corrected(self, now: Assignment, *, types: bool) -> bool:
        """Asks the typed ops about an assignment; whether costs changed: some send something else than was counted.

        What gives other results than were counted is not for sale any more, nor what an op refuses where its plan does
        not type: an option by itself, or all together.
        """
        changed = False
        for node in self.graph.decisions:
            row = now[node.id]
            together = self._together.setdefault(node.id, {})
            if node.op is None or only_places(node.op.eqn) or row in together:
                continue
            sent = self.graph.together(node, self.chosen(node, row))
            if sent is None and types:
                continue
            if sent is None or sent == NEVER:
                together[row] = NEVER
                self._refuse_alone(node)
                changed = True
            elif not np.allclose(sent, self._shares(node, np.array([row]))[:, 0].sum(0), rtol=1e-3):
                together[row] = sent
                changed = True
        if changed:
            self._factors.clear()
        return changed

    def _refuse_alone(self, node: Node) -> None:
        """Takes away the options that an equation refuses along one axis, even where it is replicated along others."""
        limits = [*self.allowed.get(node.id, [None] * len(self.sizes))]
        for a, limit in enumerate(limits):
            every = range(len(node.options[a])) if limit is None else limit
            rows = [tuple([k * (b == a) for b in range(len(limits))]) for k in every]
            limits[a] = [
                k
                for k, row in zip(every, rows, strict=True)
                if self.graph.together(node, self.chosen(node, row)) not in (None, NEVER)
            ]
            if not limits[a]:
                return
        self.allowed[node.id] = limits

    def _moved(
        self,
        v: Value,
        src: States,
        dst: States,
        times: tuple[float, float],
        back: bool,
        runs: bool = False,
        joins: bool = True,
    ) -> tuple[Table, Table]:
        """What it takes to bring a value, and its cotangent ``back``: by prices of pairs, or the plan that ``runs``.

        The cotangent of an argument ``joins`` the sum that brings it to the argument's type, if nothing is between.
        """
        (forward, backward), (first, again), price = self.weights, times, self.prices.pairs
        if runs:
            price = functools.partial(self.prices.planned, v.dtype, v.shape)
        there = price(src, dst)
        seconds = (forward * first + backward * again) * (there.seconds * v.nbytes + there.latency)
        sent = (first + again) * there.sent * v.nbytes
        if back:
            there = price(cotangents(dst), cotangents(src))
            if not self.graph.completes and self.graph.is_argument(v):
                cast = cotangents(unlabelled(src))
                # Of a gradient that each device has whole nothing is sent: by that price all would do all of the work.
                whole = (src == INVARIANT) & np.isin(dst, (INVARIANT, UNREDUCED))
                in_parts = joins & ~whole.any(-1)
                there = _summed(there, price(cotangents(dst), cast), price(cast, cotangents(src)), in_parts)
            seconds = seconds + backward * (there.seconds * v.nbytes + there.latency)
            sent = sent + there.sent * v.nbytes
        return seconds, sent

    # costs of two decisions

    def between(self, use: Use, src: States, dst: States) -> Measure:
        """What it costs to bring a value to a use: forward and backward, from each row to each."""
        (one, at), (other, there) = distinct(src), distinct(dst)
        back = self.graph.returns(use)
        key = (
            use.value.nbytes,
            self.graph.is_argument(use.value),
            one.tobytes(),
            other.tobytes(),
            back,
            self.graph.runs(use),
            self.graph.joins(use),
        )
        if key not in self._known:
            self._known[key] = self._pairs(use, np.repeat(one, len(other), 0), np.tile(other, (len(one), 1)))
        seconds, sent, moved = (t.reshape(len(one), len(other))[np.ix_(at, there)] for t in self._known[key])
        if use.node.op is not None and only_places(use.node.op.eqn):  # what a reshard moves is not moved for it
            seconds = seconds + moved * _NEVER
        elif self.graph.is_silent(use.node):
            seconds = seconds + (sent > 0) * _NEVER
        return self._used(use, seconds, sent, moved, dst)

    def _used(self, use: Use, seconds: Any, sent: Any, moved: Any, dst: States) -> Measure:
        memory = moved * self._kept(use) / parts(dst, self.sizes)
        return Measure(0.0 * seconds, seconds * use.times, memory, sent * use.times, moved * (sent > 0))

    def _pairs(self, use: Use, src: States, dst: States, runs: bool = False) -> tuple[Table, Table, Table]:
        """Seconds and bytes of a run, from each row to that of the same number; and whether anything moves."""
        v, back = use.value, self.graph.returns(use)
        seconds, sent = self._moved(v, src, dst, self.graph.runs(use), back, runs, self.graph.joins(use))
        if self.by_bytes:
            seconds = seconds + self._whole(src, dst, back) * v.nbytes
        return seconds, sent, (unlabelled(src) != unlabelled(dst)).any(-1).astype(float)

    def _whole(self, src: States, dst: States, back: bool) -> Any:
        """What it counts, for each byte, to make a part whole on each device: as much as to gather it.

        A part among zeros is as large in both directions. An invariant value sends nothing backward because each device
        computes all of its cotangent, where others do a share of the work: that may tell between them.
        """
        forward, backward = self.weights
        total = np.zeros(len(src))
        for a in range(src.shape[-1]):
            whole = src.copy()
            whole[:, a] = REDUCED
            counts = (dst[:, a] == UNREDUCED) * (forward + back * backward)
            counts = counts + (dst[:, a] == INVARIANT) * back * backward * (1 - _LITTLE)
            total += counts * (src[:, a] >= SHARDED) * self.prices.pairs(src, whole).seconds
        return total

    def _kept(self, use: Use) -> float:
        """Bytes on all devices of a resharded value that live on: for the backward pass, or as long as a loop."""
        v, node = use.value, use.node
        if node.kind == "slice":
            return v.nbytes * use.times * (2 if self.graph.has_cotangent(v) else 1)
        needed = v.id in self.graph.saved if node.op is None else (node.op.id, use.operand) in self.graph.kept
        lives = needed and not (node.again or node.checkpointed)
        return v.nbytes * use.times if lives else 0.0

    def _finishing(self, use: Use, states: States) -> Measure:
        """What it counts to bring a result to its cheapest type in which nothing is pending."""
        places = [REDUCED, *(SHARDED + d for d in range(len(use.value.shape)))]
        every = np.array([*itertools.product(places, repeat=len(self.sizes))])
        comm = self.between(use, states, every[self.graph.fits(use.value, every)]).comm.min(1)
        return NOTHING._replace(comm=np.where((states == UNREDUCED).any(-1), comm, 0.0))

    # all of them

    def _alike(self) -> tuple[list[list[Node]], list[list[Use]]]:
        """Nodes and uses that cost alike, whatever is decided: those of layers that repeat."""
        graph = self.graph
        nodes: dict[Any, list[Node]] = {}
        for node in graph.nodes:
            noted = tuple(
                (v.id in graph.saved, v.id in graph.repeats.needed, v.id in graph.sliced, v.differentiated)
                for v in node.results
            )
            nodes.setdefault((node.first.id, noted, node.again), []).append(node)
        uses: dict[Any, list[Use]] = {}
        for use in [*(Use(n, 0, n.operands[0], n.times) for n in graph.shared.values()), *graph.uses()]:
            source, k = graph.source[use.value.id]
            second = graph.shared.get(use.value.id)
            same = (self._kept(use), graph.runs(use), use.times, graph.returns(use))
            ids = (source.first.id, k, None if second is None else second.first.id, use.node.first.id, use.operand)
            uses.setdefault((ids, same), []).append(use)
        return list(nodes.values()), list(uses.values())

    def factors(self, domains: Domains) -> Iterator[Factor]:
        """The costs of all decisions; what repeats is one factor, that often."""
        rows = {i: d.tobytes() for i, d in domains.items()}
        for i, (node, *others) in enumerate(self.nodes):
            key: Any = ("node", i, rows[node.first.id])
            if (factor := self._factors.get(key)) is None:
                cost = self.alone(node, domains[node.first.id])
                factor = self._noted(key, Factor((node.first.id,), [cost.times(1 + len(others), reshards=1)]))
            yield factor
        for i, (use, *more) in enumerate(self.uses):
            key = ("use", i, rows[use.node.first.id], *(rows[n.first.id] for n, _ in self._sources(use)))
            if (factor := self._factors.get(key)) is None:
                ids, ways = self._ways(use, domains)
                factor = self._noted(key, Factor(ids, [way.times(1 + len(more), reshards=1) for way in ways]))
            yield factor
        for use in self.finished:
            source, k = self.graph.source[use.value.id]
            cost = self._finishing(use, self.made(source, domains[source.first.id], k))
            yield Factor((source.first.id,), [cost])

    def _noted(self, key: Any, factor: Factor) -> Factor:
        """The factor, which is remembered if it is small: axes in turn ask for it again."""
        if factor.ways[0].seconds.size <= _SMALL:
            self._factors[key] = factor
        return factor

    def _sources(self, use: Use) -> list[tuple[Node, Callable[[Any], States]]]:
        """The nodes that a use may take its value from, and the states in which they have it."""
        source, k = self.graph.source[use.value.id]
        second = self.graph.shared.get(use.value.id)
        found: list[tuple[Node, Callable[[Any], States]]] = [(source, functools.partial(self.made, source, i=k))]
        if second is not None and second is not use.node:
            found.append((second, functools.partial(self.needed, second, i=0)))
        return found

    def _ways(self, use: Use, domains: Domains) -> tuple[tuple[int, ...], list[Measure]]:
        """The decisions that say what a use costs, and what it does from each of its sources."""
        sources, need = self._sources(use), self.needed(use.node, domains[use.node.first.id], use.operand)
        ways = [self.between(use, states(domains[n.first.id]), need) for n, states in sources]
        if len(ways) > 1:
            ways = [Measure(*(np.expand_dims(x, 1 - i) for x in way)) for i, way in enumerate(ways)]
        return (*(n.first.id for n, _ in sources), use.node.first.id), ways

    # of one assignment

    def ways(self, now: Assignment, byte: float = 0.0) -> list[Way]:
        """How each value comes to each use, and to its second form; priced by the plans that run."""
        found = [(some, self._way(some[0], now, byte)) for some in self.uses]
        spared = self._spared(found)
        every = [way._replace(use=use) for some, way in found for use in some]
        return [w._replace(cost=NOTHING, spared=True) if w.use.place in spared else w for w in every]

    def _spared(self, found: Sequence[tuple[list[Use], Way]]) -> set[str]:
        """The places of uses that another use of the value in the same body has it sent for, which costs no less.

        And those of second forms that no use takes: layers that are alike have them together.
        """
        alike: dict[Any, list[tuple[float, str]]] = {}
        second = {use.value.id for some, way in found if way.second for use in some}
        spared = set[str]()
        for some, way in found:
            for use in some if way.cost.sent else ():
                if use.node.kind == "shared" and use.value.id not in second:
                    spared.add(use.place)
                else:
                    key = use.value.id, self.graph.body(use), way.second, way.dst
                    alike.setdefault(key, []).append((-way.cost.sent, use.place))
        return spared.union(place for same in alike.values() for _, place in sorted(same)[1:])

    def _way(self, use: Use, now: Assignment, byte: float) -> Way:
        sources, v = self._sources(use), use.value
        _, ways = self._ways(use, {n.first.id: self.row(n, now) for n in (*(n for n, _ in sources), use.node)})
        best = min(range(len(ways)), key=lambda i: (float(np.ravel(ways[i].weighed(byte, 1e-12))[0]), i))
        src, dst = (
            sources[best][1](self.row(sources[best][0], now)),
            self.needed(use.node, self.row(use.node, now), use.operand),
        )
        stays = (src == dst).all() and sources[best][0].kind != "argument"
        cost = NOTHING if stays else self._used(use, *self._pairs(use, src, dst, runs=True), dst)
        return Way(use, self.typed(sources[best][0], v, src), self.typed(use.node, v, dst), bool(best), cost.first)

    def typed(self, node: Node, v: Value, states: States) -> ShType:
        """The type of a value that a node makes or takes; an argument whose cotangent is summed first is reduced."""
        shown = unlabelled(states) if node.kind == "argument" else states
        return typed(self.graph.mesh, v.dtype, v.shape, shown[0].tolist())

    def price(self, now: Assignment, byte: float = 0.0) -> Measure:
        """What an assignment costs, with reshards by the plans that run."""
        total = NOTHING
        for node, *others in self.nodes:
            cost = self.alone(node, self.row(node, now))
            total += cost.first.times(1 + len(others), reshards=1)
        found = [(some, self._way(some[0], now, byte)) for some in self.uses]
        spared = self._spared(found)
        for some, way in found:
            times = sum(use.place not in spared for use in some)
            total += way.cost.times(times, reshards=times > 0)
        for use in self.finished:
            source, k = self.graph.source[use.value.id]
            total += self._finishing(use, self.made(source, self.row(source, now), k)).first
        return total


def combined(
    factors: Iterable[Factor],
    byte: float,
    reshard: float,
    shares: tuple[float, float] = (1.0, 1.0),
    least: Callable[[tuple[int, ...], Table], Table] = lambda ids, table: table,
) -> Mapping[tuple[int, ...], Table]:
    """Tables of seconds by the decisions that they are over, in ascending order; of each way first the ``least``."""
    tables: dict[tuple[int, ...], Table] = {}
    for factor in factors:
        ways = [least(factor.ids, way.weighed(byte, reshard, shares)) for way in factor.ways]
        table = functools.reduce(np.minimum, ways)
        ids = tuple(sorted(set(factor.ids)))
        letters = "".join(chr(97 + ids.index(i)) for i in factor.ids)
        # What is tied to itself is the diagonal.
        table = np.einsum(f"{letters}->{''.join(sorted(set(letters)))}", table)
        tables[ids] = tables[ids] + table if ids in tables else table
    return tables
