"""What a scope sees while it is open, besides single moves: what all of it sends, and what JAX does on plain arrays.

A scope inside traced code reads the equations that were traced in it: exact at its end, and so far whenever a move is
judged. A scope around code that is traced (a `jit`, an `eval_shape`) reads what there is so far; one around eager code
adds up the moves as they are made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from shtypes._compat import no_trace_is_running
from shtypes._tracing import OpenTrace, open_scans, open_traces
from shtypes.analysis.equations import Equation, equations, equations_of, outside
from shtypes.analysis.judging import exceeded
from shtypes.analysis.ledger import Entry, Ledger, entries_of, entry
from shtypes.analysis.scopes import Budget, Rule, Sums, connect_watch, open_watches
from shtypes.collective import Collective
from shtypes.errors import ShardingTypeError
from shtypes.joint import Joint
from shtypes.operation import applied_by
from shtypes.primitives import Local, Reshard
from shtypes.reshard import backward, plan

#: What a `Watch` adds up: moves of the forward pass, what these will send backward, and backward passes that are there.
PARTS: Final = ("forward", "caused", "backward")
Parts = dict[str, Sums]
#: What JAX traces the body of a `scan` for.
_SCANS: Final = {"scan", "fori_loop"}


class Watch:
    """One run of a scope.

    Args:
        rule: What the scope says.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        around = open_traces()
        self._around = around[0] if around else None
        self._start = around[0].length if around else 0
        self._eager: Parts = {}
        # What was found in frames so far, kept alive so that no other takes its place: (frame, next, parts).
        self._read: dict[int, tuple[Any, int, Parts]] = {}
        self._looked: dict[int, tuple[Any, int]] = {}
        self._roots: dict[int, tuple[Any, Parts]] = {}

    # sums

    def sums(self, moved: Parts, inserted: bool) -> tuple[Parts, int | None]:
        """What is sent in each direction so far, with a move that is being made now, and how often that runs.

        A cast that a rule inserts is made once for all its uses, and may have been made: it counts when it is seen.
        """
        inside = self._inside()
        now = {"forward": moved.get("forward", Sums()), "caused": moved.get("backward", Sums())}
        if not inside and self._around is None:
            self._eager = _added(self._eager, now)
            return self._directions(), 1
        times: int | None = 1
        parts = self._of_frame(self._around, self._start) if self._around is not None else {}
        lengths = iter(reversed(open_scans()[: sum(t.purpose in _SCANS for t in inside)]))
        for trace in reversed(inside):
            if trace.purpose.startswith("while"):
                times = None
            elif trace.purpose in _SCANS and times is not None:
                times *= next(lengths, 1)
            parts = _added(parts, _repeated(self._of_frame(trace, 0), times))
        parts = parts if inserted else _added(parts, _repeated(now, times))
        if self._around is None:
            self._roots[id(inside[-1].frame)] = inside[-1].frame, parts
            parts = {}
        return self._directions(parts), times

    def _directions(self, parts: Parts | None = None) -> Parts:
        return _directions(_added(self._eager, *[p for _, p in self._roots.values()], parts or {}))

    def _inside(self) -> list[OpenTrace]:
        """The traces that began in the scope, innermost first."""
        found = open_traces()
        if self._around is None:
            return found
        frames = [t.frame is self._around.frame for t in found]
        return found[: frames.index(True)] if any(frames) else found

    def _of_frame(self, trace: OpenTrace, start: int) -> Parts:
        """What the equations of a trace send, each once."""
        _, seen, parts = self._read.get(id(trace.frame), (None, start, {}))
        if trace.length > seen:
            parts = _added(parts, _parts(_read(_of_interest(trace, seen))))
            self._read[id(trace.frame)] = trace.frame, trace.length, parts
        return parts

    @contextlib.contextmanager
    def counted(self) -> Iterator[Any]:
        """For code that traces one program: what it sends is counted from the program and from nothing else."""
        eager, roots = self._eager, dict(self._roots)

        def program(jaxpr: Any) -> None:
            nonlocal eager
            found = _seen(jaxpr)
            if found.unknown is not None:
                raise self._cannot_vouch(*found.unknown)
            eager = _added(eager, found.parts)
            self._check(_directions(_added(eager, *[p for _, p in roots.values()])), lambda: jaxpr)

        try:
            yield program
        finally:
            self._eager, self._roots = eager, roots

    # what JAX does on plain arrays

    def look(self) -> None:
        """Checks what was traced since the last look, in the traces of the scope."""
        inside = self._inside()
        around = [] if self._around is None else [self._around]
        for trace in (*inside, *around):
            start = self._start if self._around is not None and trace.frame is self._around.frame else 0
            _, seen = self._looked.get(id(trace.frame), (None, start))
            if trace.length > seen:
                self._looked[id(trace.frame)] = trace.frame, trace.length
                unknown = _unknown(_of_interest(trace, seen))
                if unknown is not None:
                    raise self._cannot_vouch(*unknown)
        if isinstance(self.rule, Budget) and self.rule.bounds_sums and inside:
            sums, _ = self.sums({}, inserted=True)
            self._check(sums, lambda: [e for t in (*inside, *around) for e in t.equations()])

    def _cannot_vouch(self, found: Equation, why: str) -> ShardingTypeError:
        name = str(applied_by(found.eqn))
        error = ShardingTypeError(
            f"`{self.rule}` cannot vouch for `{name}`, which may communicate where no type shows it",
            where=f"{found.place} in {found.place.function}: {name}" if found.place.file else name,
            why=why,
            hints=[
                "sh.from_jax before the scope, and the function of the same name in shtypes",
                "sh.local_map, for a function of each device's shards",
            ],
        )
        error.placed = bool(found.place.file)
        return error

    def leave(self) -> None:
        """Checks all that was traced in the scope."""
        self.look()
        if self._around is None or not isinstance(self.rule, Budget) or not self.rule.bounds_sums:
            return
        eqns = self._around.equations(self._start)
        self._check(_directions(_added(self._eager, _parts(_read(eqns)))), lambda: eqns)

    def _check(self, sums: Parts, program: Callable[[], Any]) -> None:
        """Checks what all of a scope sends; ``program`` says where."""
        if not isinstance(self.rule, Budget):
            return
        for direction, total in sums.items():
            reason = exceeded(self.rule, direction, total, "")
            if reason:
                raise _over_budget(reason, direction, program())


