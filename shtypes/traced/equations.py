"""The live equations of a traced program, each with its line, direction, and number of runs.

Dead equations are left out, as by the compiler, also in bodies of loops and calls.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from jax import lax

from shtypes._compat.eqn_frames import Frame, of_frames, users_frame
from shtypes._compat.jaxprs import (
    ClosedCall,
    Cond,
    Scan,
    While,
    inner_jaxprs,
    is_literal,
    jaxpr_of,
    operands_with_cotangents,
    vars_with_cotangents,
)
from shtypes.caches import CACHE_SIZE
from shtypes.context.frames import Owner
from shtypes.core.call_with_rules import call_with_rules_p
from shtypes.core.collective import Collective as Collective
from shtypes.core.combined_collectives import Joint as Joint
from shtypes.core.derived_fns import Jvp, Transpose, Vmap
from shtypes.core.dim_fns import Composite
from shtypes.core.local import Local
from shtypes.core.operation import Operation, OperationPrimitive, applied_by, direction_of
from shtypes.core.shard_fn import Linear, ShardFn, program_of, without_derivative
from shtypes.traced.coverage import control_of, why_not_covered
from shtypes.types import ShType

#: Local functions that may have unused operands, such as the primal of a derivative.
_COMPOSED = (Composite, Jvp, Transpose, Vmap)

#: JAX's calls of functions with derivative rules.
CUSTOM_DERIVATIVES: Final = ("custom_jvp_call", "custom_vjp_call")


class SourceLine(NamedTuple):
    """A line of the user's code; empty for an equation that JAX added."""

    file: str = ""
    line: int = 0
    function: str = ""
    library: str = ""  # the installed library's function that the line called, which bound the equation

    def __str__(self) -> str:
        name = self.file.replace("\\", "/").rsplit("/", 1)[-1]
        return (f"{name}:{self.line}" + (f" (in {self.library})" if self.library else "")) if self.file else ""

    def to_json(self) -> dict[str, str | int]:
        """Its parts by name; ``library`` only if there is one."""
        parts = self._asdict()
        return parts if self.library else {name: part for name, part in parts.items() if name != "library"}

    @property
    def text(self) -> str:
        """The source of the line without indentation; empty if unavailable."""
        if not self.file:
            return ""
        linecache.checkcache(self.file)  # may have been edited
        return linecache.getline(self.file, self.line).strip()


@dataclass(frozen=True)
class Branch:
    """One branch of a `cond` or `switch`."""

    choice: int  # the id of the conditional
    index: int  # the branch's index
    count: int  # the number of branches
    place: SourceLine  # the user's line of the conditional


class RuledCall(NamedTuple):
    """A call of a function with derivative rules."""

    eqn: Any  # JAX's equation
    times: int | None  # the number of runs, or None in a while loop


class Equation(NamedTuple):
    """An equation without bodies, or whose bodies are not analysed."""

    eqn: Any  # JAX's equation
    place: SourceLine  # the user's line
    direction: str  # ``"forward"``, ``"backward"`` or ``"recomputed"`` (by checkpoint, in the backward pass)
    times: int | None  # the number of runs, or None in a while loop
    branches: tuple[Branch, ...] = ()  # the enclosing branches, outermost first
    checkpointed: bool = False  # whether a checkpoint may recompute it
    depth: int = 0  # the number of enclosing derivatives
    #: Whether its transpose may run: not inside a custom derivative, nor without a cotangent. Called only where that
    #: matters: the answer takes a walk over the body and the functions of shards in it.
    is_transposed: Callable[[], bool] = lambda: True
    call: RuledCall | None = None  # the outermost call with a custom derivative that it is in


@of_frames
def place_of(frames: Sequence[Frame]) -> SourceLine:
    """The user's line of an equation, or that of an installed library if the user has none."""
    inmost = next((f for f in frames if f.kind in (Owner.USERS, Owner.INSTALLED)), None)
    if inmost is None:
        return SourceLine()
    in_library = users_frame(frames) if inmost.kind is Owner.INSTALLED else None
    frame, library = in_library or (inmost, "")
    return SourceLine(frame.code.co_filename, frame.line, frame.code.co_qualname, library)


