"""The ``at=`` of a plain program: types of the results of its places, and when sums are finished.

A place is a scope (``"Dense_0"``), a function (``"MultiHeadAttention.__call__"``) or a line (``"linear.py:422"``). Its
results are the values that equations of one run through it make, and that other equations of the forward pass use.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from shtypes._compat.eqn_frames import Frame, frames_of
from shtypes._compat.jaxprs import inner_jaxprs, is_literal, jaxpr_of
from shtypes.caches import Bounded
from shtypes.context.frames import Owner
from shtypes.context.user_line import placed
from shtypes.core.device_put import type_of
from shtypes.core.operation import direction_of
from shtypes.dispatch.apply import is_typed
from shtypes.dispatch.reshard import reshard
from shtypes.errors import ShardingTypeError, short
from shtypes.types import State
from shtypes.types.policy import replicated

_LINE: Final = re.compile(r"(?P<file>.+\.py):(?P<line>\d+)$")
#: The wrappers that JAX's transformations write around names of scopes.
_WRAPPED: Final = re.compile(r"[A-Za-z_]+\(([^()]*)\)")
#: Scopes that JAX writes, and no program.
_OF_JAX: Final = frozenset({"checkpoint", "rematted_computation", ""})

#: For an equation by its number: its results by their number, and the place that each is a result of.
Marks = dict[int, list[tuple[int, str]]]


class AtSpecs:
    """The types that `at=` gives the results of places, and whether sums are finished where they arise."""

    def __init__(self, name: str = "f", at: dict[str, Any] | None = None, *, finish: bool = False) -> None:
        self.name, self.at, self.finish = name, at or {}, finish
        self.met: set[str] = set()  # the places whose results were met
        self.unfit: dict[str, ShardingTypeError] = {}  # why the type of a place does not fit one of its results
        self._marks: Bounded[tuple[Any, Marks]] = Bounded(256)

    def again(self) -> AtSpecs:
        """The same for another evaluation, in which no place was met yet; the cache of places is shared."""
        fresh = AtSpecs(self.name, self.at, finish=self.finish)
        fresh._marks = self._marks
        return fresh

    def marks(self, jaxpr: Any, scope: tuple[str, ...], inside: frozenset[str]) -> Marks:
        """The results of places in a sub-jaxpr."""
        if not self.at:
            return {}

        def find() -> tuple[Any, Marks]:
            marks: Marks = {}
            for place in self.at.keys() - inside:
                for i, j in results(jaxpr, place, scope):
                    marks.setdefault(i, []).append((j, place))
            return jaxpr, marks  # with the jaxpr, so that no other one has its id

        return self._marks.get_or_create((id(jaxpr), scope, inside), find)[1]

    def inside(self, eqn: Any, scope: tuple[str, ...]) -> frozenset[str]:
        """The places that the sub-jaxprs of an equation are in; all of them for those of the backward pass."""
        where = _where(eqn)
        return frozenset(place for place in self.at if is_backward(eqn) or is_in(place, where, scope))

    def resharded(self, x: Any, place: str) -> Any:
        """A result of a place in the type that `at=` gives it, if that fits."""
        if not is_typed(x):
            self.met.add(place)
            return x
        try:
            target = type_of(self.at[place], x.type.mesh, like=x.type)
        except ShardingTypeError as error:
            self.unfit.setdefault(place, placed(error, f'at={{"{place}": ...}} for {x.type}'))
            return x
        self.met.add(place)
        try:
            return reshard(x, target)
        except ShardingTypeError as error:
            error.subjects = None
            raise

    def finished(self, x: Any, operands: Sequence[Any]) -> Any:
        """A value without the sums that were not pending in its operands, if each is finished where it arises."""
        if not self.finish or not is_typed(x):
            return x
        pending = {axis for y in operands if is_typed(y) for axis in y.type.axes(State.UNREDUCED)}
        t = x.type.with_axes([a for a in x.type.axes(State.UNREDUCED) if a not in pending], replicated())
        return x if t == x.type else reshard(x, t)

    def check(self, jaxpr: Any) -> None:
        """Refuses places that a program does not come through, and names those spelled nearly so."""
        for place in self.at:
            if not any(_has(jaxpr, place)):
                raise _missing(self.name, place, sorted(set(places(jaxpr))))

    def check_fit(self) -> None:
        """Refuses types that fit no result of their place."""
        for place, error in self.unfit.items():
            if place not in self.met:
                raise error


def _missing(name: str, place: str, there: list[str]) -> ShardingTypeError:
    near = difflib.get_close_matches(place, there, n=3, cutoff=0.5)
    last = re.split(r"[/.:]", place)[-1] or place
    near += [p for p in there if last in re.split(r"[/.]", p) and p not in near][:2]
    near = near or sorted(there, key=lambda p: _LINE.match(p) is not None)[:3]
    return ShardingTypeError(
        f"`at` of `lift` names the place `{short(place)}`, which `{name}` does not come through",
        why="a place is a scope, a function or a line of the program, and has results that it uses",
        hints=[f'at={{"{p}": ...}}' for p in near],
    )


def _has(jaxpr: Any, place: str, around: tuple[str, ...] = ()) -> Iterator[bool]:
    """Whether a program has results of a place, for each of its bodies."""
    yield bool(results(jaxpr, place, around))
    for eqn in jaxpr.eqns:
        for body, _ in inner_jaxprs(eqn):
            yield from _has(jaxpr_of(body), place, (*around, *scope_of(str(eqn.source_info.name_stack))))


class _Where(NamedTuple):
    """An equation, as places tell it."""

    scope: tuple[str, ...]
    frames: list[Frame]


def _where(eqn: Any) -> _Where:
    return _Where(scope_of(str(eqn.source_info.name_stack)), frames_of(eqn))


def is_backward(eqn: Any) -> bool:
    """Whether an equation belongs to a backward pass that the program takes itself."""
    return direction_of(str(eqn.source_info.name_stack)) == "backward"


def scope_of(stack: str) -> tuple[str, ...]:
    """The scopes of a name stack, without what transformations write around them."""
    while True:
        bare = _WRAPPED.sub(r"\1", stack)
        if bare == stack:
            return tuple(part for part in stack.split("/") if part not in _OF_JAX)
        stack = bare


def is_in(place: str, where: _Where, around: tuple[str, ...] = ()) -> bool:
    """Whether an equation comes through a place; ``around`` is the path of scopes around the body that it is in."""
    line = _LINE.match(place)
    if line is not None:
        return any(
            f.line == int(line["line"]) and f"/{f.file}".endswith("/" + line["file"].lstrip("/")) for f in where.frames
        )
    if _in_scope(place, (*around, *where.scope), len(around)):
        return True
    if "/" in place:
        return False
    modules = ((f, module) for f in where.frames for module in (f.module(), f.module().partition(".")[0]))
    return any(f".{module}.{f.function}".endswith("." + place) for f, module in modules)


def _in_scope(place: str, path: tuple[str, ...], around: int) -> bool:
    parts = place.strip("/").split("/")
    n = len(parts)
    starts = range(max(0, around - n + 1), len(path) - n + 1)
    return any(all(map(fnmatch.fnmatchcase, path[i : i + n], parts)) for i in starts)


def results(jaxpr: Any, place: str, around: tuple[str, ...] = ()) -> list[tuple[int, int]]:
    """The results of a place in a jaxpr: numbers of equations, and of their results."""
    runs = _runs(jaxpr, lambda where: is_in(place, where, around))
    return [result for run in runs for result in outputs(jaxpr, run)]


def outputs(jaxpr: Any, run: Sequence[int]) -> list[tuple[int, int]]:
    """The results of some equations that others of the forward pass use, or that the jaxpr returns."""
    inside = set(run)
    defined = {v: (i, j) for i in run for j, v in enumerate(jaxpr.eqns[i].outvars)}
    others = [eqn for i, eqn in enumerate(jaxpr.eqns) if i not in inside and not is_backward(eqn)]
    used = [v for vs in (jaxpr.outvars, *(eqn.invars for eqn in others)) for v in vs if not is_literal(v)]
    return sorted({defined[v] for v in used if v in defined})


def _runs(jaxpr: Any, holds: Any) -> Iterator[list[int]]:
    """The equations for which something holds, those of each run through the place together.

    A run ends at another equation between, and where its first line comes again and takes what the run defined.
    """
    run: list[int] = []
    defined: set[Any] = set()
    for i, eqn in enumerate(jaxpr.eqns):
        where = _where(eqn)
        if is_backward(eqn) or not holds(where):
            if run:
                yield run
            run, defined = [], set()
            continue
        again = bool(run) and where.frames == frames_of(jaxpr.eqns[run[0]])
        if again and any(not is_literal(v) and v in defined for v in eqn.invars):
            yield run
            run, defined = [], set()
        run.append(i)
        defined.update(eqn.outvars)
    if run:
        yield run


def runs_of(jaxpr: Any, frame: Frame) -> Iterator[list[int]]:
    """The equations that were traced through a frame, those of each run through it together."""
    return _runs(jaxpr, lambda where: frame in where.frames)


def places(jaxpr: Any, around: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of the places of a program: scopes, functions and lines."""
    for eqn in jaxpr.eqns:
        where = _where(eqn)
        path = (*around, *where.scope)
        yield from ("/".join(path[: i + 1]) for i in range(len(around), len(path)))
        for frame in where.frames:
            if frame.kind not in (Owner.USERS, Owner.INSTALLED):
                continue
            if not frame.function.startswith("<"):
                yield frame.function
            yield frame.place
        for body, _ in inner_jaxprs(eqn):
            yield from places(jaxpr_of(body), path)
