"""Application of an op: type the operands, apply the rule, insert its casts, apply the local function.

The rule sees types alone. A Python number has no type: it becomes a part of the local function and adopts any state.
"""

from __future__ import annotations

import contextlib
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
from shtypes._compat.typed import CLASSES
from shtypes.caches import MOST
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
from shtypes.errors import ShardingTypeError
from shtypes.resharding import Cost
from shtypes.rules import Typing
from shtypes.rules.candidate_types import keeps_varying, price_of
from shtypes.rules.implicit import cheapest_reshards
from shtypes.rules.suggest_fixes import Inside, called_names, no_inside_comm, without_backward
from shtypes.scopes.check_comm import check_comm, check_now
from shtypes.scopes.comm import (
    allows_implicit,
    finishes_scalars,
    finishes_sums,
    inserted_forms,
    minimizing,
    rules_in_force,
)
from shtypes.types import ShType, State, dtypes
from shtypes.types.mesh import Mesh, current_mesh
from shtypes.types.policy import replicated

Rule = Callable[[tuple[ShType, ...]], Typing]
#: The function of shards, or what makes it of the operands' types after the casts, which a scope may have changed.
Local = ShardFn | Callable[[tuple[ShType, ...]], ShardFn]


def is_number(x: Any) -> bool:
    """Whether ``x`` is a Python number, which has no type and takes any."""
    return isinstance(x, numbers.Number) and not isinstance(x, np.generic)


def is_typed(x: Any) -> TypeGuard[Array]:
    """Whether ``x`` is a typed value or a tracer of one."""
    return type(x) in CLASSES


def as_operands(xs: Sequence[Any]) -> tuple[list[Array], frozenset[int]]:
    """Operands as typed values, and which of them are constants: without a gradient, free to take any state.

    Plain concrete arrays are constants. A traced plain array has the type that JAX's type means. Typed values are
    never weakly typed: a weakly typed plain array takes the others' dtype here, as JAX would promote it.
    """
    mesh = next((x.type.mesh for x in xs if is_typed(x)), None)
    lifted, constants = [], set()
    for i, x in enumerate(_strong(xs)):
        if is_typed(x):
            lifted.append(x)
            if not x.type.differentiable:
                constants.add(i)
        elif isinstance(x, jax.core.Tracer):
            lifted.append(convert(x, mesh=mesh))
        elif isinstance(x, (jax.Array, np.ndarray, np.generic)) or is_number(x):
            lifted.append(constant(x, mesh or current_mesh()))
            constants.add(i)
        else:
            raise ShardingTypeError(
                f"an array was expected, not {type(x).__name__}", hints=["sh.array(x, type) for a host array"]
            )
    return lifted, frozenset(constants)


def _strong(xs: Sequence[Any]) -> list[Any]:
    """Operands with Python numbers and weakly typed arrays in the dtype that they get among operands of their kind."""
    weak = [
        not is_typed(x) and (is_number(x) or (isinstance(x, jax.Array) and getattr(x, "weak_type", False))) for x in xs
    ]
    if not any(weak) or all(weak):
        return list(xs)
    others = [np.dtype(x.dtype) for x, w in zip(xs, weak, strict=True) if not w and _has_promotion(x)]
    return [_among(x, others) if w else x for x, w in zip(xs, weak, strict=True)]


def _has_promotion(x: Any) -> bool:
    return hasattr(x, "dtype") and not jnp.issubdtype(x.dtype, jax.dtypes.extended)


def _among(x: Any, others: Sequence[Any]) -> Any:
    """A weakly typed operand as wide as it is among others: an integer as their integers, a float as their floats."""
    x = np.asarray(x) if is_number(x) else x
    if jnp.issubdtype(x.dtype, jnp.inexact) and others:
        joined = jnp.result_type(*others, 0j if jnp.issubdtype(x.dtype, jnp.complexfloating) else 0.0)
        return x.astype(np.zeros(0, joined).real.dtype if x.dtype.kind == "f" else joined)
    peers = [d for d in others if all(jnp.issubdtype(each, jnp.integer) for each in (d, x.dtype))]
    return x.astype(jnp.result_type(*peers)) if peers else x


def dtype_name(dtype: Any) -> str:
    """The short name of a dtype that a user gives by name or as an object; as wide as JAX's x64 mode allows.

    Raises:
        ShardingTypeError: it names no dtype.
    """
    if isinstance(dtype, str):
        dtype = dtypes.to_numpy(dtypes.short_name(dtype))
    try:
        return dtypes.from_numpy(jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True))
    except (TypeError, ValueError):
        raise ShardingTypeError(f"`{dtype!r:.60}` is no dtype", hints=['"f32"', "jnp.float32"]) from None


def inexact(*xs: Any) -> str:
    """The dtype, by its short name, in which JAX computes inexact functions of these: the promoted float."""
    return _inexact(jnp.result_type(*xs), promotion())


@functools.lru_cache(maxsize=MOST)
def _inexact(dtype: Any, promotion: tuple[Any, ...]) -> str:
    return dtypes.from_numpy(jax.eval_shape(jnp.mean, jax.ShapeDtypeStruct((1,), dtype)).dtype)


