"""JAX's rules of an equation of a plain program, applied to typed values.

How JAX differentiates, transposes or maps an equation is a plain program again: it is traced, and evaluated with the
typed ops. So a rule does on typed values what it does in JAX, whatever primitives it binds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat import is_undefined_primal
from shtypes._compat.derivative_rules import (
    applying_rule,
    check_closed_over,
    closes_over,
    custom_jvp_rule,
    has_ended,
    name_of,
    variable_of,
)
from shtypes._compat.in_force import InForce, settings
from shtypes._compat.jaxprs import is_literal, reached
from shtypes._compat.plain_programs import bind_in_program, trace_plain, without_mesh
from shtypes.context.eqn_source import set_current_eqn
from shtypes.context.settings import current_settings, scope
from shtypes.context.user_line import placed as at_users_line
from shtypes.core.call_with_rules import call_with_rules
from shtypes.core.jax_errors import telling
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.frames import Step, current
from shtypes.evaluation.interpreter import evaluate, evaluate_closed
from shtypes.evaluation.value_info import aval_of, is_constant, is_inexact, note_constant, noted_as, of_some, placed
from shtypes.lifting.saving import marked, policies_in_force, under_policies
from shtypes.resharding import plan
from shtypes.scopes.comm import InBackward, NotTransposed, Rules, allows_implicit, rules_in_force, under
from shtypes.types import ShType, State


class Split:
    """The operands of an equation: inputs of the typed program for it, and concrete arrays, its constants."""

    def __init__(self, operands: Sequence[Any]) -> None:
        is_concrete = [not is_typed(x) and not isinstance(x, jax.core.Tracer) for x in operands]
        self.fixed = {i: x for i, x in enumerate(operands) if is_concrete[i]}
        self._constant = [is_constant(x) for x in self.inputs(operands)]

    def inputs(self, every: Sequence[Any]) -> list[Any]:
        """From a list with an entry for each operand, the entries of the inputs."""
        return [x for i, x in enumerate(every) if i not in self.fixed]

    def every(self, operands: Sequence[Any]) -> list[Any]:
        """All operands, from those of the typed program."""
        return self._beside(operands, self.fixed)

    def every_or_none(self, operands: Sequence[Any]) -> list[Any]:
        """The typed program's operands at their places among all, with None for the others."""
        return self._beside(operands, dict.fromkeys(self.fixed))

    def _beside(self, operands: Sequence[Any], others: dict[int, Any]) -> list[Any]:
        rest = iter(operands)
        return [others[i] if i in others else next(rest) for i in range(len(operands) + len(others))]

    def body(self, run: Callable[[Sequence[Any]], list[Any]]) -> Callable[..., list[Any]]:
        """A function of all operands as one of those of the typed program, in which constants stay constants."""

        def of_own(*xs: Any) -> list[Any]:
            return run(self.every(noted_as(self._constant, xs)))

        return of_own


#: From the operands of an equation to its results.
Run = Callable[[Sequence[Any]], list[Any]]


class _Thread(threading.local):
    """The values that the rule closes over which is being evaluated, by their variables where it was defined."""

    closed_over: Sequence[tuple[Any, Any]] = ()


_thread: Final = _Thread()


