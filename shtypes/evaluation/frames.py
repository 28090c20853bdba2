"""The equation being evaluated and its enclosing equations: their stack, and the sources of operands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from shtypes._compat.debug_names import passed_to
from shtypes._compat.eqn_frames import Frame, eqn_source_of, frames_of, has_users_line, is_of_a_library, is_vmap
from shtypes._compat.in_force import InForce, set_at, settings
from shtypes._compat.jaxprs import is_literal, jaxpr_of
from shtypes.context.eqn_source import EqnSource, current_eqn
from shtypes.context.user_line import is_users_call
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.at_specs import AtSpecs, scope_of
from shtypes.scopes.comm import CommScope
from shtypes.scopes.scope_rules import ScopeRule
from shtypes.types.mesh import Mesh


class Body(NamedTuple):
    """A program that is being evaluated."""

    jaxpr: Any
    env: dict[Any, Any]  # the values of live variables, and the types of others
    outer: Step | None  # the equation whose sub-jaxpr it is; None for the program itself
    at_specs: AtSpecs  # the user's `at=`
    scope: tuple[str, ...] = ()  # the enclosing name scopes
    places: frozenset[str] = frozenset()  # the places of `at=` that it is in
    arguments: Callable[[], Sequence[str]] = tuple  # the user's names of the program's arguments
    mesh: Mesh | None = None
    in_force: InForce = InForce()  # the settings that the program made around it
    of_function: bool = False  # whether it is a JAX function that the user called on typed values

    @classmethod
    def inside(cls, outer: Step) -> Body:
        """The body of a sub-jaxpr of an equation."""
        outer_body, specs = outer.body, outer.body.at_specs
        body = outer_body._replace(jaxpr=None, env={}, outer=outer, arguments=tuple, in_force=outer.in_force)
        if not specs.at:
            return body
        scope = (*outer_body.scope, *scope_of(str(outer.eqn.source_info.name_stack)))
        return body._replace(scope=scope, places=outer_body.places | specs.inside(outer.eqn, outer_body.scope))


class Step:
    """An equation being evaluated, with its source for messages and the program's settings."""

    __slots__ = ("body", "eqn", "in_force")

    def __init__(self, eqn: Any, body: Body, in_force: InForce | None = None) -> None:
        self.eqn, self.body = eqn, body
        self.in_force = body.in_force if in_force is None else in_force

    def __call__(self) -> EqnSource | None:
        """The source of the equation; None without a stack."""
        frames = self.frames()
        return eqn_source_of(frames) if frames else None

    def path(self) -> tuple[int, ...]:
        """The ids of the enclosing equations, outermost first, and its own."""
        outer = self.body.outer
        return (*(() if outer is None else outer.path()), id(self.eqn))

    def frames(self) -> list[Frame]:
        """Its stack and those of the enclosing equations, innermost first.

        Without the stack of a JAX function that the user called, which was traced at another line.
        """
        outer = self.body.outer
        stack = [] if self.body.of_function else frames_of(self.eqn)
        return stack + ([] if outer is None else outer.frames())

    def is_in_vmap(self, frame: Frame) -> bool:
        """Whether one of its frames runs inside `jax.vmap`, where values lack the mapped dim."""
        step: Step | None = self
        while step is not None:
            if is_in_vmap(step.eqn, frame):
                return True
            step = step.body.outer
        return False

    def lines(self) -> Any:
        """JAX's traceback of the innermost equation, of it and its enclosing ones, that has a line of the user's.

        Without one, as in an optimizer's step: None if a line of the user's is running, else its own traceback.
        """
        step: Step | None = self
        while step is not None:
            traceback = step.eqn.source_info.traceback
            if not step.body.of_function and has_users_line(traceback):
                return traceback
            step = step.body.outer
        return None if self.body.of_function or is_users_call() else self.eqn.source_info.traceback


def is_in_vmap(eqn: Any, frame: Frame) -> bool:
    """Whether a frame of an equation, or of one inside it, runs inside `jax.vmap`."""
    frames = frames_of(eqn)
    if any(map(is_vmap, frames)):
        return any(map(is_vmap, frames[frames.index(frame) if frame in frames else 0 :]))
    return "vmap(" in str(eqn.source_info.name_stack)  # branches that are mapped have the stack of their own trace


