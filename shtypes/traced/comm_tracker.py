"""Tracks the communication in open scopes: its sum, and JAX's ops on plain arrays.

A scope inside traced code reads the equations traced in it, by the ledger's rules: all at its end, and those so far at
each checked reshard. A scope around eager code adds up what runs: ops, and the programs that JAX or `shtypes.jit` runs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from jax.extend import source_info_util

from shtypes._compat import no_trace_is_running
from shtypes._compat.tracing import OpenTrace, open_scans, open_traces, program_of_call
from shtypes.caches import Bounded
from shtypes.context.scope import attribute_set
from shtypes.core.local import Local
from shtypes.core.operation import Operation, applied_by, current_direction, sent_by
from shtypes.errors import ShardingTypeError
from shtypes.scopes.check_comm import exceeded, forbidden
from shtypes.scopes.comm import Sums, connect_tracker, open_trackers
from shtypes.scopes.scope_rules import Budget, InBackward, ScopeRule, rules_in_force
from shtypes.traced.coverage import why_not_covered
from shtypes.traced.entry import Entry, entries_of, entries_of_transpose
from shtypes.traced.equations import Equation, equations, equations_of
from shtypes.traced.ledger import Ledger

#: Keys of sums, with the number of enclosing derivatives: ``"forward"`` communication, the future backward
#: communication that it causes (``"caused"``), and actual ``"backward"`` communication.
Part = tuple[str, int]
Parts = dict[Part, Sums]
#: The purposes of JAX's traces of a `scan`'s body.
_SCANS: Final = {"scan", "fori_loop"}


class CommTracker:
    """The communication of one run of a scope, or of a part of one after earlier parts that sent ``spent``."""

    def __init__(self, rule: ScopeRule, spent: Parts | None = None) -> None:
        self.rule = rule
        enclosing = open_traces()
        self._around = enclosing[0] if enclosing else None
        self._start = enclosing[0].length if enclosing else 0
        self._backward = any(isinstance(r, InBackward) for r in rules_in_force())
        self._ran: Parts = dict(spent or {})
        self._counting = False
        # by the id of a trace's frame, to which the entry refers: the number of equations read, and their communication
        self._progress: dict[int, tuple[Any, int, Parts]] = {}
        self._checked: dict[int, tuple[Any, int]] = {}
        self._call: Any = None

    # sums

    def sums(self, moved: dict[str, Sums], inserted: bool) -> tuple[dict[str, Sums], int | None]:
        """The communication so far in each direction, with that of a reshard being bound, and how often that runs.

        An inserted cast is bound once for all its uses, and may have been already: it counts when its equation is read.
        """
        inside = self._inside()
        _, depth = current_direction()
        now = {("forward", depth): moved.get("forward", Sums()), ("caused", depth): moved.get("backward", Sums())}
        times: int | None = 1
        parts = self._of_frame(self._around, self._start) if self._around is not None else {}
        lengths = iter(reversed(open_scans()[: sum(t.purpose in _SCANS for t in inside)]))
        for trace in reversed(inside):
            if trace.purpose.startswith("while"):
                times = None
            elif trace.purpose in _SCANS and times is not None:
                times *= next(lengths, 1)
            parts = _added(parts, _repeated(self._of_frame(trace, 0), times))
        if not (inserted and (inside or self._around is not None)):
            parts = _added(parts, _repeated(now, times))
        return _directions(_added(self._ran, parts)), times

    def total(self) -> Parts:
        """The communication of the run so far."""
        if self._around is None:
            return self._ran
        return _added(self._ran, self._parts(_read(self._around.equations(self._start))))

    def _inside(self) -> list[OpenTrace]:
        """The traces that began in the scope, innermost first."""
        outer = None if self._around is None else self._around.frame
        return list(itertools.takewhile(lambda trace: outer is None or trace.frame is not outer, open_traces()))

    def _of_frame(self, trace: OpenTrace, start: int) -> Parts:
        """The communication of a trace's equations, each read once."""
        _, seen, parts = self._progress.get(id(trace.frame), (None, start, {}))
        if trace.length > seen:
            parts = _added(parts, self._parts(_read(_of_interest(trace, seen))))
            self._progress[id(trace.frame)] = trace.frame, trace.length, parts
        return parts

    def _parts(self, eqns: Iterable[Equation]) -> Parts:
        entries: dict[Part, list[Entry]] = {}
        for e in eqns:
            sent, forward = list(entries_of(e)), self._is_forward(e)
            entries.setdefault(("forward" if forward else "backward", e.depth), []).extend(sent)
            if forward:
                caused = entries.setdefault(("caused", e.depth), [])
                caused += [*entries_of_transpose(e), *(sent if e.checkpointed else ())]
        return {part: _summed(of) for part, of in entries.items() if of}

    def _is_forward(self, equation: Equation) -> bool:
        return equation.direction == "forward" and not self._backward

    # execution

    def ran(self, operation: Operation, direction: str, depth: int) -> None:
        """Counts an operation that ran eagerly."""
        if self._counting or not isinstance(self.rule, Budget):
            return
        forward = direction == "forward" and not self._backward
        now: Parts = {("forward" if forward else "backward", depth): sent_by(operation.forward_comm()).sums}
        if forward:
            now["caused", depth] = sent_by(operation.backward_comm()).sums
        self._ran = _added(self._ran, now)
        self._check(_directions(self._ran), list)

    def announce_program(self, call: Any, eqns: Sequence[Any] | None) -> None:
        """Counts and checks a program that JAX is about to run on typed values; None if it is unavailable.

        ``call`` identifies the call, which each operand may announce.
        """
        if self._counting or call is self._call:
            return
        self._call = call
        if eqns is None:
            raise ShardingTypeError(
                f"`{self.rule}` cannot vouch for a compiled program, which may communicate where no type shows it",
                hints=["call the jitted function: what it was traced to is known", "run it outside the scope"],
            )
        stack = str(source_info_util.current_name_stack())
        self._count(equations_of(eqns, stack), lambda: eqns)

    @contextlib.contextmanager
    def counted(self) -> Iterator[Callable[[Any], None]]:
        """Context manager around tracing and running one program: only the program's equations count in it."""

        def program(jaxpr: Any) -> None:
            self._count(_equations_once(jaxpr), lambda: jaxpr)

        with attribute_set(self, "_counting", True):
            yield program

    def _count(self, eqns: Iterable[Equation], program: Callable[[], Any]) -> None:
        """Checks a program, and adds its communication."""
        eqns = list(eqns)
        self._check_each(eqns)
        if isinstance(self.rule, Budget) and self.rule.bounds_sums:
            self._ran = _added(self._ran, self._parts(eqns))
            self._check(_directions(self._ran), program)

    # checks

    def check_so_far(self) -> None:
        """Checks the equations traced since the last check, in the traces of the scope."""
        if self._counting:
            return
        inside = self._inside()
        enclosing = [] if self._around is None else [self._around]
        for trace in (*inside, *enclosing):
            start = self._start if self._around is not None and trace.frame is self._around.frame else 0
            _, seen = self._checked.get(id(trace.frame), (None, start))
            if trace.length > seen:
                self._checked[id(trace.frame)] = trace.frame, trace.length
                self._check_each(_read(_of_interest(trace, seen)))
        if isinstance(self.rule, Budget) and self.rule.bounds_sums and inside:
            sums, _ = self.sums({}, inserted=True)
            self._check(sums, lambda: [e for t in (*inside, *enclosing) for e in t.equations()])

    def leave(self) -> None:
        """Checks all equations traced in the scope."""
        self.check_so_far()
        if self._around is None:
            return
        eqns = self._around.equations(self._start)
        if isinstance(self.rule, Budget) and self.rule.bounds_sums:
            self._check(_directions(_added(self._ran, self._parts(_read(eqns)))), lambda: eqns)

    def _check_each(self, eqns: Iterable[Equation]) -> None:
        for e in eqns:
            operation = applied_by(e.eqn)
            if isinstance(operation, Operation):
                self._check_operation(e, operation)
            elif why := why_not_covered(e.eqn):
                raise self._cannot_vouch(e, why)

    def _check_operation(self, equation: Equation, operation: Operation) -> None:
        forward_comm, backward_comm = operation.forward_comm(), operation.backward_comm()
        if not forward_comm and not backward_comm:
            return
        forward = self._is_forward(equation)
        events = [("forward" if forward else "backward", forward_comm)]
        events += [("backward", backward_comm)] if forward and backward_comm and equation.is_transposed() else []
        events += [("backward", forward_comm)] if forward and equation.checkpointed else []
        for direction, comms in events:
            if not comms:
                continue
            src, dst = comms[0].src, comms[0].dst
            sent, call = sent_by(comms), f"`{operation}` takes {operation.operands[0]} to {operation.results[0]}"
            error = forbidden(self.rule, direction, sent, call, src, dst)
            if error is not None:
                raise _at(error, equation, str(operation))

    def _cannot_vouch(self, equation: Equation, why: str) -> ShardingTypeError:
        name = str(applied_by(equation.eqn))
        error = ShardingTypeError(
            f"`{self.rule}` cannot vouch for `{name}`, which may communicate where no type shows it",
            why=why,
            hints=[
                "sh.from_jax before the scope, and the function of the same name in shtypes",
                "sh.local_map, for a function of each device's shards",
            ],
        )
        return _at(error, equation, name)

    def _check(self, sums: dict[str, Sums], program: Callable[[], Any]) -> None:
        """Checks the sums of a scope; ``program`` returns the equations for the error."""
        if not isinstance(self.rule, Budget):
            return
        for direction, total in sums.items():
            reason = exceeded(self.rule, direction, total, "")
            if reason:
                raise _over_budget(reason, direction, program())