def equations(
    jaxpr: Any,
    stack: str = "",
    keep: Callable[[Any], bool] = lambda eqn: True,
    used: Collection[int] | None = None,
) -> Iterator[Equation]:
    """All live equations of a traced program that ``keep`` accepts, in program order, with those of its bodies.

    ``used``: the results that are used; all by default.
    """
    opened = jaxpr_of(jaxpr)
    live = tuple(used is None or i in used for i in range(len(opened.outvars)))
    yield from Walk(keep).equations(opened, live, BodyContext(stack))


def equations_of(eqns: Sequence[Any], stack: str = "") -> Iterator[Equation]:
    """Like `equations`, for a list of equations whose results all count as used."""
    outvars = [v for eqn in eqns for v in eqn.outvars]
    yield from equations(SimpleNamespace(eqns=eqns, outvars=outvars, invars=(), constvars=()), stack)


class Body(NamedTuple):
    """A sub-jaxpr of an equation: which results are used, its trip count, and as a branch ``(index, count)``."""

    jaxpr: Any
    used: tuple[bool, ...]
    trips: int | None = 1
    branch: tuple[int, int] | None = None


class Needs(NamedTuple):
    """The operands and sub-jaxprs that an equation needs for its used results."""

    operands: tuple[bool, ...]
    bodies: tuple[Body, ...] = ()


@functools.cache
def _needs_all(operands: int) -> Needs:
    """All operands, as our operations need."""
    return Needs((True,) * operands)


class BodyContext(NamedTuple):
    """What the equations of a body share: the name stack, and the rest as in `Equation`."""

    stack: str = ""
    times: int | None = 1
    branches: tuple[Branch, ...] = ()
    checkpointed: bool = False
    transposed: bool = True
    call: RuledCall | None = None

    def inside(self, body: Body, choice: int, place: SourceLine) -> BodyContext:
        """The context of a body of an equation at ``place``; ``choice`` is the id of a `cond`."""
        branches = self.branches if body.branch is None else (*self.branches, Branch(choice, *body.branch, place))
        times = None if self.times is None or body.trips is None else self.times * body.trips
        return self._replace(times=times, branches=branches)


