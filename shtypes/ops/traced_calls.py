"""Traces of calls of JAX's functions, and the types that their equations have on typed operands."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from shtypes import rules
from shtypes._compat.jaxprs import vars_with_cotangents
from shtypes._compat.tracing import trace_typed
from shtypes.caches import PROGRAMS, Static
from shtypes.context.user_line import placed
from shtypes.core.array import Array, wrap
from shtypes.core.jax_type import HiShType, as_jax_type
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.interpreter import evaluate_jax_function
from shtypes.evaluation.value_info import note_constant, noting, typed_constant
from shtypes.ops.shard_programs import NotLocalError, ShardProgram, shard_program
from shtypes.resharding import Price
from shtypes.scopes.scope_rules import without_scopes
from shtypes.traced.ledger import prices_of_program
from shtypes.types import ShType
from shtypes.types.mesh import current_mesh


class Trace(NamedTuple):
    """JAX's trace of a function, for arguments of these shapes.

    Attributes:
        jaxpr: The program, of the arrays among the arguments.
        consts: Its constants.
        tree: The structure of its results.
        static: For each result None, or the number that JAX returns as Python's, such as the ``lower`` of `cho_factor`.
        closed_over: Values of enclosing traces that functions among the arguments close over: its first operands.
    """

    jaxpr: Any
    consts: Sequence[Any]
    tree: Any
    static: Sequence[Static | None]
    closed_over: Sequence[Any] = ()

    def unflatten(self, arrays: Sequence[Any]) -> Any:
        """The results of a call, from those that are arrays."""
        rest = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(rest) if s is None else s.value for s in self.static])

    @property
    def closes_over(self) -> bool:
        """Whether functions among the arguments close over values, which may differ in the next call."""
        return bool(self.closed_over) or any(map(is_typed, self.consts))


class TypedCall(NamedTuple):
    """A call on operands of some types.

    Attributes:
        typing: The types to which the operands are cast, and those of the results.
        local: The program of each device, if the call is local.
        inside: Returns the prices of its other communication; only for errors.
    """

    typing: rules.Typing
    local: ShardProgram | None
    inside: Callable[[], tuple[Price, ...]] = tuple


def evaluate_equations(trace: Trace, constants: frozenset[int], *operands: Any) -> list[Any]:
    """The results of a call, equation by equation; abstract values for abstract operands."""

    def run(*operands: Any) -> list[Any]:
        with noting():
            for i in constants:
                note_constant(operands[i])
            return _evaluate(trace, operands)

    if any(type(x) is Array and x.data is None for x in operands):  # the constants of the program would have data
        return [wrap(t, None) for t in trace_typed(run, list(map(jax.typeof, operands))).out_avals]
    return run(*operands)


def _evaluate(trace: Trace, operands: Sequence[Any]) -> list[Any]:
    """The results of a call, equation by equation; those that depend on no operand are constants."""
    mesh = operands[0].type.mesh if operands else current_mesh()
    outs = evaluate_jax_function(trace.jaxpr, trace.consts, operands)
    return [x if is_typed(x) else typed_constant(jax.numpy.asarray(x), mesh) for x in outs]


def typed_call(
    name: str, listing_name: str, trace: Trace, types: Sequence[ShType], constants: frozenset[int]
) -> TypedCall:
    """Types a call on operands of these types, with the program of each device if it is local."""
    refused: list[ShardingTypeError] = []

    def run(*operands: Any) -> Any:
        for i in constants:
            note_constant(operands[i])
        try:
            return _evaluate(trace, operands)
        except ShardingTypeError as error:  # JAX would rewrite its traceback, at ten times the cost of the evaluation
            refused.append(error)

    with without_scopes():
        closed = trace_typed(run, list(map(as_jax_type, types)))
    if refused:
        raise _blame_call(refused[0], name, types)
    results = tuple(closed.out_avals)
    try:
        local = shard_program(listing_name, closed) if all(type(t) is HiShType for t in results) else None
    except NotLocalError:
        local = None
    zero_derivative = _zero_derivative(trace.jaxpr)
    if local is None:
        inside = functools.cache(functools.partial(prices_of_program, closed))
        return TypedCall(rules.Typing(tuple(types), results, zero_derivative), None, inside)
    return TypedCall(rules.Typing(local.operands, results, zero_derivative), local)


@functools.lru_cache(maxsize=PROGRAMS)
def _zero_derivative(jaxpr: Any) -> frozenset[int]:
    """The arguments of a program by which its derivative is zero."""
    differentiable = vars_with_cotangents(jaxpr)
    return frozenset(i for i, v in enumerate(jaxpr.invars) if v not in differentiable)


def _blame_call(error: ShardingTypeError, name: str, types: Sequence[ShType]) -> ShardingTypeError:
    """An error inside a call, as one of the call; if a primitive of another name raised it, ``where`` names that."""
    inner = re.split(r": |, by ", error.where.partition("\n")[0])[-1]
    error.operands = error.subjects = error.out_fixes = None
    error.fixes, error.where, error.placed = (), "", False
    if not error.what.startswith(f"`{name}`") and inner:
        operands = f"({', '.join(map(str, types))})"
        called, _, applied = inner.partition("(")
        is_of_operands = f"({applied}" == operands  # then what the error says of them holds for the call's
        if is_of_operands and not name.endswith(f".{called}"):
            error.what = error.what.replace(f"`{called}`", f"`{name}`", 1)
        placed(error, f"{name}{operands}, by {inner}")
    return error.with_traceback(None)