def _at(error: ShardingTypeError, equation: Equation, name: str) -> ShardingTypeError:
    """Sets an error's line to that of an equation."""
    error.where = f"{equation.place} in {equation.place.function}: {name}" if equation.place.file else name
    error.placed = bool(equation.place.file)
    return error


#: The equations of programs by id, with the programs, to keep them alive.
_programs: Final[Bounded[tuple[Any, list[Equation]]]] = Bounded(64)


def _equations_once(jaxpr: Any) -> list[Equation]:
    """The equations of a program without local functions, cached."""

    def read() -> tuple[Any, list[Equation]]:
        return jaxpr, [e for e in equations(jaxpr) if type(applied_by(e.eqn)) is not Local]

    return _programs.get_or_create(id(jaxpr), read)[1]


def _of_interest(trace: OpenTrace, start: int) -> list[Any]:
    """The equations of a trace from a position on, without local functions, which are most of them."""
    return [eqn for eqn in trace.equations(start) if type(applied_by(eqn)) is not Local]


def _read(program: Any) -> Iterator[Equation]:
    """The equations of a program, or of a list of JAX's equations."""
    return equations_of(program) if isinstance(program, list) else equations(program)


def _summed(entries: Sequence[Entry]) -> Sums:
    exact = all(e.times is not None or not e.launches for e in entries)
    return Sums(*Ledger(entries).total, exact)


