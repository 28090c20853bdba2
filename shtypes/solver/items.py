"""The IR of the solver: values, ops, loops, branches and checkpoints of a plain program; and walks over them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from jax.extend.core import Primitive

from shtypes._compat.derivative_rules import saves
from shtypes._compat.in_force import InForce, set_at
from shtypes._compat.jaxprs import Scan, inner_jaxprs, is_literal, jaxpr_of, moves_smoothly
from shtypes.analysis.flops import Product, products
from shtypes.scopes.scope_rules import NoComm
from shtypes.traced.equations import SourceLine
from shtypes.types import dtypes


@dataclass(eq=False)
class Value:
    """An array of the program."""

    id: int
    shape: tuple[int, ...]
    dtype: str  # the short name
    constant: bool = False  # whether it depends on no argument
    differentiated: bool = False  # whether it has a cotangent in the backward pass
    name: str = ""  # the path of an argument; else the primitive that computes it
    captured: Any = None  # the array, of a constant that the program closes over
    place: Any = None  # the dims along which it is an iota, if any
    within: frozenset[Loop] = frozenset()  # the loops whose body computes it

    @property
    def nbytes(self) -> int:
        """Bytes of the global array."""
        return math.prod(self.shape) * dtypes.itemsize(self.dtype)


#: The ids of the equations around an equation, outermost first, and its own.
Path = tuple[int, ...]
#: An operand of an equation: a value of the program or a literal.
Operand = Value | Any
#: Pairs of operands and results between which tangents and cotangents flow.
Flows = Iterable[tuple[Sequence[Operand], Sequence[Operand]]]


@dataclass(eq=False)
class Op:
    """An equation, with the number of its runs. One without results, like a print, takes operands of any types."""

    id: int
    eqn: Any
    operands: list[Operand]
    results: list[Value]
    times: float
    place: SourceLine
    path: Path
    checkpointed: bool = False
    within: frozenset[Loop] = frozenset()  # the loops in whose body it runs, even if no operand depends on them
    reads: tuple[bool, ...] = ()  # for each operand, whether live results depend on its values and not only the type

    @functools.cached_property
    def no_comm(self) -> bool:
        """Whether a `no_comm` scope of the program is around it."""
        return any(isinstance(rule, NoComm) for rule in (set_at(self.eqn) or InForce()).rules)

    @functools.cached_property
    def products(self) -> list[Product]:
        """The matrix products and convolutions that it is, or has in its bodies."""
        return products(self.eqn)

    @property
    def name(self) -> str:
        """JAX's name of the primitive."""
        return str(self.eqn.primitive.name)

    @functools.cached_property
    def moved_by(self) -> tuple[tuple[Value, ...], ...]:
        """For each operand, the results that may have a derivative by it."""
        if not inner_jaxprs(self.eqn):
            return (tuple(self.results),) * len(self.operands)
        moves = [moves_smoothly(self.eqn, [i]) for i in range(len(self.operands))]
        return tuple(tuple(itertools.compress(self.results, moved)) for moved in moves)

    def flows(self) -> Flows:
        """Each operand and the results that may have a derivative by it."""
        for x, results in zip(self.operands, self.moved_by, strict=True):
            yield (x,), results


#: As how many steps a `while_loop` counts: as one, a little more than what is done once before it.
STEPS_OF_WHILE: Final = 1 + 1e-6


