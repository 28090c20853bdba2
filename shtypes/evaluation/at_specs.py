"""`lift(at=..., pending=...)`: reshards the results of places of a plain program, and finishes sums.

A place is a scope (``"Dense_0"``), a function (``"MultiHeadAttention.__call__"``) or a line (``"linear.py:422"``). Its
results are the values that one run through it computes and other equations of the forward pass use.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from shtypes._compat.eqn_frames import Frame, of_frames
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
#: A scope name wrapped by a transformation, such as ``transpose(...)``.
_WRAPPED: Final = re.compile(r"[A-Za-z_]+\(([^()]*)\)")
#: Scopes that JAX adds.
_JAX_SCOPES: Final = frozenset({"checkpoint", "rematted_computation", ""})

#: By the index of an equation, pairs of the index of a result and the place whose result it is.
Marks = dict[int, list[tuple[int, str]]]


class AtSpecs:
    """The `at=` and ``pending="finish"`` of one evaluation."""

    def __init__(self, name: str = "f", at: dict[str, Any] | None = None, *, finish: bool = False) -> None:
        self.name, self.at, self.finish = name, at or {}, finish
        self.met: set[str] = set()  # the places with a result that the type fits
        self.unfit: dict[str, ShardingTypeError] = {}  # the error for a result that the type of the place does not fit
        self._marks: Bounded[tuple[Any, Marks]] = Bounded(256)

    def fresh_copy(self) -> AtSpecs:
        """A copy for another evaluation, with the same cache."""
        copy = AtSpecs(self.name, self.at, finish=self.finish)
        copy._marks = self._marks
        return copy

    def marks(self, jaxpr: Any, scope: tuple[str, ...], inside: frozenset[str]) -> Marks:
        """The results of places in a jaxpr, without those of the places ``inside`` which it is."""
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
        """The places that an equation's sub-jaxprs are in; all places for an equation of the backward pass."""
        where = _where(eqn)
        return frozenset(place for place in self.at if is_backward(eqn) or is_in(place, where, scope))

    def resharded(self, x: Any, place: str) -> Any:
        """Reshards a result of a place to its type, if that fits."""
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
        """Finishes the sums of a result that are not pending in its operands, with ``pending="finish"``."""
        if not self.finish or not is_typed(x):
            return x
        pending = {axis for y in operands if is_typed(y) for axis in y.type.axes(State.UNREDUCED)}
        t = x.type.with_axes([a for a in x.type.axes(State.UNREDUCED) if a not in pending], replicated())
        return x if t == x.type else reshard(x, t)

    def check(self, jaxpr: Any) -> None:
        """Refuses places that a program does not have, and suggests similar ones."""
        for place in self.at:
            if not any(_has(jaxpr, place)):
                raise _missing(self.name, place, sorted(set(places(jaxpr))))

    def check_fit(self) -> None:
        """Refuses types that fit no result of their place."""
        for place, error in self.unfit.items():
            if place not in self.met:
                raise error


def _missing(name: str, place: str, known_places: list[str]) -> ShardingTypeError:
    similar = difflib.get_close_matches(place, known_places, n=3, cutoff=0.5)
    last = re.split(r"[/.:]", place)[-1] or place
    similar += [p for p in known_places if last in re.split(r"[/.]", p) and p not in similar][:2]
    similar = similar or sorted(known_places, key=lambda p: _LINE.match(p) is not None)[:3]
    return ShardingTypeError(
        f"`at` of `lift` names the place `{short(place)}`, which `{name}` does not come through",
        why="a place is a scope, a function or a line of the program, and has results that it uses",
        hints=[f'at={{"{p}": ...}}' for p in similar],
    )


def _has(jaxpr: Any, place: str, outer_scopes: tuple[str, ...] = ()) -> Iterator[bool]:
    """For each jaxpr of a program, whether it has results of a place."""
    yield bool(results(jaxpr, place, outer_scopes))
    for eqn in jaxpr.eqns:
        for body, _ in inner_jaxprs(eqn):
            yield from _has(jaxpr_of(body), place, (*outer_scopes, *scope_of(str(eqn.source_info.name_stack))))


class _Where(NamedTuple):
    """The scopes and frames of an equation, which places are compared with."""

    scope: tuple[str, ...]
    frames: tuple[Frame, ...]


_frames_of: Final[Callable[[Any], tuple[Frame, ...]]] = of_frames(tuple)


def _where(eqn: Any) -> _Where:
    return _Where(scope_of(str(eqn.source_info.name_stack)), _frames_of(eqn))


def is_backward(eqn: Any) -> bool:
    """Whether an equation belongs to a backward pass in the program."""
    return direction_of(str(eqn.source_info.name_stack)) == "backward"


def scope_of(stack: str) -> tuple[str, ...]:
    """The scopes of a name stack, without the names of transformations."""
    while True:
        bare = _WRAPPED.sub(r"\1", stack)
        if bare == stack:
            return tuple(part for part in stack.split("/") if part not in _JAX_SCOPES)
        stack = bare


