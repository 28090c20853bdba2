"""What a scope sees while it is open, besides single moves: what all of it sends, and what JAX does on plain arrays.

A scope inside traced code reads the equations that were traced in it, by the ledger's rules: exactly when it is
left, and so far whenever a move is judged. A scope around eager code adds up what runs: operations, and the programs
that JAX or `shtypes.jit` runs for it, each read in full.
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
from shtypes.core.local import Local
from shtypes.core.operation import Operation, applied_by, current_direction, sent_by
from shtypes.errors import ShardingTypeError
from shtypes.scopes.check_comm import exceeded, forbidden
from shtypes.scopes.comm import Budget, InBackward, ScopeRule, Sums, connect_tracker, open_trackers, rules_in_force
from shtypes.traced.entry import Entry, entries_of, entries_of_transpose
from shtypes.traced.equations import Equation, equations, equations_of, why_not_covered
from shtypes.traced.ledger import Ledger

#: What a `CommTracker` adds up, by the number of derivatives around it: ``"forward"``, what that will send backward
#: (``"caused"``), and the ``"backward"`` passes that are there.
Part = tuple[str, int]
Parts = dict[Part, Sums]
#: The purpose of JAX's trace of a `scan` body.
_SCANS: Final = {"scan", "fori_loop"}


class CommTracker:
    """One run of a scope, or a part of one; ``spent`` is what earlier parts of it sent."""

    def __init__(self, rule: ScopeRule, spent: Parts | None = None) -> None:
        self.rule = rule
        around = open_traces()
        self._around = around[0] if around else None
        self._start = around[0].length if around else 0
        self._backward = any(isinstance(r, InBackward) for r in rules_in_force())
        self._ran: Parts = dict(spent or {})
        self._counting = False
        # By the id of a trace's frame, which stays alive: how many of its equations are read, and what they send.
        self._read: dict[int, tuple[Any, int, Parts]] = {}
        self._checked: dict[int, tuple[Any, int]] = {}
        self._call: Any = None

    # sums

    def sums(self, moved: dict[str, Sums], inserted: bool) -> tuple[dict[str, Sums], int | None]:
        """What is sent in each direction so far, with a move that is bound now, and how often that runs.

        A cast that a rule inserts is bound once for all its uses, and may have been already: it counts when it is seen.
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
        """What the run sent up to here."""
        if self._around is None:
            return self._ran
        return _added(self._ran, self._parts(_read(self._around.equations(self._start))))

    def _inside(self) -> list[OpenTrace]:
        """The traces that began in the scope, innermost first."""
        outer = None if self._around is None else self._around.frame
        return list(itertools.takewhile(lambda trace: outer is None or trace.frame is not outer, open_traces()))

    def _of_frame(self, trace: OpenTrace, start: int) -> Parts:
        """The communication of the equations of a trace, each once."""
        _, seen, parts = self._read.get(id(trace.frame), (None, start, {}))
        if trace.length > seen:
            parts = _added(parts, self._parts(_read(_of_interest(trace, seen))))
            self._read[id(trace.frame)] = trace.frame, trace.length, parts
        return parts

    def _parts(self, eqns: Iterable[Equation]) -> Parts:
        """What equations send."""
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

    # what runs

    def ran(self, operation: Operation, direction: str, depth: int) -> None:
        """Counts an operation that ran at once."""
        if self._counting or not isinstance(self.rule, Budget):
            return
        forward = direction == "forward" and not self._backward
        now: Parts = {("forward" if forward else "backward", depth): sent_by(operation.forward_comm()).sums}
        if forward:
            now["caused", depth] = sent_by(operation.backward_comm()).sums
        self._ran = _added(self._ran, now)
        self._check(_directions(self._ran), list)

    def runs_program(self, call: Any, eqns: Sequence[Any] | None) -> None:
        """Counts and checks a program that JAX is about to run on typed values; None where it cannot be seen.

        ``call`` stands for the call, of which each operand may tell.
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
        """For code that traces and runs one program: it counts by its equations, and nothing else in it does."""

        def program(jaxpr: Any) -> None:
            self._count(_equations_once(jaxpr), lambda: jaxpr)

        outer, self._counting = self._counting, True
        try:
            yield program
        finally:
            self._counting = outer

    def _count(self, eqns: Iterable[Equation], program: Callable[[], Any]) -> None:
        """Checks a program, and adds what it sends."""
        eqns = list(eqns)
        self._check_each(eqns)
        if isinstance(self.rule, Budget) and self.rule.bounds_sums:
            self._ran = _added(self._ran, self._parts(eqns))
            self._check(_directions(self._ran), program)

    # checks

    def look(self) -> None:
        """Checks the equations that were traced since the last look, in the traces of the scope."""
        if self._counting:
            return
        inside = self._inside()
        around = [] if self._around is None else [self._around]
        for trace in (*inside, *around):
            start = self._start if self._around is not None and trace.frame is self._around.frame else 0
            _, seen = self._checked.get(id(trace.frame), (None, start))
            if trace.length > seen:
                self._checked[id(trace.frame)] = trace.frame, trace.length
                self._check_each(_read(_of_interest(trace, seen)))
        if isinstance(self.rule, Budget) and self.rule.bounds_sums and inside:
            sums, _ = self.sums({}, inserted=True)
            self._check(sums, lambda: [e for t in (*inside, *around) for e in t.equations()])

    def leave(self) -> None:
        """Checks all that was traced in the scope."""
        self.look()
        if self._around is None:
            return
        eqns = self._around.equations(self._start)
        if isinstance(self.rule, Budget) and self.rule.bounds_sums:
            self._check(_directions(_added(self._ran, self._parts(_read(eqns)))), lambda: eqns)

    def _check_each(self, eqns: Iterable[Equation]) -> None:
        """Checks that each equation is allowed by itself."""
        for e in eqns:
            operation = applied_by(e.eqn)
            if isinstance(operation, Operation):
                self._check_operation(e, operation)
            elif why := why_not_covered(e.eqn):
                raise self._cannot_vouch(e, why)

    def _check_operation(self, equation: Equation, operation: Operation) -> None:
        forth, back = operation.forward_comm(), operation.backward_comm()
        if not forth and not back:
            return
        forward = self._is_forward(equation)
        events = [("forward" if forward else "backward", forth)]
        events += [("backward", back)] if forward and equation.transposed else []
        events += [("backward", forth)] if forward and equation.checkpointed else []
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
        """Checks what all of a scope sends; ``program`` says where."""
        if not isinstance(self.rule, Budget):
            return
        for direction, total in sums.items():
            reason = exceeded(self.rule, direction, total, "")
            if reason:
                raise _over_budget(reason, direction, program())


def _at(error: ShardingTypeError, equation: Equation, name: str) -> ShardingTypeError:
    """The error with the line of an equation."""
    error.where = f"{equation.place} in {equation.place.function}: {name}" if equation.place.file else name
    error.placed = bool(equation.place.file)
    return error


#: The equations of programs by their ids, with the programs, which stay alive.
_programs: Final[Bounded[tuple[Any, list[Equation]]]] = Bounded(64)


def _equations_once(jaxpr: Any) -> list[Equation]:
    """The equations of a program without local functions; read once."""

    def read() -> tuple[Any, list[Equation]]:
        return jaxpr, [e for e in equations(jaxpr) if type(applied_by(e.eqn)) is not Local]

    return _programs.get_or_create(id(jaxpr), read)[1]


def _of_interest(trace: OpenTrace, start: int) -> list[Any]:
    """The equations of a trace from a position on, without local functions, which are most of them."""
    return [eqn for eqn in trace.equations(start) if type(applied_by(eqn)) is not Local]


def _read(program: Any) -> Iterator[Equation]:
    """The equations of a program, or of a list of them."""
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
    """The two passes: the backward pass is what is there of it, or else what the forward pass will cause."""
    total = {"forward": Sums(), "backward": Sums()}
    for depth in {depth for _, depth in parts}:
        forward, caused, back = (parts.get((part, depth), Sums()) for part in ("forward", "caused", "backward"))
        total["forward"] += forward
        total["backward"] += back if back.launches or not back.bounded else caused
    return total


def _over_budget(reason: str, direction: str, eqns: Any) -> ShardingTypeError:
    """The error for a sum that is too large by no single move, with its dearest entries."""
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


def runs_again() -> bool:
    """Whether the code is being traced in a checkpoint, which may run it again in the backward pass."""
    return any("checkpoint" in trace.purpose for trace in open_traces())


@contextlib.contextmanager
def counted() -> Iterator[Callable[[Any], None]]:
    """For code that traces and runs one program: every open scope counts it once, and looks through it."""
    trackers = open_trackers() if no_trace_is_running() else []
    with contextlib.ExitStack() as stack:
        counts = [stack.enter_context(tracker.counted()) for tracker in trackers]

        def program(jaxpr: Any) -> None:
            for count in counts:
                count(jaxpr)

        yield program


def runs_program() -> None:
    """Tells open scopes of the program that JAX is about to run: called where it asks for the data of an operand."""
    trackers = open_trackers()
    if trackers and no_trace_is_running():
        call, eqns = program_of_call()
        for tracker in trackers:
            tracker.runs_program(call, eqns)


connect_tracker(CommTracker, runs_again, runs_program)