@dataclass(eq=False)
class Loop:
    """A `scan` or `while_loop`, whose carry has one type in all steps."""

    id: int
    eqn: Any
    scan: Scan  # a `while_loop` is one without slices
    operands: list[Operand]
    items: list[Item]  # of a `while_loop`: first those of its predicate
    inputs: list[Value]  # of the body: the carry, then the slices
    outputs: list[Operand]  # of the body: the next carry, then the stacked values
    results: list[Value]
    times: float
    place: SourceLine
    checkpointed: bool = False
    predicate: Operand = None  # of a `while_loop`
    tests: int = 0  # how many of the items are the predicate's
    within: frozenset[Loop] = frozenset()  # see `Op`
    inside: frozenset[Loop] = frozenset()  # the same of its body

    def carries(self) -> Iterator[tuple[Operand, Value, Operand, Value]]:
        """For each carry: its initial value, the body's input, the body's output and the final value."""
        k, first = self.scan.carry, self.operands[self.scan.consts :]
        return zip(first[:k], self.inputs[:k], self.outputs[:k], self.results[:k], strict=True)

    def slices(self) -> Iterator[tuple[Operand, Value]]:
        """Each sliced operand (``xs``), with its slice."""
        k = self.scan.carry
        return zip(self.operands[self.scan.consts + k :], self.inputs[k:], strict=True)

    def stacks(self) -> Iterator[tuple[Operand, Value]]:
        """Each stacked output (``ys``) of the body, with its stack."""
        k = self.scan.carry
        return zip(self.outputs[k:], self.results[k:], strict=True)

    @property
    def runs_once(self) -> bool:
        """Whether the next carry of its only step is the final one, and no step reads it."""
        return self.steps == 1

    @property
    def steps(self) -> float:
        """The number of its steps, as they are counted."""
        return self.scan.length if self.predicate is None else STEPS_OF_WHILE

    @property
    def returned(self) -> list[Operand]:
        """What its body and its predicate return."""
        return [*self.outputs, self.predicate]

    def flows(self) -> Flows:
        """The flows of carries, slices and stacks."""
        for x0, v, x1, r in self.carries():
            yield from ((((x0,), (v,)), ((x1,), (r,))) if self.runs_once else (((x0, v, x1), (v, r)),))
        yield from (((x,), (y,)) for x, y in (*self.slices(), *self.stacks()))


@dataclass(eq=False)
class Branches:
    """A `cond` or `switch`, whose results have one type in all branches."""

    id: int
    eqn: Any
    operands: list[Operand]  # the index alone
    branches: list[Branch]
    results: list[Value]
    times: float
    place: SourceLine
    checkpointed: bool = False
    within: frozenset[Loop] = frozenset()  # see `Op`

    @property
    def items(self) -> list[Item]:
        """The items of all branches."""
        return [item for branch in self.branches for item in branch.items]

    @property
    def returned(self) -> list[Operand]:
        """What all branches return."""
        return [x for branch in self.branches for x in branch.outputs]

    def joins(self) -> Iterator[tuple[tuple[Operand, ...], Value]]:
        """What the branches return for each result, with it."""
        return zip(zip(*(branch.outputs for branch in self.branches), strict=True), self.results, strict=True)

    def flows(self) -> Flows:
        """The flows from what branches return to the results."""
        return ((xs, (r,)) for xs, r in self.joins())


class Branch(NamedTuple):
    """One branch of a `cond` or `switch`."""

    items: list[Item]
    outputs: list[Operand]


@dataclass(eq=False)
class Checkpoint:
    """A `jax.checkpoint`, which the backward pass recomputes; its results are values of its items."""

    id: int
    eqn: Any  # None for one that the plan adds
    operands: list[Operand]
    items: list[Item]
    outputs: list[Operand]
    saves_all: bool = False  # whether its policy, or an enclosing one's, saves reshards too

    def saves(self, eqn: Any) -> bool:
        """Whether its policy saves the results of an equation in it."""
        return self.eqn is not None and _policy_saves(self.eqn, eqn.primitive, [v.aval for v in eqn.invars], eqn.params)

    @property
    def results(self) -> list[Value]:
        """The values among its outputs."""
        return [x for x in self.outputs if isinstance(x, Value)]


Item = Op | Loop | Branches | Checkpoint


def walk(items: Sequence[Item], inside: Path = ()) -> Iterator[tuple[Op | Loop | Branches, Path]]:
    """Yields all ops, loops and branches, nested ones too, with the ids of the checkpoints around each."""
    for item in items:
        if isinstance(item, Checkpoint):
            yield from walk(item.items, (*inside, item.id))
            continue
        yield item, inside
        if not isinstance(item, Op):
            yield from walk(item.items, inside)


#: The primitive of a reshard for checkpoint policies.
RESHARD: Final = Primitive("reshard")


def _policy_saves(checkpoint: Any, primitive: Any, avals: Sequence[Any], params: Mapping[str, Any]) -> bool:
    policy = checkpoint.params["policy"]
    return bool(policy) and saves(policy(primitive, *avals, **params))


def saves_reshards(checkpoint: Any) -> bool:
    """Whether the policy of a checkpoint saves the reshards of all of its values."""
    jaxpr = jaxpr_of(checkpoint.params["jaxpr"])
    avals = dict.fromkeys(v.aval for eqn in jaxpr.eqns for v in (*eqn.invars, *eqn.outvars) if not is_literal(v))
    return bool(avals) and all(_policy_saves(checkpoint, RESHARD, [aval], {}) for aval in avals)


