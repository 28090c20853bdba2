"""`vmap` and `map`: JAX's over unsharded dims; over sharded dims, each device maps over its shard."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, ParamSpec, TypeVar, cast

import jax
import numpy as np

from shtypes.context.function import Function
from shtypes.context.scope import mapped_over
from shtypes.context.signature_errors import check_function
from shtypes.context.user_line import maker, placed, wrap_jax_errors
from shtypes.core.collective import reinterpreted, vary
from shtypes.core.device_put import ensure_mapped_p
from shtypes.core.reshard import move
from shtypes.dispatch.apply import is_typed, located
from shtypes.errors import ShardingTypeError, quoted
from shtypes.scopes.check_comm import check_comm
from shtypes.scopes.scope_rules import allows_implicit
from shtypes.types import REPLICATED, Dim, ShType, State
from shtypes.types.policy import replicated

P = ParamSpec("P")
T = TypeVar("T")


@maker
def vmap(
    fun: Callable[P, T],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
) -> Function[P, T]:
    """Maps a function over a dim of its arguments, as `jax.vmap`.

    The mapped dim may be sharded, equally in each argument in which it is; a replicated argument is sliced. Each device
    then maps over its shard: inside, these axes vary, so nothing there may be sharded or unreduced on them, and the
    mapped dims of results are sharded over them. Inside, `shtypes.grad` and `shtypes.vjp` give the gradients of each
    step, which vary; `shtypes.cond` and `shtypes.switch` choose at each step.

    Args:
        fun: A function of any pytrees of typed values and plain arrays.
        in_axes: The dim to map over for each argument, or None.
        out_axes: The mapped dim of each result. A result that does not depend on it is repeated.
        axis_name: As in JAX, for its collectives on plain arrays; not with a sharded mapped dim.
        axis_size: The size of the mapped dim, if no argument has it.

    Raises:
        ShardingTypeError: (when called) mapped dims are sharded differently, or one is sharded beside a plain array or
            an unreduced value.

    Communicates: what ``fun`` does; backward, the gradient sums of invariant arguments that meet sharded ones.
    """
    check_function("vmap", fun)

    @functools.wraps(fun)
    def mapped_fun(*args: Any, **kwargs: Any) -> Any:
        return _map_results(_ensure_mapped, out_axes, fun(*args, **kwargs))

    with wrap_jax_errors("vmap"):
        native = jax.vmap(mapped_fun, in_axes, out_axes, axis_name=axis_name, axis_size=axis_size)

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        places = _places(in_axes, args, kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs))
        if allows_implicit():
            try:
                return mapped(args, kwargs, places, leaves, structure)
            except ShardingTypeError:
                gathered = [_gathered(x, d) for x, d in zip(leaves, places, strict=True)]
                args, kwargs = jax.tree.unflatten(structure, gathered)
                leaves = gathered
        return mapped(args, kwargs, places, leaves, structure)

    def mapped(args: Any, kwargs: Any, places: list[int | None], leaves: list[Any], structure: Any) -> Any:
        axes, parts = _shards("vmap", leaves, places, axis_name)
        if not axes:
            with wrap_jax_errors("vmap"):
                return native(*args, **kwargs)
        shard_args, shard_kwargs = jax.tree.unflatten(structure, parts)
        try:
            with wrap_jax_errors("vmap"):
                over = _map_shards("vmap", fun, out_axes, axes, lambda inner: jax.vmap(inner, in_axes, out_axes))
                return over(*shard_args, **shard_kwargs)
        except ShardingTypeError as error:
            raise placed(error, "vmap") from error.__cause__

    return cast("Function[P, T]", call)


#: In ``in_axes`` with a dim for each leaf: not mapped.
_UNMAPPED: Final = object()


def _gathered(x: Any, place: int | None) -> Any:
    """Gathers the mapped dim of an argument, so that any function can be mapped over it."""
    if place is None or not is_typed(x) or not -jax.typeof(x).ndim <= place < jax.typeof(x).ndim:
        return x
    t = jax.typeof(x)
    goal = t.with_axes(t.dims[place].axes, replicated())
    check_comm("vmap", t, goal, inserted=True)
    return move(x, goal, inserted=True)


def map_sharded(
    name: str, fun: Callable[[Any], Any], xs: Any, loop: Callable[[Callable[[Any], Any], Any], Any]
) -> Any | None:
    """Loops on each device over its shard of the leading dim; None if the dim is not sharded."""
    leaves, structure = jax.tree.flatten(xs)
    axes, parts = _shards(name, leaves, [0] * len(leaves), None)
    if not axes:
        return None
    over = _map_shards(name, fun, 0, axes, lambda inner: lambda shard: loop(inner, shard))
    return over(jax.tree.unflatten(structure, parts))


def _shards(
    name: str, leaves: Sequence[Any], places: Sequence[int | None], axis_name: Any
) -> tuple[tuple[str, ...], list[Any]]:
    """The mesh axes that shard the mapped dims, and the arguments' shards; no shards if there are no such axes."""
    try:
        axes = _sharding(name, leaves, places)
        if axes and axis_name is not None:
            raise ShardingTypeError(f"`{name}` cannot name a dim that is sharded over {quoted(axes)}: {axis_name!r}")
        return axes, [_shard(name, x, d, axes) for x, d in zip(leaves, places, strict=True)] if axes else []
    except ShardingTypeError as error:
        raise located(error, name, [jax.typeof(x) for x in leaves if is_typed(x)]).with_traceback(None) from None


