"""The equation that is being evaluated and those around its body: its stack, and where its operands came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from shtypes._compat.eqn_frames import Frame, eqn_source_of, frames_of, has_users_line
from shtypes._compat.in_force import InForce
from shtypes._compat.jaxprs import is_literal
from shtypes.context.eqn_source import EqnSource, current_eqn
from shtypes.context.user_line import is_users_call
from shtypes.evaluation.at_specs import Outside, scope_of
from shtypes.types.mesh import Mesh


class Body(NamedTuple):
    """A program that is being evaluated.

    Attributes:
        jaxpr: The program.
        env: The values of its variables that are still used.
        outer: The equation that it is a body of; None for the whole program.
        outside: What was said of the program from outside.
        scope: The path of scopes around it.
        places: Those places of ``outside`` that it is in.
        arguments: What the arguments of the whole program are called.
        mesh: The mesh that the program is evaluated on, if any.
        in_force: What the program set around it.
        of_function: Whether it is that of a function of JAX which the user called on typed values.
    """

    jaxpr: Any
    env: dict[Any, Any]
    outer: Step | None
    outside: Outside
    scope: tuple[str, ...] = ()
    places: frozenset[str] = frozenset()
    arguments: Callable[[], Sequence[str]] = tuple
    mesh: Mesh | None = None
    in_force: InForce = InForce()
    of_function: bool = False

    @classmethod
    def of_call(cls, mesh: Mesh | None) -> Body:
        """The program of a function of JAX, in the equation that is being evaluated, if any is."""
        return cls(None, {}, current(), Outside(), mesh=mesh, of_function=True)

    @classmethod
    def whole(cls, outside: Outside, arguments: Callable[[], Sequence[str]] = tuple, mesh: Mesh | None = None) -> Body:
        """A whole program."""
        return cls(None, {}, None, outside, arguments=arguments, mesh=mesh)

    @classmethod
    def inside(cls, outer: Step) -> Body:
        """A body of an equation."""
        around = outer.body
        if not around.outside.at:
            return around._replace(jaxpr=None, env={}, outer=outer, arguments=tuple, in_force=outer.in_force)
        own = scope_of(str(outer.eqn.source_info.name_stack))
        places = around.places | around.outside.inside(outer.eqn, around.scope)
        return cls(
            None, {}, outer, around.outside, (*around.scope, *own), places, mesh=around.mesh, in_force=outer.in_force
        )


class Step:
    """One equation, while it is evaluated: what messages ask where it comes from, and what the program set there."""

    __slots__ = ("body", "eqn", "in_force")

    def __init__(self, eqn: Any, body: Body, in_force: InForce | None = None) -> None:
        self.eqn, self.body = eqn, body
        self.in_force = body.in_force if in_force is None else in_force

    def __call__(self) -> EqnSource | None:
        """Where it comes from; None if that is the line that is running."""
        frames = self.frames()
        return eqn_source_of(frames) if frames else None

    def frames(self) -> list[Frame]:
        """Its stack, innermost first, with those of the equations whose bodies it is in.

        A function of JAX that the user called is traced once for many lines: its own stack says nothing.
        """
        outer = self.body.outer
        own = [] if self.body.of_function else frames_of(self.eqn)
        return own + ([] if outer is None else outer.frames())

    def lines(self) -> Any:
        """JAX's stack of the innermost of these equations that has a line of the user's.

        Of a program that is a library's own, such as an optimizer's step, none has: then None, which stands for the
        line of the user's that runs it, or its own stack where there is no such line.
        """
        step: Step | None = self
        while step is not None:
            traceback = step.eqn.source_info.traceback
            if not step.body.of_function and has_users_line(traceback):
                return traceback
            step = step.body.outer
        return None if self.body.of_function or is_users_call() else self.eqn.source_info.traceback


class Made(NamedTuple):
    """Where a value comes from: an equation of a body, and its variable; no equation for an argument."""

    step: Step | None
    var: Any
    body: Body


def made(step: Step, x: Any) -> Made | None:
    """The outermost equation that a value is a result of, or the argument of the program that it is."""
    body = step.body
    while True:
        for var in body.jaxpr.invars:
            if body.env.get(var) is x:
                if body.outer is None:
                    return Made(None, var, body)
                break
        else:
            for eqn in body.jaxpr.eqns:
                for var in eqn.outvars:
                    if not is_literal(var) and body.env.get(var) is x:
                        return Made(Step(eqn, body), var, body)
            return None
        body = body.outer.body


def current() -> Step | None:
    """The equation that is being evaluated here; None outside of any."""
    return cast("Step | None", current_eqn())