class _Seen(NamedTuple):
    """What is known of a whole program.

    Attributes:
        unknown: The first equation that may communicate where no type shows it, and why.
        parts: What it sends.
    """

    unknown: tuple[Equation, str] | None
    parts: Parts


#: Programs that were read, so that the next call of the same one is quick: kept, so that no other takes its place.
_programs: dict[int, tuple[Any, _Seen]] = {}
_KEPT: Final = 64


def _seen(jaxpr: Any) -> _Seen:
    if id(jaxpr) not in _programs:
        if len(_programs) >= _KEPT:
            _programs.clear()
        _programs[id(jaxpr)] = jaxpr, _Seen(_unknown(jaxpr), _parts(_read(jaxpr)))
    return _programs[id(jaxpr)][1]


def _of_interest(trace: OpenTrace, start: int) -> list[Any]:
    """The equations of a trace from a position on, without local functions, which are most of them."""
    return [eqn for eqn in trace.equations(start) if type(applied_by(eqn)) is not Local]


def _unknown(program: Any) -> tuple[Equation, str] | None:
    """The first equation that may communicate where no type shows it, and why."""
    for found in _read(program):
        why = outside(found.eqn)
        if why:
            return found, why
    return None


def _read(program: Any) -> Iterator[Equation]:
    """The equations of a program, or of a list of them."""
    return equations_of(program) if isinstance(program, list) else equations(program)


def entries_of_transpose(found: Equation) -> Iterator[Entry]:
    """What an equation will communicate when it is transposed, if its operand has a gradient."""
    p, back = applied_by(found.eqn), found._replace(direction="backward")
    if isinstance(p, Joint):
        yield from (entry(back, b.step, b.src, b.dst, p.inserted) for b in p.back())
    if not isinstance(p, (Reshard, Collective)) or not p.src.differentiable:
        return
    if isinstance(p, Reshard):
        for move in backward(plan(p.src, p.dst)).steps:
            if move.kind.communicates:
                yield entry(back, move, p.dst.cotangent(), p.src.cotangent(), p.inserted)
        return
    op = p.op.transposed()
    # A maximum that is differentiated counts its winners, by an all-reduce of its own.
    step = p if op is None else Collective(op, p.dst.to_ct_aval(), p.src.to_ct_aval(), p.inserted)
    if step.kind.communicates:
        yield entry(back, step, step.src, step.dst, p.inserted)


def _parts(found: Iterator[Equation]) -> Parts:
    """What equations send."""
    entries: dict[str, list[Entry]] = {part: [] for part in PARTS}
    for equation in found:
        own = list(entries_of(equation))
        forward = equation.direction == "forward"
        entries["forward" if forward else "backward"] += own
        if forward:
            entries["caused"] += entries_of_transpose(equation)
            entries["caused"] += own if equation.checkpointed else []
    return {part: _summed(of) for part, of in entries.items() if of}


def _summed(entries: Sequence[Entry]) -> Sums:
    known = all(e.times is not None or not e.launches for e in entries)
    return Sums(*Ledger(entries).total, known)


def _added(*parts: Parts) -> Parts:
    found: Parts = {}
    for each in parts:
        for part, sums in each.items():
            found[part] = found.get(part, Sums()) + sums
    return found


def _repeated(parts: Parts, times: int | None) -> Parts:
    return {part: sums.times(times) for part, sums in parts.items()}


def _directions(parts: Parts) -> Parts:
    """The two passes: the backward pass is what is there of it, or else what the forward pass will cause."""
    back = parts.get("backward")
    return {"forward": parts.get("forward", Sums()), "backward": back or parts.get("caused", Sums())}


def _over_budget(reason: str, direction: str, eqns: Any) -> ShardingTypeError:
    """The error for a sum that no single move made too large, with what is dearest in it."""
    found = list(_read(eqns))
    wanted = [e for f in found for e in (entries_of(f) if f.direction != "backward" else ())]
    wanted += [e for f in found for e in (entries_of_transpose(f) if direction == "backward" else ())]
    dearest = sorted((e for e in wanted if e.launches), key=lambda e: -e.bytes * e.runs)[:3]
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
def counted() -> Iterator[Any]:
    """For code that traces one program: every open scope counts it once, by its equations, and looks through it."""
    watches = open_watches() if no_trace_is_running() else []
    with contextlib.ExitStack() as stack:
        counts = [stack.enter_context(watch.counted()) for watch in watches]

        def program(jaxpr: Any) -> None:
            for count in counts:
                count(jaxpr)

        yield program


connect_watch(Watch, runs_again)

__all__ = ["Watch", "counted"]
