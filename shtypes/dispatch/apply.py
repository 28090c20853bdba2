"""Applies an op: types the operands, applies the rule, inserts its casts, and applies the function of shards.

Rules see types only. A Python number has no type: it is folded into the function of shards.
"""

from __future__ import annotations

import functools
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import set_current_trace

from shtypes._compat import no_trace_is_running, trace_notes, trace_of
from shtypes._compat.jaxprs import result_type, wide_enough
from shtypes._compat.typed import CLASSES
from shtypes.caches import CACHE_SIZE
from shtypes.context.user_line import placed
from shtypes.core.array import Array, wrap
from shtypes.core.conversion import convert, type_by_jax
from shtypes.core.device_put import from_concrete_p
from shtypes.core.eager_cache import current_recorder
from shtypes.core.jax_context import suggest_when_read
from shtypes.core.jax_type import as_jax_type
from shtypes.core.local import local_all
from shtypes.core.physical import physical_sharding
from shtypes.core.reshard import move
from shtypes.core.run_op import only_types
from shtypes.core.shard_fn import ShardFn, local_dtype, promotion, without_derivative
from shtypes.dispatch.casts import cast
from shtypes.errors import ShardingTypeError
from shtypes.rules import Typing, nonlinear
from shtypes.rules.implicit import cheapest_reshards
from shtypes.rules.price_fixes import Inside, called_names, no_inside_comm
from shtypes.rules.suggest_fixes import without_backward
from shtypes.scopes.check_comm import check_comm, check_now
from shtypes.scopes.scope_rules import allows_implicit, finishes_scalars, finishes_sums, minimizing, rules_in_force
from shtypes.types import ShType, State, dtypes
from shtypes.types.mesh import Mesh, current_mesh
from shtypes.types.policy import replicated

Rule = Callable[[tuple[ShType, ...]], Typing]
#: The function of shards, or a function from the types of the cast operands to it.
Local = ShardFn | Callable[[tuple[ShType, ...]], ShardFn]


def is_number(x: Any) -> bool:
    """Whether ``x`` is a Python number, which has no sharding type."""
    return isinstance(x, numbers.Number) and not isinstance(x, np.generic)


def is_typed(x: Any) -> TypeGuard[Array]:
    """Whether ``x`` is a typed value or a tracer of one."""
    return type(x) in CLASSES


def is_array(x: Any) -> bool:
    """Whether ``x`` is an array: typed, JAX's or numpy's, or a tracer."""
    return is_typed(x) or isinstance(x, (jax.Array, jax.core.Tracer, np.ndarray, np.generic))


def as_operands(xs: Sequence[Any]) -> tuple[list[Array], frozenset[int]]:
    """Converts operands to typed values; also returns the indices of constants, which can take any state.

    Concrete plain arrays are constants. A traced plain array gets the type of its JAX sharding. A weakly typed array
    gets the others' dtype, as JAX promotes it, since typed values are never weakly typed.
    """
    mesh = next((x.type.mesh for x in xs if is_typed(x)), None)
    operands, constants = [], set()
    for i, x in enumerate(_promote_weak(xs)):
        if is_typed(x):
            operands.append(x)
            if not x.type.differentiable:
                constants.add(i)
        elif isinstance(x, jax.core.Tracer):
            operands.append(convert(x, mesh=mesh))
        elif is_array(x) or is_number(x):
            operands.append(constant(x, mesh or current_mesh()))
            constants.add(i)
        else:
            raise ShardingTypeError(
                f"an array was expected, not {type(x).__name__}", hints=["sh.array(x, type) for a host array"]
            )
    return operands, frozenset(constants)


def _promote_weak(xs: Sequence[Any]) -> list[Any]:
    """Casts numbers and weakly typed arrays among operands to the dtype that JAX's promotion gives them."""
    weak = [
        not is_typed(x) and (is_number(x) or (isinstance(x, jax.Array) and getattr(x, "weak_type", False))) for x in xs
    ]
    if not any(weak) or all(weak):
        return list(xs)
    others = [
        np.dtype(x.dtype)
        for x, w in zip(xs, weak, strict=True)
        if not w and hasattr(x, "dtype") and not jnp.issubdtype(x.dtype, jax.dtypes.extended)
    ]
    return [_promoted(x, others) if w else x for x, w in zip(xs, weak, strict=True)]


