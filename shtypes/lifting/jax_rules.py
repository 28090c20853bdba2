"""Applies JAX's derivative, transpose and batching rules of a plain equation to typed values.

A rule is traced as a plain program, which is then evaluated with the typed ops, whatever primitives it binds.
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
from shtypes.context.scope import attribute_set
from shtypes.context.settings import current_settings, scope
from shtypes.context.user_line import placed
from shtypes.core.call_with_rules import call_with_rules
from shtypes.core.jax_errors import wrap_refusals
from shtypes.core.shard_fn import is_inexact
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.frames import Step, current
from shtypes.evaluation.interpreter import evaluate, evaluate_closed
from shtypes.evaluation.value_info import aval_of, cast_to_type, is_constant, note_constant, noted_as, of_some
from shtypes.lifting.saving import marked, policies_in_force, under_policies
from shtypes.resharding import plan
from shtypes.scopes.comm import under_rules
from shtypes.scopes.scope_rules import InBackward, NotTransposed, Rules, allows_implicit, rules_in_force
from shtypes.types import ShType, State


class Split:
    """Splits an equation's operands into inputs of a typed call, and concrete arrays that the call closes over."""

    def __init__(self, operands: Sequence[Any]) -> None:
        is_concrete = [not is_typed(x) and not isinstance(x, jax.core.Tracer) for x in operands]
        self.concrete = {i: x for i, x in enumerate(operands) if is_concrete[i]}
        self._constant = [is_constant(x) for x in self.inputs(operands)]

    def inputs(self, per_operand: Sequence[Any]) -> list[Any]:
        """The entries of a list, with one per operand, that belong to inputs."""
        return [x for i, x in enumerate(per_operand) if i not in self.concrete]

    def restored(self, inputs: Sequence[Any]) -> list[Any]:
        """All operands, for these inputs."""
        return self._merged(inputs, self.concrete)

    def restored_with_none(self, inputs: Sequence[Any]) -> list[Any]:
        """One entry per operand: those of the inputs, and None for concrete operands."""
        return self._merged(inputs, dict.fromkeys(self.concrete))

    def _merged(self, inputs: Sequence[Any], others: dict[int, Any]) -> list[Any]:
        rest = iter(inputs)
        return [others[i] if i in others else next(rest) for i in range(len(inputs) + len(others))]

    def body(self, run: Callable[[Sequence[Any]], list[Any]]) -> Callable[..., list[Any]]:
        """Converts a function of all operands to one of the inputs, in which constants are noted as constants."""

        def on_inputs(*xs: Any) -> list[Any]:
            return run(self.restored(noted_as(self._constant, xs)))

        return on_inputs


#: From the operands of an equation to its results.
Run = Callable[[Sequence[Any]], list[Any]]


class _Thread(threading.local):
    """The closure of the rule being evaluated: pairs of the variable in the defining trace and its current value."""

    closed_over: Sequence[tuple[Any, Any]] = ()


_thread: Final = _Thread()