class Site:
    """The context of an equation's evaluation that its rules need later, without values that end with its trace.

    Attributes:
        ins: JAX's types of the operands.
    """

    def __init__(self, eqn: Any, operands: Sequence[Any]) -> None:
        self.eqn, self.name, self.here = eqn, name_of(eqn), _detached(current())
        self._policies, self._around = policies_in_force(), current_settings()
        mesh = None if self.here is None else self.here.body.mesh
        self._axes = None if mesh is None else (mesh.axis_sizes, mesh.axis_names)
        self.ins, self._outs = [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars]
        self._constant = list(map(is_constant, operands))
        # Which operands are values that its rules may close over.
        self._places = {v: i for i, v in enumerate(eqn.invars) if not is_literal(v)}
        for var, value in _thread.closed_over:
            self._places.update((var, i) for i, x in enumerate(operands) if x is value)

    def own(self, operands: Sequence[Any]) -> Sequence[Any]:
        """The operands as a rule takes them, with what was noted of them: constants stay constants."""
        return noted_as(self._constant, operands)

    def native(self, xs: Sequence[Any]) -> list[Any]:
        """The equation on plain arrays, with all the rules that JAX has for it."""
        return bind_in_program(self.eqn, xs)

    @contextlib.contextmanager
    def applying(self) -> Iterator[None]:
        """A scope around one of its rules, which may be applied after the scopes of the equation were left."""
        with self._in_force(), set_current_eqn(self.here):
            try:
                with applying_rule(self.name):
                    yield
            except ShardingTypeError as error:
                raise at_users_line(error, self.name) from error.__cause__

    @contextlib.contextmanager
    def _in_force(self) -> Iterator[None]:
        now, settings_there = current_settings(), self._around
        around = now._replace(local=settings_there.local, mapped=settings_there.mapped, written=settings_there.written)
        with contextlib.ExitStack() as entered:
            if around != now:
                entered.enter_context(scope(around))
            if self.here is not None and self.here.in_force != InForce():
                entered.enter_context(settings(self.here.in_force))
            yield

    @contextlib.contextmanager
    def resolving(self, values: Sequence[Any], operands: Sequence[Any]) -> Iterator[list[Any]]:
        """Yields the values that a rule closes over; those of the program are operands while it is evaluated."""
        places = {var: self._places[var] for var in map(variable_of, values) if var in self._places}
        values_here = [operands[places[variable_of(x)]] if variable_of(x) in places else x for x in values]
        if any(map(has_ended, values_here)):
            raise closes_over(self.name)
        outer = _thread.closed_over
        _thread.closed_over = [(var, operands[i]) for var, i in places.items()]
        try:
            with under_policies(self._policies):
                yield values_here
        finally:
            _thread.closed_over = outer

    def plainly(self, f: Callable[..., Any], operands: Sequence[Any], args: Any, like: Sequence[Any]) -> Any:
        """A function of plain arrays that is a rule of the equation, of typed values: traced, and evaluated.

        Where the plain operands have no gradient, plain arguments have none: they depend on those alone.
        """
        leaves, tree = jax.tree.flatten(args)
        if all(constant or is_typed(x) for x, constant in zip(operands, self._constant, strict=True)):
            noted_as([not is_typed(x) for x in leaves], leaves)
        structure: list[Any] = []

        def flat(*xs: Any) -> list[Any]:
            with telling():
                out, form = jax.tree.flatten(f(*jax.tree.unflatten(tree, xs)))
            structure.append(form)
            return out

        closed, around, _ = trace_plain(flat, list(map(aval_of, leaves, like)), self._axes)
        with self.resolving(around, operands) as values:
            results = evaluate_closed(marked(closed, self._policies), [*values, *leaves])
        return jax.tree.unflatten(structure[0], results)

    # its rules

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], types: Sequence[ShType | None] = ()
    ) -> tuple[list[Any], list[Any]]:
        """The results and their tangents, both by JAX's rule."""
        rule = self._custom_jvp if self.eqn.primitive.name == "custom_jvp_call" else self._jvp
        with self.applying():
            outs, dots = rule(self.own(primals), tangents)
            outs = [
                placed(y, t.type) if is_typed(t) and not is_typed(y) else y for y, t in zip(outs, dots, strict=True)
            ]
            if types:
                outs = [y if t is None else self.fitting(y, t, "result") for y, t in zip(outs, types, strict=True)]
            return outs, [self._tangent(t, y) for t, y in zip(dots, outs, strict=True)]

    def _tangent(self, t: Any, y: Any) -> Any:
        if t is None or not is_inexact(y):
            return None
        return self.fitting(t, y.type, "tangent") if is_typed(y) else t

    def cotangent(self, ct: Any, aval: Any) -> Any:
        """A cotangent of an operand, cast to the operand's cotangent type."""
        return self.fitting(ct, aval, "cotangent") if isinstance(aval, ShType) else ct

    def fitting(self, x: Any, t: ShType, what: str) -> Any:
        """A rule's result in the type that it must have: cast for free, or where a scope may insert more.

        A pending cotangent of an invariant operand is summed, as all are.
        """
        src = t if not is_typed(x) else x.type
        if what == "cotangent":
            for axis in t.axes(State.INVARIANT):
                src = src.with_axis(axis, State.INVARIANT) if src.state(axis) is State.UNREDUCED else src
        if allows_implicit() or not plan(src, t).bytes:
            return placed(x, t, what)
        raise ShardingTypeError(
            f"the derivative rule of `{self.name}` gives a {what} of type {x.type}, which has to be {t}",
            why="nothing is communicated unasked, and a rule's results are no exception",
            hints=[f'sh.reshard({what}, "{t}") in the rule'],
        )

    def _custom_jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        check_closed_over(self.eqn, [t is not None for t in tangents])
        n = self.eqn.params["num_consts"]
        inputs, tangents_in = primals[n:], tangents[n:]
        if not self.eqn.params["symbolic_zeros"]:
            tangents_in = [_zero_tangent(x) if t is None else t for x, t in zip(inputs, tangents_in, strict=True)]
        with telling():
            rule = custom_jvp_rule(self.eqn, [t is None for t in tangents_in])
        with self.resolving(rule.consts, primals) as consts:
            values = [*consts, *inputs, *(t for t in tangents_in if t is not None)]
            n = len(rule.jaxpr.constvars)
            results = evaluate(marked(rule.jaxpr, self._policies), values[:n], values[n:])
        count = len(rule.out_zeros)
        dots = iter(results[count:])
        return results[:count], [None if zero else next(dots) for zero in rule.out_zeros]

    def _jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        live = [i for i, t in enumerate(tangents) if t is not None and is_inexact(primals[i])]

        def push(*args: Any) -> Any:
            xs, ts = args[: len(primals)], args[len(primals) :]
            return jax.jvp(of_some(self.native, xs, live), [xs[i] for i in live], list(ts))

        args = [*primals, *(tangents[i] for i in live)]
        like = [*self.ins, *(self.ins[i].to_tangent_aval() for i in live)]
        closed, around, _ = trace_plain(push, list(map(aval_of, args, like)), self._axes)
        with self.resolving(around, primals) as values:
            results = evaluate_closed(marked(closed, self._policies), [*values, *args])
        count, first = len(results) // 2, len(around) + len(primals)
        moved = reached(closed, range(first, first + len(live)))[count:]
        return results[:count], [t if there else None for t, there in zip(results[count:], moved, strict=True)]

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """The cotangents of the linear operands, which are `UndefinedPrimal`, by JAX's rule; None for the others."""
        linear = [i for i, x in enumerate(operands) if is_undefined_primal(x)]
        primals = [i for i in range(len(operands)) if i not in linear]
        live_cts = [i for i, ct in enumerate(cts) if ct is not None]
        shapes = [jax.ShapeDtypeStruct(operands[i].aval.shape, operands[i].aval.dtype) for i in linear]

        def back(xs: Sequence[Any], cts: Sequence[Any]) -> Any:
            def of_linear(*some: Any) -> list[Any]:
                full = dict(zip((*primals, *linear), (*xs, *some), strict=True))
                outs = self.native([full[i] for i in range(len(operands))])
                return [outs[i] for i in live_cts]

            return jax.linear_transpose(of_linear, *shapes)(list(cts))

        cts_in: list[Any] = [None] * len(operands)
        with self.applying():
            args = [operands[i] for i in primals], [cts[i] for i in live_cts]
            like = [*(self.ins[i] for i in primals), *(self._outs[i].to_ct_aval() for i in live_cts)]
            results = self.plainly(back, operands, args, like)
            for i, ct in zip(linear, results, strict=True):
                cts_in[i] = self.cotangent(ct, operands[i].aval)
        return cts_in

    def batch(self, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
        """The results mapped over a dim of the operands, by JAX's rule; it comes first in them."""
        with self.applying():
            return self.mapped(self.native, size, operands, dims)

    def mapped(self, run: Run, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
        """The same of a function of plain arrays that stands for the equation."""
        over = jax.vmap(lambda *xs: run(xs), in_axes=tuple(dims), axis_size=size)
        results: list[Any] = self.plainly(over, operands, operands, self.ins)
        return results


def _detached(step: Step | None) -> Step | None:
    """The equation, for messages: without values."""
    if step is None:
        return None
    return Step(step.eqn, step.body._replace(env={}, outer=_detached(step.body.outer)), step.in_force)


def _zero_tangent(x: Any) -> Any:
    """A zero for a rule without symbolic zeros: a constant."""
    aval = aval_of(x)
    if not is_inexact(x):
        return np.zeros(aval.shape, jax.dtypes.float0)
    with without_mesh():
        zero = jnp.zeros(aval.shape, aval.dtype)
    note_constant(zero)
    return zero


# calls that have them


@dataclass(eq=False)
class _OfCall:
    """The rules of an equation, for a typed call of it."""

    site: Site  # the equation
    split: Split  # which of its operands are operands of the call
    no_derivative: frozenset[int]  # the places of operands in which JAX's rule has no derivative
    scopes: Rules  # what scopes of communication say around the call: they hold in its backward pass too

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self.site.name

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """As JAX differentiates the equation."""
        live = self.split.every_or_none(tangents)
        if any(live[i] is not None for i in self.no_derivative):
            raise ShardingTypeError(
                f"`{self.name}` has no derivative in its residual arguments",
                why="it says how it is transposed in what it is linear in, and nothing of the rest",
                hints=["jax.lax.stop_gradient(residual_args)"],
            )
        return self.site.jvp(self.split.every(primals), live)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """As JAX transposes the equation."""
        if all(ct is None for ct in cts):
            return [None] * len(operands)
        cts_in = under(self.scopes, self.site.transpose, InBackward())(cts, self.split.every(operands))
        return self.split.inputs(cts_in)

    def batch(self, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
        """As JAX maps the equation."""
        return self.site.batch(size, self.split.every(operands), self.split.every_or_none(dims))


def with_rules(site: Site, operands: Sequence[Any], run: Run, nondiff: Sequence[int] = ()) -> list[Any]:
    """The results of an equation by ``run``, with the derivative, transpose and batching rules that JAX has for it."""
    run = under(None, run, NotTransposed())
    if not any(isinstance(x, jax.core.Tracer) for x in operands):
        return run(operands)
    split = Split(operands)

    def body(*xs: Any) -> list[Any]:
        with set_current_eqn(site.here):
            return split.body(run)(*xs)

    return call_with_rules(body, split.inputs(operands), _OfCall(site, split, frozenset(nondiff), rules_in_force()))