class Source(NamedTuple):
    """The variable of a value, with the equation that computes it; None for an argument."""

    step: Step | None
    var: Any
    body: Body
    inside: Source | None = None  # the argument of a sub-jaxpr that it is passed to, on the way to its use


def source_of(body: Body, x: Any) -> Source | None:
    """The source of a value, through arguments of sub-jaxprs as far as it is passed on; None if it has no variable."""
    made = (v for eqn in body.jaxpr.eqns for v in eqn.outvars)
    var = next((v for v in (*body.jaxpr.invars, *made) if not is_literal(v) and body.env.get(v) is x), None)
    if var is not None:
        return source_of_var(body, var)
    return None if body.outer is None else source_of(body.outer.body, x)


def source_of_var(body: Body, var: Any, inside: Source | None = None) -> Source:
    """The source of a variable, outside its body if it is passed on to that."""
    eqn = next((eqn for eqn in body.jaxpr.eqns if var in eqn.outvars), None)
    source = Source(None if eqn is None else Step(eqn, body), var, body, inside)
    if eqn is not None or body.outer is None:
        return source
    passed = passed_to(body.outer.eqn, body.jaxpr, var)
    return source if passed is None or is_literal(passed) else source_of_var(body.outer.body, passed, source)


def is_undifferentiated(body: Body) -> bool:
    """Whether a body is in a function of the user's with a custom derivative, which is not differentiated itself."""
    if body.outer is None:
        return False
    eqn = body.outer.eqn
    called = eqn.params.get("call_jaxpr") if eqn.primitive.name.startswith("custom_") else None
    own = called is not None and jaxpr_of(called).invars == body.jaxpr.invars and not is_of_a_library(called)
    return own or is_undifferentiated(body.outer.body)


def mesh_here(operands: Sequence[Any]) -> Mesh | None:
    """The mesh of typed operands, or of the program being evaluated, or None."""
    step = current()
    return next((x.type.mesh for x in operands if is_typed(x)), None if step is None else step.body.mesh)


def current() -> Step | None:
    """The equation being evaluated, or None."""
    return cast("Step | None", current_eqn())


_NOTHING = InForce()


class Scopes:
    """The open settings and communication scopes of a body while its equations are evaluated in order.

    Communication scopes stay open across equations, since they count all that runs in them.
    """

    def __init__(self, outer: InForce = _NOTHING) -> None:
        self._outer = outer
        self._open: list[tuple[Any, contextlib.AbstractContextManager[Any]]] = []
        self._runs: dict[ScopeRule, Any] = {}
        self.now = outer

    def enter(self, eqn: Any) -> None:
        """Opens the scopes of an equation, and leaves all others."""
        target = set_at(eqn)
        if target is None:
            target = self._outer
        if target is self.now:
            return
        inherited = len(self._outer.rules)
        added = target.rules[inherited:] if target.rules[:inherited] == self._outer.rules else target.rules
        layers: list[Any] = list(added)
        if (target.fields, target.jax) != (self._outer.fields, self._outer.jax):
            layers.append(InForce((), target.fields, target.jax))
        count = 0
        while count < min(len(layers), len(self._open)) and self._open[count][0] == layers[count]:
            count += 1
        self.leave(count)
        for layer in layers[count:]:
            scope = settings(layer) if isinstance(layer, InForce) else self._run(layer)
            scope.__enter__()
            self._open.append((layer, scope))
        self.now = target

    def _run(self, rule: ScopeRule) -> contextlib.AbstractContextManager[Any]:
        """A further part of the run of a communication scope, whose count includes earlier parts."""
        if rule not in self._runs:
            self._runs[rule] = CommScope(rule).new_run()
        part: contextlib.AbstractContextManager[Any] = self._runs[rule]()
        return part

    def leave(self, count: int = 0, error: BaseException | None = None) -> None:
        """Leaves all but the outermost ``count`` scopes."""
        while len(self._open) > count:
            _, scope = self._open.pop()
            scope.__exit__(*((None, None, None) if error is None else (type(error), error, error.__traceback__)))
        self.now = self._outer


@contextlib.contextmanager
def scopes_of(outer: InForce) -> Iterator[Scopes]:
    """The `Scopes` of a body; leaves them at the end."""
    scopes = Scopes(outer)
    try:
        yield scopes
    except BaseException as error:
        scopes.leave(error=error)
        raise
    scopes.leave()