class Site:
    """An equation with the context that its rules need later, but without values of its trace.

    Attributes:
        in_avals: JAX's types of the operands.
    """

    def __init__(self, eqn: Any, operands: Sequence[Any]) -> None:
        self.eqn, self.name, self.step = eqn, name_of(eqn), _detached(current())
        self._policies, self._settings = policies_in_force(), current_settings()
        mesh = None if self.step is None else self.step.body.mesh
        self._axes = None if mesh is None else (mesh.axis_sizes, mesh.axis_names)
        self.in_avals, self._out_avals = [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars]
        self._constant = list(map(is_constant, operands))
        # The indices of the operands that its rules may close over.
        self._operand_index = {v: i for i, v in enumerate(eqn.invars) if not is_literal(v)}
        for var, value in _thread.closed_over:
            self._operand_index.update((var, i) for i, x in enumerate(operands) if x is value)

    def with_notes(self, operands: Sequence[Any]) -> Sequence[Any]:
        """The operands of a rule, noted as constants where the equation's operands are."""
        return noted_as(self._constant, operands)

    def bind_plain(self, xs: Sequence[Any]) -> list[Any]:
        """Binds the equation on plain arrays, with all of JAX's rules for it."""
        return bind_in_program(self.eqn, xs)

    @contextlib.contextmanager
    def applying(self) -> Iterator[None]:
        """A scope around a rule, which restores the settings of the equation."""
        with self._restore_settings(), set_current_eqn(self.step):
            try:
                with applying_rule(self.name):
                    yield
            except ShardingTypeError as error:
                raise placed(error, self.name) from error.__cause__

    @contextlib.contextmanager
    def _restore_settings(self) -> Iterator[None]:
        now, at_eqn = current_settings(), self._settings
        restored = now._replace(local=at_eqn.local, mapped=at_eqn.mapped, written=at_eqn.written)
        with contextlib.ExitStack() as entered:
            if restored != now:
                entered.enter_context(scope(restored))
            if self.step is not None and self.step.in_force != InForce():
                entered.enter_context(settings(self.step.in_force))
            yield

    @contextlib.contextmanager
    def resolving(self, closed_over: Sequence[Any], operands: Sequence[Any]) -> Iterator[list[Any]]:
        """Yields the values that a rule closes over, with values of the program replaced by its current operands."""
        index = {var: self._operand_index[var] for var in map(variable_of, closed_over) if var in self._operand_index}
        resolved = [operands[index[variable_of(x)]] if variable_of(x) in index else x for x in closed_over]
        if any(map(has_ended, resolved)):
            raise closes_over(self.name)
        current_values = [(var, operands[i]) for var, i in index.items()]
        with attribute_set(_thread, "closed_over", current_values), under_policies(self._policies):
            yield resolved

    def evaluate_rule(self, f: Callable[..., Any], operands: Sequence[Any], args: Any, like: Sequence[Any]) -> Any:
        """Traces a rule, a function of plain arrays, and evaluates it with typed arguments.

        If no plain operand has a gradient, no plain argument has one: it depends on these operands alone.
        """
        leaves, tree = jax.tree.flatten(args)
        if all(constant or is_typed(x) for x, constant in zip(operands, self._constant, strict=True)):
            noted_as([not is_typed(x) for x in leaves], leaves)
        structure: list[Any] = []

        def flat(*xs: Any) -> list[Any]:
            with wrap_refusals():
                out, form = jax.tree.flatten(f(*jax.tree.unflatten(tree, xs)))
            structure.append(form)
            return out

        closed, closed_over, _ = trace_plain(flat, list(map(aval_of, leaves, like)), self._axes)
        with self.resolving(closed_over, operands) as values:
            results = evaluate_closed(marked(closed, self._policies), [*values, *leaves])
        return jax.tree.unflatten(structure[0], results)

    # its rules

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], types: Sequence[ShType | None] = ()
    ) -> tuple[list[Any], list[Any]]:
        """The results and their tangents, by JAX's rule."""
        rule = self._custom_jvp if self.eqn.primitive.name == "custom_jvp_call" else self._jvp
        with self.applying():
            outs, tangents_out = rule(self.with_notes(primals), tangents)
            outs = [
                cast_to_type(y, t.type) if is_typed(t) and not is_typed(y) else y
                for y, t in zip(outs, tangents_out, strict=True)
            ]
            if types:
                outs = [y if t is None else self.cast_result(y, t, "result") for y, t in zip(outs, types, strict=True)]
            return outs, [self._tangent(t, y) for t, y in zip(tangents_out, outs, strict=True)]

    def _tangent(self, t: Any, y: Any) -> Any:
        if t is None or not is_inexact(y):
            return None
        return self.cast_result(t, y.type, "tangent") if is_typed(y) else t

    def cotangent(self, ct: Any, aval: Any) -> Any:
        """Casts a cotangent of an operand to the operand's cotangent type."""
        return self.cast_result(ct, aval, "cotangent") if isinstance(aval, ShType) else ct

    def cast_result(self, x: Any, t: ShType, what: str) -> Any:
        """Casts a rule's result to the type that it must have; communicates only inside `implicit_comm`.

        A pending cotangent of an invariant operand is summed, as everywhere.
        """
        src = t if not is_typed(x) else x.type
        if what == "cotangent":
            src = src.with_axes({*t.axes(State.INVARIANT)} & {*src.axes(State.UNREDUCED)}, State.INVARIANT)
        if allows_implicit() or not plan(src, t).bytes:
            return cast_to_type(x, t, what)
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
        with wrap_refusals():
            rule = custom_jvp_rule(self.eqn, [t is None for t in tangents_in])
        with self.resolving(rule.consts, primals) as consts:
            values = [*consts, *inputs, *(t for t in tangents_in if t is not None)]
            n = len(rule.jaxpr.constvars)
            results = evaluate(marked(rule.jaxpr, self._policies), values[:n], values[n:])
        count = len(rule.out_zeros)
        tangents_out = iter(results[count:])
        return results[:count], [None if zero else next(tangents_out) for zero in rule.out_zeros]

    def _jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        live = [i for i, t in enumerate(tangents) if t is not None and is_inexact(primals[i])]

        def push(*args: Any) -> Any:
            xs, ts = args[: len(primals)], args[len(primals) :]
            return jax.jvp(of_some(self.bind_plain, xs, live), [xs[i] for i in live], list(ts))

        args = [*primals, *(tangents[i] for i in live)]
        like = [*self.in_avals, *(self.in_avals[i].to_tangent_aval() for i in live)]
        closed, closed_over, _ = trace_plain(push, list(map(aval_of, args, like)), self._axes)
        with self.resolving(closed_over, primals) as values:
            results = evaluate_closed(marked(closed, self._policies), [*values, *args])
        count, first = len(results) // 2, len(closed_over) + len(primals)
        nonzero = reached(closed, range(first, first + len(live)))[count:]
        return results[:count], [t if nz else None for t, nz in zip(results[count:], nonzero, strict=True)]

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """The cotangents of the linear operands, the `UndefinedPrimal`s, by JAX's rule; None for the others."""
        linear = [i for i, x in enumerate(operands) if is_undefined_primal(x)]
        primals = [i for i in range(len(operands)) if i not in linear]
        live_cts = [i for i, ct in enumerate(cts) if ct is not None]
        shapes = [jax.ShapeDtypeStruct(operands[i].aval.shape, operands[i].aval.dtype) for i in linear]

        def transposed(xs: Sequence[Any], cts: Sequence[Any]) -> Any:
            def of_linear(*some: Any) -> list[Any]:
                full = dict(zip((*primals, *linear), (*xs, *some), strict=True))
                outs = self.bind_plain([full[i] for i in range(len(operands))])
                return [outs[i] for i in live_cts]

            return jax.linear_transpose(of_linear, *shapes)(list(cts))

        cts_in: list[Any] = [None] * len(operands)
        with self.applying():
            args = [operands[i] for i in primals], [cts[i] for i in live_cts]
            like = [*(self.in_avals[i] for i in primals), *(self._out_avals[i].to_ct_aval() for i in live_cts)]
            for i, ct in zip(linear, self.evaluate_rule(transposed, operands, args, like), strict=True):
                cts_in[i] = self.cotangent(ct, operands[i].aval)
        return cts_in

    def batch(self, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
        """The results mapped over a dim of the operands, by JAX's rule; it is their first dim."""
        with self.applying():
            return self.mapped(self.bind_plain, size, operands, dims)

    def mapped(self, run: Run, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
        """Like `batch`, for a function of plain arrays in place of the equation."""
        over = jax.vmap(lambda *xs: run(xs), in_axes=tuple(dims), axis_size=size)
        results: list[Any] = self.evaluate_rule(over, operands, operands, self.in_avals)
        return results


def _detached(step: Step | None) -> Step | None:
    """The step without values, for messages."""
    if step is None:
        return None
    return Step(step.eqn, step.body._replace(env={}, outer=_detached(step.body.outer)), step.in_force)


def _zero_tangent(x: Any) -> Any:
    """A zero tangent, noted as a constant, for a rule without symbolic zeros."""
    aval = aval_of(x)
    if not is_inexact(x):
        return np.zeros(aval.shape, jax.dtypes.float0)
    with without_mesh():
        zero = jnp.zeros(aval.shape, aval.dtype)
    note_constant(zero)
    return zero


@dataclass(eq=False)
class _CallRules:
    """JAX's rules of an equation, for a typed call of it."""

    site: Site
    split: Split  # of its operands into those of the call and concrete ones
    no_derivative: frozenset[int]  # the indices of operands for which JAX has no derivative
    scopes: Rules  # the rules of communication scopes around the call, which apply to its backward pass too

    @property
    def name(self) -> str:
        """The user's name of the equation."""
        return self.site.name

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The results and their tangents, by JAX's rule."""
        live = self.split.restored_with_none(tangents)
        if any(live[i] is not None for i in self.no_derivative):
            raise ShardingTypeError(
                f"`{self.name}` has no derivative in its residual arguments",
                why="it says how it is transposed in what it is linear in, and nothing of the rest",
                hints=["jax.lax.stop_gradient(residual_args)"],
            )
        return self.site.jvp(self.split.restored(primals), live)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """The cotangents of the linear operands, by JAX's rule."""
        if all(ct is None for ct in cts):
            return [None] * len(operands)
        cts_in = under_rules(self.scopes, self.site.transpose, InBackward())(cts, self.split.restored(operands))
        return self.split.inputs(cts_in)

    def batch(self, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
        """The results mapped over a dim, by JAX's rule."""
        return self.site.batch(size, self.split.restored(operands), self.split.restored_with_none(dims))


def with_rules(site: Site, operands: Sequence[Any], run: Run, nondiff: Sequence[int] = ()) -> list[Any]:
    """Evaluates an equation by ``run``, with JAX's derivative, transpose and batching rules for it."""
    run = under_rules(None, run, NotTransposed())
    if not any(isinstance(x, jax.core.Tracer) for x in operands):
        return run(operands)
    split = Split(operands)

    def body(*xs: Any) -> list[Any]:
        with set_current_eqn(site.step):
            return split.body(run)(*xs)

    return call_with_rules(body, split.inputs(operands), _CallRules(site, split, frozenset(nondiff), rules_in_force()))