def is_in(place: str, where: _Where, outer_scopes: tuple[str, ...] = ()) -> bool:
    """Whether an equation is in a place; ``outer_scopes`` has the scopes that enclose its jaxpr."""
    line = _LINE.match(place)
    if line is not None:
        return any(
            f.line == int(line["line"]) and f"/{f.file}".endswith("/" + line["file"].lstrip("/")) for f in where.frames
        )
    if _in_scope(place, (*outer_scopes, *where.scope), len(outer_scopes)):
        return True
    if "/" in place:
        return False
    modules = ((f, module) for f in where.frames for module in (f.module(), f.module().partition(".")[0]))
    return any(f".{module}.{f.function}".endswith("." + place) for f, module in modules)


def _in_scope(place: str, path: tuple[str, ...], outer_scopes: int) -> bool:
    parts = place.strip("/").split("/")
    n = len(parts)
    starts = range(max(0, outer_scopes - n + 1), len(path) - n + 1)
    return any(all(map(fnmatch.fnmatchcase, path[i : i + n], parts)) for i in starts)


def results(jaxpr: Any, place: str, outer_scopes: tuple[str, ...] = ()) -> list[tuple[int, int]]:
    """The results of a place in a jaxpr: indices of equations and of their results."""
    runs = _runs(jaxpr, lambda where: is_in(place, where, outer_scopes))
    return [result for run in runs for result in outputs(jaxpr, run)]


def is_result(var: Any, eqn: Any, jaxpr: Any, place: str, outer_scopes: tuple[str, ...]) -> bool:
    """Whether a variable that an equation in a place defines is a result of the place; from its run alone."""

    def condition(where: _Where) -> bool:
        return is_in(place, where, outer_scopes)

    uses = {i for i, each in enumerate(jaxpr.eqns) if var in each.invars and not is_backward(each)}
    uses |= {-1} if var in jaxpr.outvars else set()
    first = here = next(i for i, each in enumerate(jaxpr.eqns) if each is eqn)
    while first and condition(_where(jaxpr.eqns[first - 1])):
        first -= 1
    among = range(first, max(here, *uses) + 1)
    return any(here in run and uses - {*run} for run in _runs(jaxpr, condition, among))


def outputs(jaxpr: Any, run: Sequence[int]) -> list[tuple[int, int]]:
    """The results of the equations ``run`` that other equations of the forward pass use, or the jaxpr returns."""
    inside = set(run)
    defined = {v: (i, j) for i in run for j, v in enumerate(jaxpr.eqns[i].outvars)}
    others = [eqn for i, eqn in enumerate(jaxpr.eqns) if i not in inside and not is_backward(eqn)]
    used = [v for vs in (jaxpr.outvars, *(eqn.invars for eqn in others)) for v in vs if not is_literal(v)]
    return sorted({defined[v] for v in used if v in defined})


def _runs(jaxpr: Any, condition: Any, among: range | None = None) -> Iterator[list[int]]:
    """Groups the indices of equations, ``among`` some in a row, that satisfy ``condition`` by runs through the place.

    A run ends at an equation that does not satisfy it, and before one at the stack of the run's first equation, of its
    primitive, that uses a result of the run. All equations of a call that JAX inlined have one stack.
    """
    run: list[int] = []
    defined: set[Any] = set()
    for i in range(len(jaxpr.eqns)) if among is None else among:
        eqn = jaxpr.eqns[i]
        where = _where(eqn)
        if is_backward(eqn) or not condition(where):
            if run:
                yield run
            run, defined = [], set()
            continue
        first = jaxpr.eqns[run[0]] if run else None
        repeats = first is not None and eqn.primitive is first.primitive and where.frames == _frames_of(first)
        if repeats and any(not is_literal(v) and v in defined for v in eqn.invars):
            yield run
            run, defined = [], set()
        run.append(i)
        defined.update(eqn.outvars)
    if run:
        yield run


def runs_of(jaxpr: Any, frame: Frame) -> Iterator[list[int]]:
    """The indices of the equations with a frame in their stack, grouped by runs through it."""
    return _runs(jaxpr, lambda where: frame in where.frames)


def places(jaxpr: Any, outer_scopes: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of all places of a program: scopes, functions and lines."""
    for eqn in jaxpr.eqns:
        where = _where(eqn)
        path = (*outer_scopes, *where.scope)
        yield from ("/".join(path[: i + 1]) for i in range(len(outer_scopes), len(path)))
        for frame in where.frames:
            if frame.kind not in (Owner.USERS, Owner.INSTALLED):
                continue
            if not frame.function.startswith("<"):
                yield frame.function
            yield frame.place
        for body, _ in inner_jaxprs(eqn):
            yield from places(jaxpr_of(body), path)
