"""What a plain program is made of: values, operations, loops and checkpoints; and walks over them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jax.extend.core import Primitive

from shtypes._compat.derivative_rules import saves
from shtypes._compat.in_force import InForce, set_at
from shtypes._compat.jaxprs import Scan, is_literal, jaxpr_of
from shtypes.scopes.comm import NoComm
from shtypes.traced.equations import SourceLine, operands_read
from shtypes.types import dtypes


@dataclass(eq=False)
class Value:
    """An array of the program."""

    id: int
    shape: tuple[int, ...]
    dtype: str  # the short name
    constant: bool = False  # whether it depends on no argument
    differentiated: bool = False  # whether it has a cotangent in the backward pass
    name: str = ""  # its path, of an argument; else what made it
    number: Any = None  # what it is, of a constant that the program captured
    place: Any = None  # along which dims its elements count, where that is known
    within: frozenset[Loop] = frozenset()  # the loops in whose steps it is made

    @property
    def nbytes(self) -> int:
        """Bytes of the array on all devices."""
        return math.prod(self.shape) * dtypes.itemsize(self.dtype)


#: Where an equation is: the identities of those around it, outermost first, and its own.
Path = tuple[int, ...]
#: What equations take: values of the program, and numbers.
Operand = Value | Any
#: Pairs of operands and results between which derivatives flow.
Flows = Iterable[tuple[Sequence[Operand], Sequence[Operand]]]


@dataclass(eq=False)
class Op:
    """An equation, and how often it runs."""

    id: int
    eqn: Any
    operands: list[Operand]
    results: list[Value]
    times: int
    place: SourceLine
    path: Path
    checkpointed: bool = False
    within: frozenset[Loop] = frozenset()  # the loops in whose steps it runs, whatever it takes

    @functools.cached_property
    def silent(self) -> bool:
        """Whether a scope that the program opens around it forbids communication."""
        return any(isinstance(rule, NoComm) for rule in (set_at(self.eqn) or InForce()).rules)

    @functools.cached_property
    def reads(self) -> tuple[bool, ...]:
        """Of which operands it reads the values, and not the types alone."""
        return operands_read(self.eqn)

    @property
    def name(self) -> str:
        """JAX's name of the primitive."""
        return str(self.eqn.primitive.name)

    def flows(self) -> Flows:
        """What cotangents come to, and what from."""
        yield self.operands, self.results


@dataclass(eq=False)
class Loop:
    """A scan: its body's items run ``length`` times; the carry has one type all along."""

    id: int
    eqn: Any
    scan: Scan
    operands: list[Operand]
    items: list[Item]
    inputs: list[Value]  # of the body: the carry, then the slices
    outputs: list[Operand]  # of the body: the next carry, then what is stacked
    results: list[Value]
    times: int
    place: SourceLine
    checkpointed: bool = False
    within: frozenset[Loop] = frozenset()  # as of an `Op`

    def carries(self) -> Iterator[tuple[Operand, Value, Operand, Value]]:
        """Of each carry the first value, the one in the body, the next one and the last one."""
        k, first = self.scan.carry, self.operands[self.scan.consts :]
        return zip(first[:k], self.inputs[:k], self.outputs[:k], self.results[:k], strict=True)

    def slices(self) -> Iterator[tuple[Operand, Value]]:
        """What is sliced, and its slice."""
        k = self.scan.carry
        return zip(self.operands[self.scan.consts + k :], self.inputs[k:], strict=True)

    def stacks(self) -> Iterator[tuple[Operand, Value]]:
        """What is stacked, and the stack."""
        k = self.scan.carry
        return zip(self.outputs[k:], self.results[k:], strict=True)

    def flows(self) -> Flows:
        """As of an `Op`."""
        yield from (((x0, v, x1), (v, r)) for x0, v, x1, r in self.carries())
        yield from (((x,), (made,)) for x, made in (*self.slices(), *self.stacks()))


@dataclass(eq=False)
class Checkpoint:
    """A part of the program that is computed again in the backward pass; its results are values of its items."""

    id: int
    eqn: Any  # None of one that the program has not
    items: list[Item]
    outputs: list[Operand]
    keeps_all: bool = False  # whether its policy, or that of one around it, keeps reshards too

    def keeps(self, eqn: Any) -> bool:
        """Whether its policy keeps the results of an equation in it."""
        return self.eqn is not None and _keeps(self.eqn, eqn.primitive, [v.aval for v in eqn.invars], eqn.params)

    @property
    def results(self) -> list[Value]:
        """The values among what it puts out."""
        return [x for x in self.outputs if isinstance(x, Value)]