class Walk:
    """One walk over a program; caches the live equations of each body."""

    def __init__(self, keep: Callable[[Any], bool] = lambda eqn: True) -> None:
        self._keep = keep
        self._live: dict[Any, tuple[list[tuple[Any, Needs]], tuple[bool, ...]]] = {}
        self._kept: dict[Any, list[tuple[Any, Needs]]] = {}
        self._makers: dict[int, dict[Any, Any]] = {}  # for each body, its equations by result
        self._with_cotangents: dict[int, set[Any]] = {}  # for each body, its variables
        self._choices = 0

    def equations(self, jaxpr: Any, used: tuple[bool, ...], context: BodyContext) -> Iterator[Equation]:
        """The equations of a body and of the bodies inside it."""
        stack, times, branches, checkpointed, transposed, call = context
        key = (id(jaxpr), used)
        if key not in self._kept:
            self._kept[key] = [(eqn, use) for eqn, use in self.live(jaxpr, used)[0] if use.bodies or self._keep(eqn)]
        for eqn, use in self._kept[key]:
            full_stack = f"{stack}/{eqn.source_info.name_stack}"
            place = place_of(eqn)
            if not use.bodies or why_not_covered(eqn):
                depth = full_stack.count("jvp(")
                direction = direction_of(full_stack)
                moves_back = functools.partial(self._has_cotangent, jaxpr, eqn) if transposed else lambda: False
                yield Equation(eqn, place, direction, times, branches, checkpointed, depth, moves_back, call)
            self._choices += 1
            choice = self._choices
            in_checkpoint = checkpointed or eqn.primitive.name in ("remat2", "checkpoint")
            by_rules = eqn.primitive is call_with_rules_p
            ruled = by_rules or eqn.primitive.name in CUSTOM_DERIVATIVES
            inner = context._replace(
                stack=full_stack,
                checkpointed=in_checkpoint,
                transposed=transposed and not by_rules,
                call=RuledCall(eqn, times) if call is None and ruled else call,
            )
            for body in use.bodies:
                yield from self.equations(body.jaxpr, body.used, inner.inside(body, choice, place))

    def _has_cotangent(self, jaxpr: Any, eqn: Any) -> bool:
        """Whether a result of an equation of a body has a cotangent where all results of the body have."""
        if id(jaxpr) not in self._with_cotangents:
            self._with_cotangents[id(jaxpr)] = with_cotangents(jaxpr)
        return not self._with_cotangents[id(jaxpr)].isdisjoint(eqn.outvars)

    def live(self, jaxpr: Any, used: tuple[bool, ...]) -> tuple[list[tuple[Any, Needs]], tuple[bool, ...]]:
        """The live equations, with their needs, and the live operands of a body."""
        key = (id(jaxpr), used)
        if key not in self._live:
            needed = {v for v, u in zip(jaxpr.outvars, used, strict=True) if u and not is_literal(v)}
            needed_eqns = []
            for eqn in reversed(jaxpr.eqns):
                if needed.isdisjoint(eqn.outvars) and not eqn.effects:
                    continue
                if isinstance(eqn.primitive, OperationPrimitive):
                    if not eqn.effects and all(v.aval.size == 0 for v in eqn.outvars):
                        continue  # results without elements are constants
                    use = self._operation(jaxpr, eqn, tuple(v in needed for v in eqn.outvars), needed)
                else:
                    use = self._use(jaxpr, eqn, tuple(v in needed for v in eqn.outvars))
                needed_eqns.append((eqn, use))
                operands = zip(eqn.invars, use.operands, strict=True)
                needed.update(v for v, u in operands if u and not is_literal(v))
            self._live[key] = needed_eqns[::-1], tuple(v in needed for v in jaxpr.invars)
        return self._live[key]

    def _operation(self, jaxpr: Any, eqn: Any, outs: tuple[bool, ...], needed: Collection[Any]) -> Needs:
        """The needs of one of our operations: all operands, or those that its local function uses.

        The latter is only determined if a result is unused, or a collective may be there only for an operand.
        """
        operation = applied_by(eqn)
        if not isinstance(operation, Local):
            return _needs_all(len(eqn.invars))
        asks = not all(outs)
        if not asks and isinstance(operation.fn, _COMPOSED):
            asks = not _is_of_cotangent(operation) and any(
                self._is_sent(jaxpr, v) for v in eqn.invars if not is_literal(v) and v not in needed
            )
        return _needs_of_shards(operation.fn, operation.operands, outs) if asks else _needs_all(len(eqn.invars))

    def _is_sent(self, jaxpr: Any, v: Any) -> bool:
        """Whether a value is the result of a collective, or a function of only that."""
        if id(jaxpr) not in self._makers:
            self._makers[id(jaxpr)] = {out: eqn for eqn in jaxpr.eqns for out in eqn.outvars}
        while (eqn := self._makers[id(jaxpr)].get(v)) is not None:
            operation = applied_by(eqn)
            if not isinstance(operation, Local):
                return isinstance(operation, Operation)
            operands = [x for x in eqn.invars if not is_literal(x)]
            if len(operands) != 1:
                return False
            (v,) = operands
        return False

    def _use(self, jaxpr: Any, eqn: Any, outs: tuple[bool, ...]) -> Needs:
        if eqn.primitive is lax.sort_p:
            keys = int(eqn.params["num_keys"])
            return Needs((*(True,) * keys, *outs[keys:]))
        if eqn.primitive.name == "full_like":
            return Needs((False,) * len(eqn.invars))
        match what := control_of(eqn):
            case Scan():
                return self._scan(what, outs)
            case While():
                return self._while(what, outs)
            case Cond():
                bodies = [Body(jaxpr_of(b), outs, 1, (i, len(what.branches))) for i, b in enumerate(what.branches)]
                if (taken := _constant_index(jaxpr, eqn.invars[0])) is not None:
                    bodies = [bodies[taken]._replace(branch=None)]
                return Needs((True, *_any(*(self.live(b.jaxpr, outs)[1] for b in bodies))), tuple(bodies))
            case ClosedCall():
                body = jaxpr_of(what.body)
                return Needs(self.live(body, outs)[1], (Body(body, outs),))
        inner = [(jaxpr_of(body), trips) for body, trips in inner_jaxprs(eqn)]
        bodies = [Body(body, (True,) * len(body.outvars), trips) for body, trips in inner]
        return Needs((True,) * len(eqn.invars), tuple(bodies))

    def _scan(self, scan: Scan, outs: tuple[bool, ...]) -> Needs:
        body, n, m = jaxpr_of(scan.body), scan.consts, scan.consts + scan.carry
        used = outs
        while True:  # a carry is needed if its next value is
            ins = self.live(body, used)[1]
            if scan.length == 1:  # the next value of the only step is unused
                return Needs(ins, (Body(body, used, 1),))
            wider = (*_any(used[: scan.carry], ins[n:m]), *outs[scan.carry :])
            if wider == used:
                return Needs((*ins[:n], *used[: scan.carry], *ins[m:]), (Body(body, used, scan.length),))
            used = wider

    def _while(self, loop: While, outs: tuple[bool, ...]) -> Needs:
        test, body = jaxpr_of(loop.cond), jaxpr_of(loop.body)
        tested = self.live(test, (True,))[1]
        used = _any(outs, tested[loop.cond_consts :])
        while True:
            ins = self.live(body, used)[1]
            wider = _any(used, ins[loop.body_consts :])
            if wider == used:
                break
            used = wider
        bodies = (Body(test, (True,), None), Body(body, used, None))
        return Needs((*tested[: loop.cond_consts], *ins[: loop.body_consts], *used), bodies)


