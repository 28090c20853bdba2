"""Random classes, permutations and choices."""

from __future__ import annotations

import operator
from typing import Any

import jax

from shtypes import rules
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import apply, as_ints, as_operands, is_number
from shtypes.dispatch.reshard import finished
from shtypes.errors import ShardingTypeError
from shtypes.numerics.random.draw import (
    Categorical,
    KeyFn,
    as_key,
    check_parts,
    default_int,
    folded_axes,
    layout_of,
    sample_replicated,
    type_or_shape,
)
from shtypes.numerics.random.samples import gumbel, randint
from shtypes.ops.along_dims import normalize_dims
from shtypes.ops.arithmetic import add, astype
from shtypes.ops.create import default_float
from shtypes.ops.cross_shard import along
from shtypes.ops.functions import squeeze, take
from shtypes.ops.sharded_reductions import position
from shtypes.rules.along_dims import ResultDims
from shtypes.rules.random import categorical as _categorical_rule
from shtypes.types import ShType, State


@public
def categorical(
    key: Any, logits: Any, axis: int = -1, shape: Any = None, replace: bool = True, *, out: Any = None
) -> Any:
    """Samples one class for each row of logits, as `jax.random.categorical`.

    Args:
        key (): A key.
        logits (..., n, ...): Logarithms of weights; not unreduced.
        axis: The dim of the classes.
        shape: The shape of the result, which ends in that of the rows; leading dims are more samples for each row.
        replace: Whether a class may be sampled twice for a row. If not, the logits must be unsharded.
        out: A type for the result; allows communication if the classes are sharded.

    Returns:
        (...): The classes; sharded as the rows, whose device samples for them.

    Raises:
        ShardingTypeError: the classes are sharded and communication is not allowed.

    Communicates: nothing; with sharded classes, two all-reduces of one number for each row: each device adds its shard
    of the noise, and the maximum of all wins, as on one device.
    """
    key = as_key("categorical", key)
    (key, logits), constants = as_operands([key, logits])
    k, t = jax.typeof(key), jax.typeof(logits)
    (dim,) = normalize_dims(axis, t.ndim, "categorical")
    if not t.differentiable:
        logits = astype(logits, default_float())
        t = jax.typeof(logits)
    rows = t.shape[:dim] + t.shape[dim + 1 :]
    more = () if shape is None else as_ints(shape, "the shape of `categorical`")
    if shape is not None and more[len(more) - len(rows) :] != rows:
        raise ShardingTypeError(f"the shape of `categorical` ends in that of the rows, {list(rows)}, not {list(more)}")
    more = more[: len(more) - len(rows)] if shape is not None else ()
    if not replace:
        options = {"batch": rows, "axis": dim, "replace": False}
        sampled = sample_replicated("categorical", key, [logits], (*more, *rows), "i32", native=_categorical, **options)
        return finished(sampled, out)
    sampled_type = t.replace(dims=[*more, *t.dims])

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        typing = _categorical_rule("categorical", types[0], types[1], dim, constants)
        (result,) = typing.results
        return rules.Typing(typing.operands, (result.replace(dims=[*more, *result.dims]),))

    def unsharded(logits: Any) -> Any:
        check_parts("categorical", k, sampled_type)
        return apply("categorical", Categorical(dim, layout_of(t), folded_axes(k, t), more), rule, key, logits)

    def across(logits: Any) -> Any:
        noise = sampled_type.replace(states=[State.REDUCED if s is State.INVARIANT else s for s in sampled_type.states])
        noisy = add(logits, gumbel(key, noise))
        best = position("argmax", noisy, (dim + len(more),))
        return squeeze(astype(best, "i32"), dim + len(more))

    return along("random.categorical", logits, (dim,), unsharded, across, out)


def _categorical(key: Any, logits: Any, *, shape: tuple[int, ...], dtype: Any, axis: int, replace: bool) -> Any:
    return jax.random.categorical(key, logits, axis, shape, replace).astype(dtype)


@public
def choice(
    key: Any,
    a: Any,
    type: Any = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    *,
    shape: Any = None,
    mesh: Any = None,
) -> Any:
    """Samples positions or rows, as `jax.random.choice`.

    Args:
        key (): A key.
        a (..., n, ...): A number of positions, or a value whose rows are sampled.
        type: The type of the sampled positions, or their shape.
        replace: Whether one may be sampled twice.
        p (n): Probabilities, unsharded; uniform by default.
        axis: The dim of the rows; if sharded, each row is a lookup, and the result unreduced.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a type as a string, or of a shape; by default that of the key.

    Returns:
        (...): Positions, or their rows: the dims of the samples replace ``axis``.

        Communicates: nothing. Each device samples its positions; with ``p`` or without ``replace``, it samples all and
        keeps its shard.
    """
    type = type_or_shape(type, shape)
    value = None if is_number(a) else as_operands([a])[0][0]
    (dim,) = (0,) if value is None else normalize_dims(axis, jax.typeof(value).ndim, "choice")
    count = operator.index(a) if value is None else jax.typeof(value).shape[dim]
    if replace and p is None:
        at = randint(key, type, 0, count, mesh=mesh)
    else:
        weights = [] if p is None else [p]
        options: dict[str, Any] = {"a": count, "replace": bool(replace), "batch": ()}
        at = sample_replicated(
            "choice", key, weights, type, None, mesh, default=default_int(), native=_choice, **options
        )
    return at if value is None else take(value, at, dim, mode="clip")


def _choice(key: Any, p: Any = None, *, shape: tuple[int, ...], dtype: Any, a: int, replace: bool) -> Any:
    return jax.random.choice(key, a, shape, replace, p).astype(dtype)


@public
def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Any:
    """A permutation of positions or of a value's rows, as `jax.random.permutation`.

    Args:
        key (): A key.
        x (..., n, ...): A number of positions, or a value whose rows are permuted.
        axis: The dim of the rows; if sharded, each row is a lookup, and the result unreduced.
        independent: Whether to permute each column independently; the value must be unsharded then.

    Communicates: nothing.
    """
    key = as_key("permutation", key)
    value = None if is_number(x) else as_operands([x])[0][0]
    (dim,) = (0,) if value is None else normalize_dims(axis, jax.typeof(value).ndim, "permutation")
    if independent and value is not None:
        t = jax.typeof(value)
        options: dict[str, Any] = {"batch": t.shape, "axis": dim}
        return sample_replicated("permutation", key, [value], t, native=_permutation, **options)
    count = operator.index(x) if value is None else jax.typeof(value).shape[dim]
    results = (ResultDims(default_int(), ((count, None),)),)
    fn = KeyFn("permutation", jax.random.permutation, (("x", count),))
    order = apply("permutation", fn, lambda types: rules.unary_along("permutation", types[0], (), results, False), key)
    return order if value is None else take(value, order, dim, mode="clip")


def _permutation(key: Any, x: Any, *, shape: tuple[int, ...], dtype: Any, axis: int) -> Any:
    return jax.random.permutation(key, x, axis, independent=True)