def _added(*parts: Parts) -> Parts:
    total: Parts = {}
    for each in parts:
        for part, sums in each.items():
            total[part] = total.get(part, Sums()) + sums
    return total


def _repeated(parts: Parts, times: int | None) -> Parts:
    return {part: sums.times(times) for part, sums in parts.items()}


def _directions(parts: Parts) -> dict[str, Sums]:
    """The sums of both passes: of the actual backward pass, or else of what the forward pass will cause."""
    total = {"forward": Sums(), "backward": Sums()}
    for depth in {depth for _, depth in parts}:
        forward, caused, backward = (parts.get((part, depth), Sums()) for part in ("forward", "caused", "backward"))
        total["forward"] += forward
        total["backward"] += backward if backward.launches or not backward.bounded else caused
    return total


def _over_budget(reason: str, direction: str, eqns: Any) -> ShardingTypeError:
    """The error for an exceeded sum, with its most expensive collectives."""
    listed = list(_read(eqns))
    entries = [e for f in listed for e in (entries_of(f) if f.direction != "backward" else ())]
    entries += [e for f in listed for e in (entries_of_transpose(f) if direction == "backward" else ())]
    dearest = sorted((e for e in entries if e.launches), key=lambda e: -e.bytes * e.runs)[:3]
    return ShardingTypeError(
        reason,
        where=f"{dearest[0].place} in {dearest[0].place.function}" if dearest and dearest[0].place.file else "",
        why="\n".join(f"{e}, {e.runs} times {e.bytes} B/device, {e.place}" for e in dearest),
        hints=["print(sh.ledger(f, *args)) lists all of it"],
    )


def in_checkpoint() -> bool:
    """Whether a checkpoint is being traced, which may recompute the code in the backward pass."""
    return any("checkpoint" in trace.purpose for trace in open_traces())


@contextlib.contextmanager
def counted() -> Iterator[Callable[[Any], None]]:
    """Context manager around tracing and running one program: every open scope checks and counts it once."""
    trackers = open_trackers() if no_trace_is_running() else []
    with contextlib.ExitStack() as stack:
        counts = [stack.enter_context(tracker.counted()) for tracker in trackers]

        def program(jaxpr: Any) -> None:
            for count in counts:
                count(jaxpr)

        yield program


def announce_program() -> None:
    """Announces the program that JAX is about to run to open scopes; called when JAX requests an operand's data."""
    trackers = open_trackers()
    if trackers and no_trace_is_running():
        call, eqns = program_of_call()
        for tracker in trackers:
            tracker.announce_program(call, eqns)


connect_tracker(CommTracker, in_checkpoint, announce_program)