def _is_none(x: Any) -> bool:
    return x is None


def _map_results(f: Callable[[int | None, Any], Any], out_axes: Any, results: Any) -> Any:
    """Applies ``f`` to the mapped dim and the value of each leaf of the results."""
    places = jax.tree.broadcast(out_axes, results, is_leaf=_is_none)
    return jax.tree.map(f, places, results, is_leaf=_is_none)


def _ensure_mapped(place: int | None, leaf: Any) -> Any:
    """Makes a result mapped for JAX, even if it does not depend on what is mapped."""
    return leaf if place is None or leaf is None or not is_typed(leaf) else ensure_mapped_p.bind(leaf)


def _places(in_axes: Any, args: Any, kwargs: Any) -> list[int | None]:
    """The mapped dim of each leaf of the arguments; all None if ``in_axes`` does not fit them, which JAX reports."""
    count = len(jax.tree.leaves((args, kwargs)))
    try:
        prefix = tuple(in_axes) if isinstance(in_axes, (list, tuple)) else in_axes
        # None in the arguments is no leaf, as of a layer without a bias
        prefix = jax.tree.map(lambda d: _UNMAPPED if d is None else d, prefix, is_leaf=_is_none)
        places = jax.tree.leaves(jax.tree.broadcast(prefix, args))
    except ValueError:
        return [None] * count
    dims = [*(None if d is _UNMAPPED else d for d in places), *[0] * (count - len(places))]
    return dims if len(dims) == count else [None] * count


def _sharding(name: str, leaves: Sequence[Any], places: Sequence[int | None]) -> tuple[str, ...]:
    """The mesh axes that shard the mapped dims: the longest, of which others may lack minor ones.

    None where JAX does not map over these dims, so that it says why of the arguments, and not of their shards.
    """
    longest: tuple[str, ...] = ()
    mapped = [(x, d) for x, d in zip(leaves, places, strict=True) if d is not None]
    if any(not -np.ndim(x) <= d < np.ndim(x) for x, d in mapped) or len({np.shape(x)[d] for x, d in mapped}) > 1:
        return ()
    for x, d in mapped:
        if not is_typed(x):
            continue
        axes = jax.typeof(x).dims[d].axes
        short, long = sorted((longest, axes), key=len)
        if long[: len(short)] != short:
            raise ShardingTypeError(
                f"`{name}` maps over dims sharded differently: over {quoted(longest)} and over {quoted(axes)}",
                why="a device would meet other steps of the one argument than of the other",
                hints=["sh.reshard one of them"],
            )
        longest = long
    return longest