Item = Op | Loop | Checkpoint


def walked(items: Sequence[Item], inside: Path = ()) -> Iterator[tuple[Op | Loop, Path]]:
    """All equations and loops, with those in loops and checkpoints, and the numbers of the checkpoints around each."""
    for item in items:
        if isinstance(item, Checkpoint):
            yield from walked(item.items, (*inside, item.id))
            continue
        yield item, inside
        if isinstance(item, Loop):
            yield from walked(item.items, inside)


#: The primitive that a checkpoint's policy is shown for a reshard.
RESHARD: Final = Primitive("reshard")


def _keeps(checkpoint: Any, primitive: Any, avals: Sequence[Any], params: Mapping[str, Any]) -> bool:
    policy = checkpoint.params["policy"]
    return policy is not None and saves(policy(primitive, *avals, **params))


def keeps_reshards(checkpoint: Any) -> bool:
    """Whether the policy of a checkpoint keeps a reshard, whatever value of it is moved."""
    jaxpr = jaxpr_of(checkpoint.params["jaxpr"])
    avals = dict.fromkeys(v.aval for eqn in jaxpr.eqns for v in (*eqn.invars, *eqn.outvars) if not is_literal(v))
    return bool(avals) and all(_keeps(checkpoint, RESHARD, [aval], {}) for aval in avals)


def demand(items: Sequence[Item], needed: set[int], take: Callable[[Op | Checkpoint], None]) -> None:
    """Adds to the values that are needed those that they are made of, last first; ``take`` does so for one item.

    Of a loop a carry that is needed is made of the first and of all steps.
    """
    for item in reversed(items):
        if not isinstance(item, Loop):
            take(item)
            continue
        before = -1
        while len(needed) != before:
            before = len(needed)
            for _, v, x1, r in item.carries():
                if not needed.isdisjoint((v.id, r.id)):
                    needed.update(x.id for x in (v, x1) if is_value(x))
            needed.update(y.id for y, r in item.stacks() if is_value(y) and r.id in needed)
            demand(item.items, needed, take)
        taken = [*((x0, v) for x0, v, _, _ in item.carries()), *item.slices()]
        needed.update(x.id for x, v in taken if is_value(x) and v.id in needed)


def note_loops(items: Sequence[Item], within: frozenset[Loop] = frozenset()) -> None:
    """Says in which loops values are made: JAX hoists loop-invariant values out of scans that it differentiates."""
    for item in items:
        if isinstance(item, Checkpoint):
            note_loops(item.items, within)
            continue
        item.within = within
        if isinstance(item, Loop):
            _note_loop(item, within)
            continue
        around = within.union(*map(_loops_of, item.operands))
        for v in item.results:
            v.within = around


def _note_loop(loop: Loop, within: frozenset[Loop]) -> None:
    """As `note_loops`; of carries each by itself depends on what its first value and its next ones do."""
    hoists = any(isinstance(x, Value) and x.differentiated for x in loop.operands)
    for x, v in (*((x0, v) for x0, v, _, _ in loop.carries()), *loop.slices()):
        v.within = within | _loops_of(x) | {loop}
    before: list[frozenset[Loop]] = []
    while before != (now := [v.within for v in loop.inputs]):
        before = now
        note_loops(loop.items, within if hoists else within | {loop})
        for _, v, x1, _ in loop.carries():
            v.within |= _loops_of(x1)
    for _, v, _, r in loop.carries():
        r.within = v.within - {loop}
    for y, r in loop.stacks():
        r.within = within | _loops_of(y) - {loop}


def _loops_of(x: Operand) -> frozenset[Loop]:
    return x.within if isinstance(x, Value) else frozenset()


def trip_count(*within: frozenset[Loop]) -> int:
    """How many times the body runs that is inside all of these loops."""
    return math.prod(loop.scan.length for loop in frozenset().union(*within))


def is_value(x: Operand) -> bool:
    """Whether an operand is a value that depends on arguments, and so has a type to be chosen."""
    return isinstance(x, Value) and not x.constant
