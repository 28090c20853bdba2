"""Samples that each device computes in full: the same numbers everywhere, of which it keeps its shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes import rules
from shtypes.core.array import Array
from shtypes.core.shard_fn import ShardFn
from shtypes.dispatch.apply import apply, as_operands, is_number
from shtypes.dispatch.reshard import reshard
from shtypes.errors import ShardingTypeError
from shtypes.numerics.bits.samples import as_key, folded_axes, sample_type
from shtypes.rules import messages
from shtypes.rules.random import sample as _sample_rule
from shtypes.types import Dim, ShType, State, dtypes


@dataclass(frozen=True)
class AtOnce(ShardFn):
    """A function of `jax.random` as it is, with typed parameters; by itself on ``folded`` axes."""

    name: str
    fn: Callable[..., Any]
    params: tuple[tuple[str, Any], ...]
    shape: tuple[int, ...] | None
    dtype: str
    folded: tuple[str, ...]
    numbers: tuple[float | None, ...]  # the operands that are numbers; None for the others

    def __str__(self) -> str:
        return f"random_{self.name}"

    def __call__(self, key: Any, *operands: Any) -> Any:
        for axis in self.folded:
            key = jax.random.fold_in(key, lax.axis_index(axis))
        shape = {} if self.shape is None else {"shape": self.shape}
        rest = iter(operands)
        merged = [next(rest) if n is None else n for n in self.numbers]
        return self.fn(key, *merged, **shape, dtype=dtypes.to_numpy(self.dtype), **dict(self.params))


#: Samples by a decomposition.
_DECOMPOSED = frozenset({"orthogonal", "delta_orthogonal", "multivariate_normal"})


def sample_whole(
    name: str,
    native: Callable[..., Any],
    key: Any,
    operands: Sequence[Any],
    type: Any,
    dtype: Any,
    mesh: Any,
    default: str,
    *,
    event: Sequence[int] = (),
    batch: Sequence[int] | None = None,
    **params: Any,
) -> Array:
    """Samples of the type that the arguments say, computed in full and then resharded, for free.

    Args:
        name: The op, for messages.
        native: A function of a key and the operands, with ``shape=``, ``dtype=`` and ``params``.
        key (): A key.
        operands: Parameters, typed or not.
        type: The type or shape; None for the shape of the operands together; a shape is that of the batch.
        dtype: The dtype, where the type leaves it out.
        mesh: The mesh of a text or shape.
        default: The dtype otherwise.
        event: The last dims of the result, which ``shape=`` does not name.
        batch: The batch of the operands, where it is not how they broadcast.
        **params: More of JAX's parameters.
    """
    numbers = tuple(float(x) if is_number(x) else None for x in operands)
    (key, *operands), _ = as_operands([as_key(name, key), *(x for x in operands if not is_number(x))])
    k = jax.typeof(key)
    of_operands = jnp.broadcast_shapes(*(jax.typeof(x).shape for x in operands)) if batch is None else tuple(batch)
    if type is None:
        type = of_operands
    if isinstance(type, (int, np.integer)):
        type = (type,)
    if isinstance(type, (tuple, list)) and all(isinstance(n, (int, np.integer)) for n in type):
        type = (*type, *event)
    t = sample_type(k, type, dtype, mesh, default)
    if name in _DECOMPOSED and t.dtype.itemsize < 4:
        raise ShardingTypeError(
            f"`{name}` draws no `{t.dtype_name}` values",
            why="it decomposes a matrix, which is done in 32 or 64 bits",
            hints=[f'draw it as f32, and then x.astype("{t.dtype_name}")'],
        )
    shape = t.shape[: t.ndim - len(event)]
    if t.shape[len(shape) :] != tuple(event) or not _broadcasts(of_operands, shape):
        raise ShardingTypeError(f"`{name}` of parameters of shape {[*of_operands, *event]} cannot make {t}")
    fn = AtOnce(name, native, tuple(sorted(params.items())), shape, t.dtype_name, folded_axes(k, t), numbers)

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return unsharded_rule(name, types, t)

    return reshard(apply(name, fn, rule, key, *operands), t)


def _broadcasts(of_operands: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    pairs = zip(of_operands[::-1], shape[::-1], strict=False)
    return len(of_operands) <= len(shape) and all(m in (1, n) for m, n in pairs)


def unsharded_rule(name: str, types: Sequence[ShType], target: ShType) -> rules.Typing:
    """The key and the parameters are unsharded; so is the result, which is then resharded to ``t``.

    Raises:
        ShardingTypeError: a parameter is sharded or unreduced, or the key is none.
    """
    _sample_rule(name, types[0], target)
    for i, t in enumerate(types):
        for axis in t.axes(State.SHARDED):
            raise messages.along(name, t, axis)
        for axis in t.axes(State.UNREDUCED):
            raise messages.nonlinear(name, axis, messages.operand_word(i, len(types)))
    bare = tuple(t.replace(dims=[]) for t in types)
    joined = rules.nonlinear(name, bare, target.dtype_name)
    (result,) = joined.results
    varying = target.axes(State.VARYING)
    states = {a: State.VARYING if a in varying else result.state(a) for a in target.mesh.axis_names}
    operands = tuple(t.replace(states=list(m.states)) for t, m in zip(types, joined.operands, strict=True))
    full = ShType(target.mesh, target.dtype_name, [Dim(n) for n in target.shape], states)
    return rules.Typing(operands, (full,))