def demand(items: Sequence[Item], needed: set[int], take: Callable[[Op | Checkpoint], None]) -> None:
    """Adds to ``needed`` the values that they depend on, by a backward walk; ``take`` does so for an op or checkpoint.

    A needed carry depends on its initial value, on the body's output and on the predicate, to a fixed point.
    """
    for item in reversed(items):
        if isinstance(item, Branches):
            needed.update(x.id for xs, r in item.joins() if r.id in needed for x in xs if is_value(x))
            demand(item.items, needed, take)
            runs = not needed.isdisjoint(v.id for one, _ in walk([item]) for v in one.results)
            needed.update(x.id for x in item.operands if runs and is_value(x))
            continue
        if not isinstance(item, Loop):
            take(item)
            continue
        before = -1
        while len(needed) != before:
            before = len(needed)
            for _, v, x1, r in item.carries():
                if r.id in needed or (v.id in needed and not item.runs_once):
                    needed.update(x.id for x in (v, x1)[item.runs_once :] if is_value(x))
            needed.update(y.id for y, r in item.stacks() if is_value(y) and r.id in needed)
            if is_value(item.predicate) and not needed.isdisjoint(v.id for v in (*item.inputs, *item.results)):
                needed.add(item.predicate.id)
            demand(item.items, needed, take)
        inputs = [*((x0, v) for x0, v, _, _ in item.carries()), *item.slices()]
        needed.update(x.id for x, v in inputs if is_value(x) and v.id in needed)


def note_loops(items: Sequence[Item], within: frozenset[Loop] = frozenset(), *, hoists: bool = False) -> None:
    """Sets ``within`` of items and values.

    JAX hoists loop-invariant values out of scans that it differentiates, and out of the scans inside these.
    """
    for item in items:
        if isinstance(item, Checkpoint):
            note_loops(item.items, within)
            continue
        item.within = within
        if isinstance(item, Loop):
            _note_loop(item, within, hoists)
            continue
        if isinstance(item, Branches):
            note_loops(item.items, within, hoists=hoists)
            for xs, r in item.joins():
                r.within = within.union(*map(_loops_of, xs))
            continue
        around = within.union(*map(_loops_of, item.operands))
        for v in item.results:
            v.within = around


def _note_loop(loop: Loop, within: frozenset[Loop], hoists: bool) -> None:
    """`note_loops` for a loop, to a fixed point over its carries."""
    hoists = hoists or any(isinstance(x, Value) and x.differentiated for x in loop.operands)
    loop.inside = within if hoists else within | {loop}
    for x, v in (*((x0, v) for x0, v, _, _ in loop.carries()), *loop.slices()):
        v.within = within | _loops_of(x) | {loop}
    before: list[frozenset[Loop]] = []
    while before != (now := [v.within for v in loop.inputs]):
        before = now
        note_loops(loop.items, loop.inside, hoists=hoists)
        for _, v, x1, _ in loop.carries():
            v.within |= _loops_of(x1)
    for _, v, _, r in loop.carries():
        r.within = v.within - {loop}
    for y, r in loop.stacks():
        r.within = within | _loops_of(y) - {loop}


def _loops_of(x: Operand) -> frozenset[Loop]:
    return x.within if isinstance(x, Value) else frozenset()


def trip_count(*within: frozenset[Loop]) -> float:
    """The number of runs of a body inside all of these loops."""
    return math.prod(loop.steps for loop in frozenset().union(*within))


def is_value(x: Operand) -> bool:
    """Whether an operand depends on arguments, so that its type is a decision."""
    return isinstance(x, Value) and not x.constant


def lifetimes(items: Sequence[Item]) -> dict[int, float]:
    """By result of a product: the part of the items of its body between its own and the last that reads it.

    XLA fuses other ops with those that read them.
    """
    found, made = dict[int, float](), dict[int, int]()
    for k, item in enumerate(items):
        if not isinstance(item, Op):
            found |= lifetimes(item.items)
        read = (x.id for x in item.operands if isinstance(x, Value) and x.id in made)
        found.update((i, (k - made[i]) / len(items)) for i in read)
        if isinstance(item, Op) and item.products:
            made.update((v.id, k) for v in item.results)
    return found