def as_ints(ints: Any, what: str) -> tuple[int, ...]:
    """One integer or a sequence of them, as Python's.

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
    """A concrete array as a typed value without gradient: sharded where it is, else reduced (which casts freely)."""
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
        noted = current_recorder()
        if noted is not None:
            noted.add_constant(value)
        return value
    traced: Array = from_concrete_p.bind(x, ty=t)
    return traced


def constant_of(x: Any, mesh: Mesh) -> Array:
    """A traced plain array that depends on no argument, as a typed value without gradient: reduced.

    It becomes typed in its trace, and once: a value of the body of a loop ends with the body.
    """
    trace = trace_of(x)
    notes = trace_notes(trace)
    key = ("typed constant", id(x), mesh)
    cached = None if notes is None else notes.get(key)
    if cached is None:
        states = dict.fromkeys(mesh.axis_names, State.REDUCED)
        t = as_jax_type(ShType(mesh, dtypes.from_numpy(x.dtype), list(x.shape), states))
        if notes is None:
            alone: Array = from_concrete_p.bind(x, ty=t)
            return alone
        with set_current_trace(trace):
            cached = notes[key] = x, from_concrete_p.bind(x, ty=t)  # keeps x alive, so that its id is not reused
    value: Array = cached[1]
    return value


def typed(
    name: str, rule: Rule, types: tuple[ShType, ...], values: Sequence[Any] = (), fn: Local | None = None
) -> Typing:
    """The rule's typing; an error leaves with the user's line, the operands' types and priced fixes.

    Inside `implicit_comm`, the typing of resharded operands; of one that is there twice one reshard. No cotangent
    returns to operands by which ``fn`` has no derivative.
    """
    try:
        typing = rule(types)
        return (
            typing if not finishes_scalars() or _is_no_larger(typing, types) else _finished_for(rule, types) or typing
        )
    except ShardingTypeError as error:
        rule = rule if fn is None else _with_still(rule, fn)
        fixed = _finished_for(rule, types)
        if fixed is None and allows_implicit():
            fixed = cheapest_reshards(rule, types, minimizing(), firsts(values))
        if fixed is not None:
            return fixed
        raise located(error, name, types, rule).with_traceback(None) from error.__cause__


def _with_still(rule: Rule, fn: Local) -> Rule:
    """The rule, with the operands by which the derivative of ``fn`` is zero in its typings."""

    def with_still(types: tuple[ShType, ...]) -> Typing:
        typing = rule(types)
        whole = tuple([t.with_axes(t.axes(State.SHARDED), State.REDUCED) for t in typing.operands])
        return typing._replace(zero_derivative=_still(fn, whole, len(typing.results)))

    return with_still


@functools.lru_cache(maxsize=MOST)
def _still(fn: Local, types: tuple[ShType, ...], count: int) -> frozenset[int]:
    return without_derivative(fn if isinstance(fn, ShardFn) else fn(types), types, count)


def _is_no_larger(typing: Typing, types: tuple[ShType, ...]) -> bool:
    """Whether no pending sum of one element becomes one of several, which would be dearer to finish."""
    scalars = {a for t in types if t.size == 1 for a in t.axes(State.UNREDUCED)}
    return not any(t.size > 1 and scalars.intersection(t.axes(State.UNREDUCED)) for t in typing.results)


def _finished_for(rule: Rule, types: tuple[ShType, ...]) -> Typing | None:
    """The typing of an op with its pending sums finished, or those of one element: what scopes allow, if it is enough.

    None if nothing is to be finished, or the op does not type then either.
    """
    all_sums = allows_implicit() and finishes_sums()
    if not all_sums and not finishes_scalars():
        return None
    finished_types = tuple([_finished(t, all_sums) for t in types])
    try:
        return None if finished_types == types else rule(finished_types)
    except ShardingTypeError:
        return None


def _finished(t: ShType, all_sums: bool) -> ShType:
    """A type without pending sums: invariant, so that nothing is sent backward, or as ever if it has one element."""
    if all_sums:
        return t.with_axes(t.axes(State.UNREDUCED), State.INVARIANT)
    return finished_type(t) if t.size == 1 else t


def finished_type(t: ShType) -> ShType:
    """A type with its pending sums finished, replicated by policy."""
    for axis in t.axes(State.UNREDUCED):
        t = t.with_axis(axis, replicated())
    return t


def firsts(values: Sequence[Any]) -> tuple[int, ...]:
    """For each value the number of the first that is the same object."""
    numbers: dict[int, int] = {}
    return tuple([numbers.setdefault(id(x), i) for i, x in enumerate(values)])


def located(
    error: ShardingTypeError,
    name: str,
    types: Sequence[ShType],
    rule: Rule | None = None,
    inside: Inside = no_inside_comm,
) -> ShardingTypeError:
    """An error with its place and, where a rule can try them, its fixes."""
    operands = ", ".join(map(str, types))
    if rule is not None:
        error.operands = error.subjects = tuple(types)
        suggest_when_read(error, rule, tuple(types), inside=inside)
    return placed(error, f"{name}({operands})")


def apply_all(name: str, fn: Local, rule: Rule, operands: Sequence[Any]) -> list[Array]:
    """Applies an op that has several results."""
    operands, typing = typed_operands(name, rule, operands, fn)
    fn = fn if isinstance(fn, ShardFn) else fn(typing.operands)
    results = local_all(fn, *operands, out=typing.results)
    if rules_in_force():
        check_now()
    return results


def typed_operands(
    name: str, rule: Rule, operands: Sequence[Any], fn: Local | None = None
) -> tuple[list[Array], Typing]:
    """The operands of an op in the types that its rule asks for, and its typing."""
    typing = typed(name, rule, tuple(x.type for x in operands), operands, fn)
    return cast_all(name, rule, operands, typing), typing


def cast_all(name: str, rule: Rule, operands: Sequence[Any], typing: Typing) -> list[Array]:
    """The operands in the types that a rule asks for, judged by the scopes around the op: used before or not.

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
    """An operand of a composed op in the type that ``rule`` asks for: moved once for all of its ops."""
    return cast_all(name, rule, [x], typed(name, rule, (x.type,)))[0]


