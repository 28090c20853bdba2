"""`local_map`: any JAX function of shards as a typed op, with result types that its user claims."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args, overload

import jax
import numpy as np

from shtypes.context.function import Function
from shtypes.context.signature_errors import check_function, name_of
from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.jax_context import complete_when_read
from shtypes.core.jax_type import as_jax_type
from shtypes.core.local import local_all
from shtypes.dispatch.apply import cast_all, is_typed, lift, typed
from shtypes.errors import ShardingTypeError
from shtypes.local_mode.claims import claims, is_target
from shtypes.local_mode.residuals import with_residuals
from shtypes.local_mode.user_function import SHARD, GradientsOf, UserFn, made, shards_of
from shtypes.ops.reinterpret import stop_gradient
from shtypes.resharding.transport import reshard_fix
from shtypes.rules.claims import claimed
from shtypes.rules.implicit import note_shards
from shtypes.rules.suggest_fixes import Rule, called_names
from shtypes.rules.typing import Typing
from shtypes.traced.program import split
from shtypes.types import ShType, State
from shtypes.types.policy import replicated

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
    """Any JAX function of shards as a typed op: a kernel with its own backward pass, or what no typed op does.

    ``f`` sees plain arrays, one device's own parts, and does not communicate. What its results mean is your word, by
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
        known = ", ".join(map(repr, get_args(Residuals)))
        raise ShardingTypeError(f"`residuals` of `local_map` is one of {known}, not {residuals!r}")
    if f is None:
        return lambda function: local_map(
            function, out=out, residuals=residuals, differentiable=differentiable, name=name
        )
    check_function("local_map", f)
    called = name or name_of(f) or type(f).__name__

    @functools.wraps(f, updated=())
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if not differentiable:
            args, kwargs = jax.tree.map(_stopped, (args, kwargs))
        return _apply(f, called, out, residuals, differentiable, args, kwargs)

    return public(mapped)


def _stopped(x: Any) -> Any:
    """Without a gradient, if it is an array."""
    return stop_gradient(x) if is_typed(x) or isinstance(x, jax.Array) else x


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
    fixed, tree = jax.tree.flatten(again(SHARD for _ in arrays))
    fn = UserFn(f, name, tree, tuple(fixed))
    try:
        hash(fn)
    except TypeError as error:
        raise ShardingTypeError(
            f"`{name}` or one of its constants has no hash",
            why=str(error),
            hints=["pass arrays as arguments, and a plain function"],
        ) from None
    operands, constants = lift(arrays)
    if not operands:
        raise ShardingTypeError(f"`{name}` needs an operand: without any, nothing says on which mesh it runs")

    def typing_of(types: tuple[ShType, ...]) -> Typing:
        target = out
        if callable(out) and not is_target(out):
            args, kwargs = again(types)
            target = out(*args, **kwargs)
        shards = shards_of(types)
        found = made(fn, shards)
        results = claims(name, found, target, types)
        return claimed(name, types, results, found.sources, GradientsOf(fn, shards), constants)

    def rule(types: tuple[ShType, ...]) -> Typing:
        try:
            return typing_of(types)
        except ShardingTypeError as error:
            if not error.may_have_fixes:
                complete_when_read(error, functools.partial(_keep_whole_operands, error, typing_of, types))
            raise

    types = tuple(jax.typeof(x) for x in operands)
    note_shards(name, types)
    if not differentiable:
        constants = frozenset(range(len(operands)))
    typing = typed(name, _with_shards_of(types, rule), types)
    found = made(fn, shards_of(typing.operands))
    values = cast_all(name, rule, operands, typing)
    active = tuple(t.differentiable and i not in constants for i, t in enumerate(typing.operands))
    saves = residuals == "save" or (residuals == "auto" and found.has_own_backward)
    if saves and any(active) and any(t.differentiable for t in typing.results):
        outs = with_residuals(
            fn, tuple(map(as_jax_type, typing.operands)), tuple(map(as_jax_type, typing.results)), active
        )(*values)
    else:
        outs = local_all(fn, *values, out=typing.results)
    return jax.tree.unflatten(found.tree, outs)


def _keep_whole_operands(error: ShardingTypeError, rule: Rule, operands: tuple[ShType, ...]) -> None:
    """Suggests the operand that axes shard as one value on all their devices, if the function then keeps its claims."""
    whole, axes = operands, error.axes
    for _ in operands[0].mesh.axis_names:
        for axis in axes:
            whole = tuple(t.with_axis(axis, replicated()) if t.state(axis) is State.SHARDED else t for t in whole)
        changed = [(n, t, w) for n, t, w in zip(called_names(operands), operands, whole, strict=True) if t != w]
        if len(changed) != 1:
            return
        try:
            rule(whole)
        except ShardingTypeError as refused:
            axes = refused.axes
        else:
            ((called, t, goal),) = changed
            error.fixes = (reshard_fix(t, goal, called),)
            return


def _with_shards_of(given: tuple[ShType, ...], rule: Rule) -> Rule:
    """The rule for operands that differ by their states: what the function makes of other shards is unknown."""

    def call(types: tuple[ShType, ...]) -> Typing:
        other = next((t for t, g in zip(types, given, strict=True) if t.dims != g.dims), None)
        if other is not None:
            raise ShardingTypeError(f"the function is given other shards by `{other}`")
        return rule(types)

    return call