def _promoted(x: Any, others: Sequence[Any]) -> Any:
    """Casts a weakly typed operand: an integer to the dtype of the other integers, a float to that of the others."""
    x = np.asarray(x) if is_number(x) else x
    if jnp.issubdtype(x.dtype, jnp.inexact) and others:
        joined = result_type(*others, 0j if jnp.issubdtype(x.dtype, jnp.complexfloating) else 0.0)
        return x.astype(np.zeros(0, joined).real.dtype if x.dtype.kind == "f" else joined)
    peers = [d for d in others if all(jnp.issubdtype(each, jnp.integer) for each in (d, x.dtype))]
    return x.astype(result_type(*peers)) if peers else x


def dtype_name(dtype: Any) -> str:
    """The short name of a user's dtype, canonicalized by JAX's x64 mode.

    Raises:
        ShardingTypeError: it is no dtype.
    """
    if isinstance(dtype, str):
        dtype = dtypes.to_numpy(dtypes.short_name(dtype))
    try:
        return dtypes.from_numpy(jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True))
    except (TypeError, ValueError):
        raise ShardingTypeError(f"`{dtype!r:.60}` is no dtype", hints=['"f32"', "jnp.float32"]) from None


def inexact(*xs: Any) -> str:
    """The short name of the dtype in which JAX computes inexact functions of these: the promoted float."""
    return _inexact(result_type(*xs), promotion())


@functools.lru_cache(maxsize=CACHE_SIZE)
def _inexact(dtype: Any, promotion: tuple[Any, ...]) -> str:
    with wide_enough(dtype):
        return dtypes.from_numpy(jax.eval_shape(jnp.mean, jax.ShapeDtypeStruct((1,), dtype)).dtype)


def as_ints(ints: Any, what: str) -> tuple[int, ...]:
    """Converts an integer or a sequence of integers to a tuple.

    Raises:
        ShardingTypeError: it is neither.
    """
    try:
        return (operator.index(ints),)
    except TypeError:
        pass
    try:
        return tuple(map(operator.index, ints if not isinstance(ints, str) else [ints]))
    except TypeError:
        raise ShardingTypeError(f"{what} must be an integer or a sequence of integers, not {ints!r:.60}") from None


def constant(x: Any, mesh: Mesh) -> Array:
    """Converts a concrete array to a typed constant: sharded as the array is, else reduced, which casts for free."""
    if isinstance(x, jax.Array) and isinstance(x.sharding, jax.NamedSharding):
        t = type_by_jax(x)
        if t.axes(State.UNREDUCED):
            return convert(x)
        t = t.replace(states=tuple(State.REDUCED if s is State.INVARIANT else s for s in t.states))
    else:
        x = np.asarray(x) if not isinstance(x, jax.Array) else x
        dtype = jax.dtypes.canonicalize_dtype(x.dtype) if isinstance(x, np.ndarray) else x.dtype
        t = as_jax_type(
            ShType(mesh, dtypes.from_numpy(dtype), list(x.shape), dict.fromkeys(mesh.axis_names, State.REDUCED))
        )
        x = x.astype(dtype) if isinstance(x, np.ndarray) else x
    if only_types():
        return wrap(t, None)
    if no_trace_is_running():
        value = wrap(t, jax.device_put(x, physical_sharding(t)))
        recorder = current_recorder()
        if recorder is not None:
            recorder.add_constant(value)
        return value
    traced: Array = from_concrete_p.bind(x, ty=t)
    return traced


def constant_of(x: Any, mesh: Mesh) -> Array:
    """Converts a tracer that depends on no argument to a typed constant, reduced; once, in the tracer's trace."""
    trace = trace_of(x)
    notes = trace_notes(trace)
    key = ("typed constant", id(x), mesh)
    cached = None if notes is None else notes.get(key)
    if cached is None:
        states = dict.fromkeys(mesh.axis_names, State.REDUCED)
        t = as_jax_type(ShType(mesh, dtypes.from_numpy(x.dtype), list(x.shape), states))
        if notes is None:
            uncached: Array = from_concrete_p.bind(x, ty=t)
            return uncached
        with set_current_trace(trace):
            cached = notes[key] = x, from_concrete_p.bind(x, ty=t)  # keeps x alive, so that its id is not reused
    value: Array = cached[1]
    return value


