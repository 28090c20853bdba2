"""`local_map`: converts a JAX function of shards to a typed op, with result types that the user claims."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, overload

import jax

from shtypes.context.function import Function
from shtypes.context.scope import mapped_axes
from shtypes.context.signature_errors import check_function, name_of
from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.device_put import type_of
from shtypes.core.jax_context import complete_when_read
from shtypes.core.jax_type import as_jax_type
from shtypes.core.local import local_all
from shtypes.dispatch.apply import as_operands, cast_all, is_array, is_typed, typed
from shtypes.errors import ShardingTypeError
from shtypes.local_mode.user_function import (
    Shard,
    ShardResults,
    UserFn,
    gradients_of,
    shards_of,
    trace_on_shards,
    with_residuals,
)
from shtypes.ops.reinterpret import stop_gradient
from shtypes.resharding.transport import reshard_fix
from shtypes.rules.claims import check_claims
from shtypes.rules.price_fixes import called_names
from shtypes.rules.suggest_fixes import Rule
from shtypes.rules.typing import Typing
from shtypes.traced.program import split
from shtypes.types import REPLICATED, ShType, State
from shtypes.types.mesh import Mesh
from shtypes.types.notation.dim_names import in_scope
from shtypes.types.notation.syntax import expand_ellipsis
from shtypes.types.policy import replicated
from shtypes.types.target import Spec

Residuals = Literal["auto", "save", "recompute"]


@overload
def local_map(
    f: Callable[..., jax.Array],
    /,
    *,
    out: Any,
    residuals: Residuals = "auto",
    differentiable: bool = True,
    name: str | None = None,
) -> Function[..., Array]: ...
@overload
def local_map(
    f: Callable[..., Any],
    /,
    *,
    out: Any,
    residuals: Residuals = "auto",
    differentiable: bool = True,
    name: str | None = None,
) -> Callable[..., Any]: ...
@overload
def local_map(
    f: None = None,
    /,
    *,
    out: Any,
    residuals: Residuals = "auto",
    differentiable: bool = True,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def local_map(
    f: Any = None,
    /,
    *,
    out: Any,
    residuals: Residuals = "auto",
    differentiable: bool = True,
    name: str | None = None,
) -> Any:
    """Converts a JAX function of shards to a typed op, such as a kernel with a custom backward pass.

    ``f`` gets plain arrays, one device's shards, and must not communicate. You claim the types of its results. Checked
    without devices: that ``f`` takes the shards and does not communicate, that its results have the shapes and dtypes
    of the claims, that no replicated result depends on varying values, that no unreduced result depends on values that
    do not vary, and that gradients can have the cotangent types. `debug_checks` compares the values of host callbacks.

    Per axis: if the results that depend on a differentiable operand are invariant, it must be invariant too. Otherwise
    an invariant operand is cast to reduced, free forward. Results that depend on an unreduced operand are unreduced,
    and ``f`` must be linear in it.

    Args:
        f: The function. JAX caches it by identity: define it once, not at each call.
        out: The types of the results, in their structure: strings, `sh.ShType` or `jax.P`, whose sizes may be omitted
            (``"[_@dp, _]"``, ``"[batch@dp, _]"``: those of the shards, times the axes); or a function from the
            operands' types to such types. One type applies to all results. Inside `vmap` it is the type of one step:
            over the axes that shard the mapped dim, results vary if operands do.
        residuals: The values that the backward pass uses. ``"save"``: the residuals of `jax.vjp`; then there is no
            forward-mode derivative. ``"recompute"``: the operands. By default, residuals are saved if ``f`` contains a
            `jax.custom_vjp`.
        differentiable: Whether gradients pass. Without, as for an optimizer's update, results may be invariant and
            sharded on one axis.
        name: The name to print; that of ``f`` by default.

    Returns:
        A function of pytrees. ``f`` gets typed values and plain arrays (constants) as shards; other leaves are static
        and must be hashable. Without ``f``, a decorator.

    Raises:
        ShardingTypeError: (when called) one of the checks fails.

    Communicates: nothing; a cast invariant operand communicates backward. Transpose: that of ``f`` on shards, with the
    cotangent types of the claims and operands.

    Examples:
        >>> import jax.numpy as jnp
        >>> import shtypes as sh
        >>> top = sh.local_map(lambda x: jnp.sort(x, axis=1)[:, -2:], out="[_@x, _]", name="top2")
        >>> with sh.use_mesh(sh.make_mesh({"x": 2})):
        ...     top(sh.array([[3.0, 1.0, 2.0], [4.0, 6.0, 5.0]], "f32[2@x, 3]"))
        Array(f32[2@x,2], [[2. 3.]
               [5. 6.]])
    """
    if residuals not in get_args(Residuals):
        names = ", ".join(map(repr, get_args(Residuals)))
        raise ShardingTypeError(f"`residuals` of `local_map` is one of {names}, not {residuals!r}")
    if f is None:
        return lambda function: local_map(
            function, out=out, residuals=residuals, differentiable=differentiable, name=name
        )
    check_function("local_map", f)
    op_name = name or name_of(f) or type(f).__name__

    @functools.wraps(f, updated=())
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if not differentiable:
            arrays, rebuilt = split((args, kwargs), lambda x: is_typed(x) or isinstance(x, jax.Array))
            args, kwargs = rebuilt(map(stop_gradient, arrays))
        return _apply(f, op_name, out, residuals, differentiable, args, kwargs)

    return public(mapped)


def _apply(
    f: Callable[..., Any],
    name: str,
    out: Any,
    residuals: Residuals,
    differentiable: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    arrays, rebuilt = split((args, kwargs), is_array)
    static, tree = jax.tree.flatten(rebuilt(Shard for _ in arrays))
    fn = UserFn(f, name, tree, tuple(static))
    try:
        hash(fn)
    except TypeError as error:
        raise ShardingTypeError(
            f"`{name}` or one of its constants has no hash",
            why=str(error),
            hints=["pass arrays as arguments, and a plain function"],
        ) from None
    operands, constants = as_operands(arrays)
    if not operands:
        raise ShardingTypeError(f"`{name}` needs an operand: without any, nothing says on which mesh it runs")

    def typing_of(types: tuple[ShType, ...]) -> Typing:
        target = out
        if callable(out) and not is_target(out):
            args, kwargs = rebuilt(types)
            target = out(*args, **kwargs)
        shards = shards_of(types)
        shard_results = trace_on_shards(fn, shards)
        results = claimed_types(name, shard_results, target, types)
        return check_claims(
            name, types, results, shard_results.sources, functools.partial(gradients_of, fn, shards), constants
        )

    def rule(types: tuple[ShType, ...]) -> Typing:
        try:
            return typing_of(types)
        except ShardingTypeError as error:
            if not error.may_have_fixes:
                complete_when_read(error, functools.partial(_suggest_replicated, error, typing_of, types))
            raise

    types = tuple(jax.typeof(x) for x in operands)
    if not differentiable:
        constants = frozenset(range(len(operands)))
    typing = typed(name, _with_shards_of(types, rule), types)
    shard_results = trace_on_shards(fn, shards_of(typing.operands))
    values = cast_all(name, rule, operands, typing)
    active = tuple(t.differentiable and i not in constants for i, t in enumerate(typing.operands))
    saves = residuals == "save" or (residuals == "auto" and shard_results.has_custom_backward)
    if saves and any(active) and any(t.differentiable for t in typing.results):
        outs = with_residuals(
            fn, tuple(map(as_jax_type, typing.operands)), tuple(map(as_jax_type, typing.results)), active
        )(*values)
    else:
        outs = local_all(fn, *values, out=typing.results)
    return jax.tree.unflatten(shard_results.tree, outs)


def _suggest_replicated(error: ShardingTypeError, rule: Rule, operands: tuple[ShType, ...]) -> None:
    """Suggests to replicate one operand over the axes at fault, if the claims then hold."""
    replaced, axes = operands, error.axes
    for _ in operands[0].mesh.axis_names:
        for axis in axes:
            replaced = tuple(t.with_axis(axis, replicated()) if t.state(axis) is State.SHARDED else t for t in replaced)
        changed = [(n, t, w) for n, t, w in zip(called_names(operands), operands, replaced, strict=True) if t != w]
        if len(changed) != 1:
            return
        try:
            rule(replaced)
        except ShardingTypeError as next_error:
            axes = next_error.axes
        else:
            ((operand, t, goal),) = changed
            error.fixes = (reshard_fix(t, goal, operand),)
            return


def _with_shards_of(traced_types: tuple[ShType, ...], rule: Rule) -> Rule:
    """The rule, restricted to operands with these shards, for which the function was traced."""

    def call(types: tuple[ShType, ...]) -> Typing:
        other = next((t for t, g in zip(types, traced_types, strict=True) if t.dims != g.dims), None)
        if other is not None:
            raise ShardingTypeError(f"the function is given other shards by `{other}`")
        return rule(types)

    return call


def claimed_types(name: str, shard_results: ShardResults, out: Any, operands: Sequence[ShType]) -> tuple[ShType, ...]:
    """The claimed types of the results, checked against the shards that the function returns.

    A claim is the type of one step of the enclosing `vmap`s: results vary where operands vary over a mapped axis.
    """
    mesh = operands[0].mesh
    varying = [a for a in mapped_axes() if any(t.state(a) is State.VARYING for t in operands)]
    placeholders = jax.tree.unflatten(shard_results.tree, [0] * len(shard_results.shards))
    try:
        targets = jax.tree.leaves(jax.tree.broadcast(out, placeholders, is_leaf=is_target), is_leaf=is_target)
    except ValueError:
        raise ShardingTypeError(
            f"`out` of `{name}` has another structure than its results",
            why=f"the function returns {shard_results.tree}",
            hints=["one type for each result, in the same structure, or one for all"],
        ) from None
    results: list[ShType] = []
    for i, (target, shard) in enumerate(zip(targets, shard_results.shards, strict=True)):
        t = _claim(name, i, len(targets), target, shard, mesh)
        # where it is replicated: there devices compute different steps
        results.append(t.with_axes([a for a in varying if t.state(a) in REPLICATED], State.VARYING))
    return tuple(results)


def is_target(x: Any) -> bool:
    """Whether ``x`` is a string, a type or a spec."""
    return isinstance(x, (str, ShType, Spec))


def _claim(name: str, index: int, count: int, target: Any, shard: tuple[tuple[int, ...], str], mesh: Mesh) -> ShType:
    """One claim as a type; omitted sizes follow from the shards."""
    shape, dtype = shard
    what = f"result {index} of `{name}`" if count > 1 else f"the result of `{name}`"
    if not is_target(target):
        raise ShardingTypeError(f"the type of {what} cannot be {target!r:.60}", hints=['out="f32[8@x, 4]"'])
    try:
        t = target if isinstance(target, ShType) else _completed(target, shape, dtype, mesh)
    except ShardingTypeError as error:
        error.what = f"the type given for {what} does not fit: {error.what}"
        error.why = error.why and f"{error.why}; each device makes {dtype}{list(shape)}"
        raise
    if t.mesh is not mesh:
        raise ShardingTypeError(f"the type of {what}, {t}, is over the mesh ({t.mesh}), and its operands are on {mesh}")
    if t.local_shape != shape or t.dtype_name != dtype:
        raise ShardingTypeError(
            f"{what} does not fit the type {t}",
            why=f"the function makes shards {dtype}{list(shape)}, and those of the type are "
            f"{t.dtype_name}{list(t.local_shape)}",
        )
    return t


def _completed(target: Any, shape: tuple[int, ...], dtype: str, mesh: Mesh) -> ShType:
    """The type of a string or a spec whose shards have this shape."""
    axes = _axes(target, len(shape), mesh)
    if len(axes) == len(shape):
        shape = tuple(n * mesh.product(over) for n, over in zip(shape, axes, strict=True))
    return type_of(target, mesh, shape=shape, dtype=dtype)


def _axes(target: Any, rank: int, mesh: Mesh) -> list[tuple[str, ...]]:
    """The mesh axes of each of ``rank`` dims in a string or a spec."""
    if not isinstance(target, str):
        entries = [(e,) if isinstance(e, str) else tuple(e or ()) for e in target.partitions]
        return entries + [()] * (rank - len(entries))
    written = in_scope(target, mesh)[1].dims
    if written is None:
        return [()] * rank
    full = expand_ellipsis(written, rank)
    return [tuple(a.text for a in d.axes) for d in (written if full is None else full)]