def _shard(name: str, x: Any, place: int | None, axes: tuple[str, ...]) -> Any:
    """An argument as varying: the shard of a mapped one, any other unchanged."""
    if place is None:
        return x
    if not is_typed(x):
        raise ShardingTypeError(
            f"`{name}` maps over a dim that is sharded over {quoted(axes)}, and over a plain array",
            hints=["sh.array(x, type) or sh.from_jax(x) gives it a type"],
        )
    t = jax.typeof(x)
    d = place % t.ndim
    for axis in axes:
        if axis not in t.dims[d].axes and t.state(axis) not in REPLICATED:
            raise ShardingTypeError(
                f"`{name}` maps over a dim that is sharded over `{axis}`, and over {t}",
                why="only a replicated argument can be sliced to the steps of each device",
                hints=[f"sh.reshard it so that dim {d} is sharded over {quoted(axes)}"],
            )
    sharded = t
    for axis in axes[len(t.dims[d].axes) :]:
        sharded = sharded.with_axis(axis, State.SHARDED, d)
    check_comm(name, t, sharded, inserted=True)
    return reinterpreted(move(x, sharded, inserted=True), _varying(sharded, axes, d))


def _varying(t: ShType, axes: tuple[str, ...], d: int) -> ShType:
    """The type of the same shards where ``axes``, which shard dim ``d``, vary instead."""
    dims = list(t.dims)
    dims[d] = Dim(dims[d].size // t.mesh.product(axes), (), dims[d].name)
    return t.replace(dims=dims, states={**t.beside_dims, **dict.fromkeys(axes, State.VARYING)})


def _map_shards(
    name: str,
    fun: Callable[..., Any],
    out_axes: Any,
    axes: tuple[str, ...],
    map_shard: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Callable[..., Any]:
    """Maps the function over each device's steps, and returns global results."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        with mapped_over(axes):
            result = fun(*args, **kwargs)
        return _map_results(as_mapped, out_axes, result)

    def as_mapped(place: int | None, leaf: Any) -> Any:
        if place is None or leaf is None:
            return leaf
        if not is_typed(leaf):
            what = f"a result of `{name}` over a dim that is sharded over {quoted(axes)} is a plain array"
            raise placed(ShardingTypeError(what), name)
        t = jax.typeof(leaf)
        for axis in axes:
            if t.state(axis) not in (*REPLICATED, State.VARYING):
                error = ShardingTypeError(
                    f"a result of `{name}` is {t}, and its mapped dim is sharded over `{axis}`",
                    why="an axis does one thing only",
                )
                raise placed(error, name)
        return ensure_mapped_p.bind(vary(leaf, axes, inserted=True))

    mapped = map_shard(inner)

    def call(*args: Any, **kwargs: Any) -> Any:
        return _map_results(as_global, out_axes, mapped(*args, **kwargs))

    def as_global(place: int | None, leaf: Any) -> Any:
        if leaf is None:
            return None
        t = jax.typeof(leaf)
        if place is None:
            varying = [a for a in axes if is_typed(leaf) and t.state(a) is State.VARYING]
            if varying:
                raise ShardingTypeError(
                    f"a result of `{name}` with `None` in out_axes is {t}, which is another value on each device",
                    why=f"the mapped dim is sharded over {quoted(varying)}",
                    hints=["out_axes=0 gives the result of each step"],
                )
            return leaf
        dims = list(t.dims)
        d = place % t.ndim
        dims[d] = Dim(dims[d].size * t.mesh.product(axes), axes, dims[d].name)
        states = {a: s for a, s in t.beside_dims.items() if a not in axes}
        return reinterpreted(leaf, t.replace(dims=dims, states=states))

    return call