def typed(
    name: str, rule: Rule, types: tuple[ShType, ...], values: Sequence[Any] = (), fn: Local | None = None
) -> Typing:
    """Applies a rule; errors get the user's line, the operands' types and priced fixes.

    Inside `implicit_comm`, if the rule refuses the operands, it is applied to resharded ones; equal ``values`` share a
    reshard. Prices omit cotangents of operands for which the derivative of ``fn`` is zero.
    """
    try:
        typing = rule(types)
        if not finishes_scalars() or _is_no_larger(typing, types):
            return typing
        return _type_finished(rule, types) or typing
    except ShardingTypeError as error:
        rule = rule if fn is None else _with_zero_derivatives(rule, fn)
        fixed = _type_finished(rule, types)
        if fixed is None and allows_implicit():
            fixed = cheapest_reshards(rule, types, minimizing(), firsts(values))
        if fixed is not None:
            return fixed
        error.same = firsts(values)
        raise located(error, name, types, rule).with_traceback(None) from error.__cause__


def _with_zero_derivatives(rule: Rule, fn: Local) -> Rule:
    """The rule, whose typings list the operands for which the derivative of ``fn`` is zero."""

    def with_zero_derivatives(types: tuple[ShType, ...]) -> Typing:
        typing = rule(types)
        unsharded = tuple([t.with_axes(t.axes(State.SHARDED), State.REDUCED) for t in typing.operands])
        return typing._replace(zero_derivative=_zero_derivatives(fn, unsharded, len(typing.results)))

    return with_zero_derivatives


@functools.lru_cache(maxsize=CACHE_SIZE)
def _zero_derivatives(fn: Local, types: tuple[ShType, ...], count: int) -> frozenset[int]:
    return without_derivative(fn if isinstance(fn, ShardFn) else fn(types), types, count)


def _is_no_larger(typing: Typing, types: tuple[ShType, ...]) -> bool:
    """Whether no pending scalar becomes a pending array, which costs more to finish."""
    scalars = {a for t in types if t.size == 1 for a in t.axes(State.UNREDUCED)}
    return not any(t.size > 1 and scalars.intersection(t.axes(State.UNREDUCED)) for t in typing.results)


def _type_finished(rule: Rule, types: tuple[ShType, ...]) -> Typing | None:
    """The typing with the pending sums, or pending scalars, that scopes finish; None without any, or an error."""
    all_sums = allows_implicit() and finishes_sums()
    if not all_sums and not finishes_scalars():
        return None
    finished_types = tuple([_finished(t, all_sums) for t in types])
    try:
        return None if finished_types == types else rule(finished_types)
    except ShardingTypeError:
        return None


def _finished(t: ShType, all_sums: bool) -> ShType:
    """A type with its sums finished to invariant, which sends nothing backward; or with a pending scalar finished."""
    if all_sums:
        return t.with_axes(t.axes(State.UNREDUCED), State.INVARIANT)
    return finished_type(t) if t.size == 1 else t


def finished_type(t: ShType) -> ShType:
    """A type with its pending sums finished, to the policy's replicated state."""
    return t.with_axes(t.axes(State.UNREDUCED), replicated())


def firsts(values: Sequence[Any]) -> tuple[int, ...]:
    """For each value, the index of the first that is the same object."""
    numbers: dict[int, int] = {}
    return tuple([numbers.setdefault(id(x), i) for i, x in enumerate(values)])


def of_distinct(f: Callable[..., Any], same: Sequence[int]) -> Callable[..., Any]:
    """``f`` as a function of its distinct operands; ``same`` is as returned by `firsts`."""
    places = {first: i for i, first in enumerate(sorted({*same}))}
    return lambda *xs: f(*[xs[places[i]] for i in same])