def as_matching_operands(xs: Sequence[Any]) -> list[Array]:
    """Operands of a composed op: as `as_operands`, each constant in the replicated states of the others."""
    return match_constants(*as_operands(xs))


def match_constants(values: Sequence[Any], constants: frozenset[int]) -> list[Array]:
    """Each constant among some values in the replicated states of the others."""
    others = [x for i, x in enumerate(values) if i not in constants]
    return [match_replicated(x, *others) if i in constants else x for i, x in enumerate(values)]


def match_replicated(constant: Any, *others: Any) -> Any:
    """A constant in the replicated states of the other operands, where it is an operand of more than one op."""
    t = constant.type
    for axis in t.axes(State.REDUCED):
        met = {x.type.state(axis) for x in others}
        if State.INVARIANT in met and State.REDUCED not in met:
            t = t.with_axis(axis, State.INVARIANT)
    return move(constant, t, inserted=True)


def cast(x: Array, t: ShType, *, constant: bool = False) -> Array:
    """An operand in the type that a rule asks for; ``constant`` if no gradient comes back.

    A traced value is cast in its trace, and once: a loop's constant before the loop, an operand of two ops for
    both. So what the cast communicates backward runs once, on the sum of the cotangents. What communicates forward
    serves the ops of one run of the scope that allows it, whether the value is traced or not.
    """
    notes = None if x.type == t else _notes(x)
    if notes is None:
        return move(x, t, inserted=True, constant=constant)
    scope = inserted_forms()
    key = (id(x), t.exact, constant, scope if scope is not None and price_of(x.type, t).forward else None)
    cached = notes.get(key)
    if cached is None:
        traced = isinstance(x, jax.core.Tracer)
        with set_current_trace(trace_of(x)) if traced else contextlib.nullcontext():
            src = min((x, *versions(x, t)), key=lambda y: _cost(y.type, t)) if allows_implicit() else x
            cached = x if traced else None, move(src, t, inserted=True, constant=constant)
        notes[key] = cached  # with x, so that its id is not reused
    moved: Array = cached[1]
    if scope is not None:
        noted = notes.setdefault(_versions_of(x), [])
        if not any(y is moved for y in noted):
            noted.append(moved)
    return moved


def _cost(src: ShType, dst: ShType) -> Cost:
    return price_of(src, dst).cost(minimizing())


def versions(x: Any, goal: ShType | None = None) -> Sequence[Any]:
    """The value in other types, as it was cast for ops before; those that can become ``goal``."""
    notes = _notes(x) if type(x) in CLASSES else None
    noted: list[Any] = [] if notes is None else notes.get(_versions_of(x), [])
    return noted if goal is None else [y for y in noted if keeps_varying(y.type, goal)]


def _versions_of(x: Any) -> Any:
    return "versions", id(x), inserted_forms()


def _notes(x: Any) -> dict[Any, Any] | None:
    """The notes on a value: of its trace, or of the run of a scope that lets ops insert communication."""
    if isinstance(x, jax.core.Tracer):
        return trace_notes(trace_of(x))
    scope = inserted_forms()
    if scope is None or not no_trace_is_running():
        return None
    noting = current_recorder()
    if noting is not None:  # a call that is repeated takes no notice of what was inserted before
        noting.incomplete()
    of_scope = scope.get(x)
    return scope.put(x, {}) if of_scope is None else of_scope


def apply(name: str, fn: Local, rule: Rule, *operands: Any) -> Array:
    """Applies an op that has one result."""
    return apply_all(name, fn, rule, operands)[0]


def result_dtype(fn: ShardFn, operands: Sequence[Any]) -> str:
    """The dtype that a local elementwise function gives, by JAX's promotion."""
    return local_dtype(fn, tuple(x.type.dtype_name for x in operands))


def all_replicated(mesh: Mesh) -> dict[str, State]:
    """Every axis replicated by policy."""
    return dict.fromkeys(mesh.axis_names, replicated())