def with_cotangents(jaxpr: Any) -> set[Any]:
    """The variables of a typed program by which some of its results may have a derivative, and these."""
    return vars_with_cotangents(jaxpr, operands=_operands_with_cotangents)


def _operands_with_cotangents(eqn: Any, results: Sequence[bool]) -> Sequence[bool]:
    """The operands of an equation by which some of its results may have a derivative."""
    if not isinstance(eqn.primitive, OperationPrimitive):
        return operands_with_cotangents(eqn, results)
    smooth = any(r and v.aval.differentiable for r, v in zip(results, eqn.outvars, strict=True))
    operation, operands = applied_by(eqn), range(len(eqn.invars))
    if not smooth or not isinstance(operation, Local):
        return [smooth for _ in operands]
    zero = _without_derivative(operation.fn, operation.operands, len(results))
    return [not operation.fn.stops_gradient and i not in zero for i in operands]


_without_derivative = functools.lru_cache(maxsize=CACHE_SIZE)(without_derivative)


def operands_read(eqn: Any, used: Sequence[bool]) -> tuple[bool, ...]:
    """Whether an equation reads the value of each operand, and not only its type, for those results that are used."""
    alone: Any = SimpleNamespace(eqns=[])
    return Walk()._use(alone, eqn, tuple(used)).operands


def _constant_index(jaxpr: Any, index: Any) -> int | None:
    """The index of the taken branch of a `cond` or `switch`, if constant."""
    if is_literal(index):
        return int(index.val)
    eqn = next((eqn for eqn in jaxpr.eqns if index in eqn.outvars), None)
    if eqn is None or eqn.primitive.name != "clamp" or not all(map(is_literal, eqn.invars)):
        return None
    low, value, high = (int(x.val) for x in eqn.invars)
    return min(max(value, low), high)


def _is_of_cotangent(operation: Local) -> bool:
    """Whether an operation is the transpose of a function of one result: it needs the cotangent, its only operand."""
    fn = operation.fn
    is_linear = isinstance(fn, Transpose) and fn.fn.linear is Linear.JOINTLY and len(fn.results) == 1
    return is_linear and len(operation.operands) == 1


@functools.lru_cache(maxsize=CACHE_SIZE)
def _needs_of_shards(fn: ShardFn, operands: tuple[ShType, ...], outs: tuple[bool, ...]) -> Needs:
    """The needs of a local function for operands of some types."""
    program = program_of(fn, operands)
    return _needs_all(len(operands)) if program is None else Needs(Walk().live(jaxpr_of(program), outs)[1])


def _any(*flags: Sequence[bool]) -> tuple[bool, ...]:
    return tuple(map(any, zip(*flags, strict=True)))