def located(
    error: ShardingTypeError,
    name: str,
    types: Sequence[ShType],
    rule: Rule | None = None,
    inside: Inside = no_inside_comm,
) -> ShardingTypeError:
    """Adds the user's line to an error and, with a rule to type them, its fixes."""
    operands = ", ".join(map(str, types))
    if rule is not None:
        error.operands = error.subjects = tuple(types)
        suggest_when_read(error, rule, tuple(types), inside=inside)
    return placed(error, f"{name}({operands})")


def apply_all(name: str, fn: Local, rule: Rule, operands: Sequence[Any]) -> list[Array]:
    """Applies an op, and returns its results."""
    operands, typing = typed_operands(name, rule, operands, fn)
    fn = fn if isinstance(fn, ShardFn) else fn(typing.operands)
    results = local_all(fn, *operands, out=typing.results)
    if rules_in_force():
        check_now()
    return results


def typed_operands(
    name: str, rule: Rule, operands: Sequence[Any], fn: Local | None = None
) -> tuple[list[Array], Typing]:
    """Types an op and casts its operands; returns them and the typing."""
    typing = typed(name, rule, tuple(x.type for x in operands), operands, fn)
    return cast_all(name, rule, operands, typing), typing


def cast_all(name: str, rule: Rule, operands: Sequence[Any], typing: Typing) -> list[Array]:
    """Casts the operands of an op to its typing; each cast is checked by the scopes, also if it is shared.

    Raises:
        ShardingTypeError: a scope forbids a cast.
    """
    types = tuple(x.type for x in operands)
    if types == typing.operands:
        return list(operands)
    moves_back = any(t.differentiable for t in typing.results)
    if rules_in_force():
        try:
            for called, t, goal in zip(called_names(types), types, typing.operands, strict=True):
                check_comm(name, t, goal, name=called, inserted=True, has_gradient=moves_back)
        except ShardingTypeError as error:
            error.fixes = without_backward(rule, types)
            raise located(error, name, types).with_traceback(None) from None
    return [cast(x, t, constant=not moves_back) for x, t in zip(operands, typing.operands, strict=True)]


def cast_once(name: str, rule: Rule, x: Any) -> Array:
    """Casts an operand of a composed op as ``rule`` says, once for all inner ops."""
    return cast_all(name, rule, [x], typed(name, rule, (x.type,)))[0]


def finish_once(name: str, x: Any) -> Array:
    """Casts an operand in which a composed op is nonlinear, once for all inner ops; a pending sum is finished."""
    return cast_once(name, lambda types: nonlinear(name, types, types[0].dtype_name), x)


def as_matching_operands(xs: Sequence[Any]) -> list[Array]:
    """`as_operands` for a composed op: constants get the replicated states of the others."""
    return match_constants(*as_operands(xs))


def match_constants(values: Sequence[Any], constants: frozenset[int]) -> list[Array]:
    """Casts each constant among values to the replicated states of the others."""
    others = [x for i, x in enumerate(values) if i not in constants]
    return [match_replicated(x, *others) if i in constants else x for i, x in enumerate(values)]


def match_replicated(x: Any, *others: Any, constant: bool = False) -> Any:
    """Casts a constant to the replicated states of other values, for use in several ops; ``constant`` as of `move`."""
    t = x.type
    for axis in t.axes(State.REDUCED) + (t.axes(State.INVARIANT) if constant and others else ()):
        states = {y.type.state(axis) for y in others}
        all_invariant = State.INVARIANT in states and State.REDUCED not in states
        t = t.with_axis(axis, State.INVARIANT if all_invariant else State.REDUCED)
    return move(x, t, inserted=True, constant=constant)


def apply(name: str, fn: Local, rule: Rule, *operands: Any) -> Array:
    """Applies an op with one result."""
    return apply_all(name, fn, rule, operands)[0]


def result_dtype(fn: ShardFn, operands: Sequence[Any]) -> str:
    """The result dtype of an elementwise function of shards, by JAX's promotion."""
    return local_dtype(fn, tuple(x.type.dtype_name for x in operands))


def all_replicated(mesh: Mesh) -> dict[str, State]:
    """The policy's replicated state for every axis."""
    return dict.fromkeys(mesh.axis_names, replicated())
