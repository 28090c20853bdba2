"""`local_map`: any JAX function of shards as a typed op, with result types that its user claims."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, overload

import jax
import numpy as np

from shtypes.context.function import Function
from shtypes.context.scope import mapped_axes
from shtypes.context.signature_errors import check_function, name_of
from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.device_put import type_of
from shtypes.core.jax_context import complete_when_read
from shtypes.core.jax_type import as_jax_type
from shtypes.core.local import local_all
from shtypes.dispatch.apply import as_operands, cast_all, is_typed, typed
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
from shtypes.rules.claims import claimed
from shtypes.rules.suggest_fixes import Rule, called_names
from shtypes.rules.typing import Typing
from shtypes.traced.program import split
from shtypes.types import ShType, State
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
    """Any JAX function of shards as a typed op: a kernel with a custom backward pass, or what no typed op does.

    ``f`` sees plain arrays, one device's shards, and does not communicate. What its results mean is your word, by
    their types. Checked without devices: that ``f`` takes the shards, that what it makes fits the claims, that it does
    not communicate, that no result is claimed to be one value that is computed from what varies, or a term of a sum
    that is computed from what does not, and that gradients can have the types that follow. `debug_checks` compares
    what calls of the host give.

    Per axis: where the results that an operand with a gradient goes into are invariant, it is invariant too. Otherwise
    an invariant operand is cast to reduced, free forward. What an unreduced operand goes into is unreduced, and ``f``
    linear in it.

    Args:
        f: The function. JAX knows it by its identity: define it once, not at each call.
        out: The types of the results, in their structure: for each a text, an `sh.ShType` or a `jax.P`, whose sizes may
            be left out (``"[_@dp, _]"``, ``"[batch@dp, _]"``: those of the shards, times the axes); or a function from
            the operands' types to such types. One type stands for all results. Inside `vmap` it is of one step: over
            the axes that shard the mapped dim, what is made of a step's value varies as that does.
        residuals: What the backward pass uses. ``"save"``: residuals of the forward pass, as JAX finds them; there is
            no forward-mode derivative then. ``"recompute"``: the operands. By default, they are saved where a
            `jax.custom_vjp` is somewhere in ``f``.
        differentiable: Whether gradients pass. An optimizer's update has none, and then its results may be invariant
            and sharded on one axis.
        name: The name to print; that of ``f`` by default.

    Returns:
        A function of any trees. Typed values and plain arrays (as constants) arrive in ``f`` as shards, all else as it
        is, as a hashable constant. Without ``f``, a decorator.

    Raises:
        ShardingTypeError: (when called) one of the checks fails.

    Communicates: nothing; an invariant operand that is cast communicates backward. Transpose: that of ``f``, on shards;
    by the cotangent map, from the claimed types to those of the operands.

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
    called = name or name_of(f) or type(f).__name__

    @functools.wraps(f, updated=())
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if not differentiable:
            arrays, again = split((args, kwargs), lambda x: is_typed(x) or isinstance(x, jax.Array))
            args, kwargs = again(map(stop_gradient, arrays))
        return _apply(f, called, out, residuals, differentiable, args, kwargs)

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
    arrays, again = split((args, kwargs), lambda x: is_typed(x) or isinstance(x, (jax.Array, np.ndarray, np.generic)))
    fixed, tree = jax.tree.flatten(again(Shard for _ in arrays))
    fn = UserFn(f, name, tree, tuple(fixed))
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
            args, kwargs = again(types)
            target = out(*args, **kwargs)
        shards = shards_of(types)
        shard_results = trace_on_shards(fn, shards)
        results = claims(name, shard_results, target, types)
        return claimed(
            name, types, results, shard_results.sources, functools.partial(gradients_of, fn, shards), constants
        )

    def rule(types: tuple[ShType, ...]) -> Typing:
        try:
            return typing_of(types)
        except ShardingTypeError as error:
            if not error.may_have_fixes:
                complete_when_read(error, functools.partial(_keep_whole_operands, error, typing_of, types))
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


def _keep_whole_operands(error: ShardingTypeError, rule: Rule, operands: tuple[ShType, ...]) -> None:
    """Suggests the operand that axes shard as one value on all their devices, if the function then keeps its claims."""
    replaced, axes = operands, error.axes
    for _ in operands[0].mesh.axis_names:
        for axis in axes:
            replaced = tuple(t.with_axis(axis, replicated()) if t.state(axis) is State.SHARDED else t for t in replaced)
        changed = [(n, t, w) for n, t, w in zip(called_names(operands), operands, replaced, strict=True) if t != w]
        if len(changed) != 1:
            return
        try:
            rule(replaced)
        except ShardingTypeError as refused:
            axes = refused.axes
        else:
            ((called, t, goal),) = changed
            error.fixes = (reshard_fix(t, goal, called),)
            return


def _with_shards_of(traced_types: tuple[ShType, ...], rule: Rule) -> Rule:
    """The rule, restricted to operands with these shards: what the function returns for others is unknown."""

    def call(types: tuple[ShType, ...]) -> Typing:
        other = next((t for t, g in zip(types, traced_types, strict=True) if t.dims != g.dims), None)
        if other is not None:
            raise ShardingTypeError(f"the function is given other shards by `{other}`")
        return rule(types)

    return call


def claims(name: str, shard_results: ShardResults, out: Any, operands: Sequence[ShType]) -> tuple[ShType, ...]:
    """The types that the results are claimed to have; they fit the shards that the function makes.

    A claim is of one step of the `vmap`s around: where an operand varies because its steps are on several devices,
    what is computed from it does too.
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
    return tuple(
        _of_steps(_claim(name, i, len(targets), t, shard, mesh), varying)
        for i, (t, shard) in enumerate(zip(targets, shard_results.shards, strict=True))
    )


def _of_steps(t: ShType, axes: Sequence[str]) -> ShType:
    """The type, varying on those of ``axes`` where it is replicated: devices there are at different steps."""
    return t.with_axes([a for a in axes if t.state(a) in (State.REDUCED, State.INVARIANT)], State.VARYING)


def is_target(x: Any) -> bool:
    """Whether ``x`` says a type: a text, a type or a spec."""
    return isinstance(x, (str, ShType, Spec))


def _claim(name: str, index: int, count: int, target: Any, shard: tuple[tuple[int, ...], str], mesh: Mesh) -> ShType:
    """One claim as a type; sizes that a text or a spec leaves out are those of the shards together."""
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
    """A text or a spec as a type of which each device holds a shard of this shape."""
    axes = _axes(target, len(shape), mesh)
    if len(axes) == len(shape):
        shape = tuple(n * mesh.product(over) for n, over in zip(shape, axes, strict=True))
    return type_of(target, mesh, shape=shape, dtype=dtype)


def _axes(target: Any, rank: int, mesh: Mesh) -> list[tuple[str, ...]]:
    """The axes that a text or a spec gives to each of ``rank`` dims."""
    if not isinstance(target, str):
        entries = [(e,) if isinstance(e, str) else tuple(e or ()) for e in target.partitions]
        return entries + [()] * (rank - len(entries))
    written = in_scope(target, mesh)[1].dims
    if written is None:
        return [()] * rank
    full = expand_ellipsis(written, rank)
    return [tuple(a.text for a in d.axes) for d in (written if full is None else full)]
