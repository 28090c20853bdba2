"""Samples that each device makes whole: the same numbers everywhere, of which it keeps its own part."""

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
from shtypes.dispatch.apply import apply, is_number, lift
from shtypes.dispatch.reshard import reshard
from shtypes.errors import ShardingTypeError
from shtypes.numerics.bits.samples import as_key, asked, folded_axes
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
    numbers: tuple[float | None, ...]  # the operands that are known; None for the others

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
    """Samples of the type that the user asked for, made whole and then resharded, for free.

    Args:
        name: The op, for messages.
        native: A function of a key and the operands, with ``shape=``, ``dtype=`` and ``params``.
        key (): A key.
        operands: Parameters, typed or not.
        type: What the user asked for; None for the shape of the operands together; a shape is that of the batch.
        dtype: The dtype that the user asked for.
        mesh: The mesh of a text or shape.
        default: The dtype otherwise.
        event: The last dims of the result, which ``shape=`` does not name.
        batch: The batch of the operands, where it is not how they broadcast.
        **params: More of JAX's parameters.
    """
    numbers = tuple(float(x) if is_number(x) else None for x in operands)
    (key, *operands), _ = lift([as_key(name, key), *(x for x in operands if not is_number(x))])
    k = jax.typeof(key)
    given = jnp.broadcast_shapes(*(jax.typeof(x).shape for x in operands)) if batch is None else tuple(batch)
    if type is None:
        type = given
    if isinstance(type, (int, np.integer)):
        type = (type,)
    if isinstance(type, (tuple, list)) and all(isinstance(n, (int, np.integer)) for n in type):
        type = (*type, *event)
    wanted = asked(k, type, dtype, mesh, default)
    if name in _DECOMPOSED and wanted.dtype.itemsize < 4:
        raise ShardingTypeError(
            f"`{name}` draws no `{wanted.dtype_name}` values",
            why="it decomposes a matrix, which is done in 32 or 64 bits",
            hints=[f'draw it as f32, and then x.astype("{wanted.dtype_name}")'],
        )
    shape = wanted.shape[: wanted.ndim - len(event)]
    if wanted.shape[len(shape) :] != tuple(event) or not _broadcasts(given, shape):
        raise ShardingTypeError(f"`{name}` of parameters of shape {[*given, *event]} cannot make {wanted}")
    fn = AtOnce(name, native, tuple(sorted(params.items())), shape, wanted.dtype_name, folded_axes(k, wanted), numbers)

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return whole_rule(name, types, wanted)

    return reshard(apply(name, fn, rule, key, *operands), wanted)


def _broadcasts(given: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    pairs = zip(given[::-1], shape[::-1], strict=False)
    return len(given) <= len(shape) and all(m in (1, n) for m, n in pairs)


def whole_rule(name: str, types: Sequence[ShType], wanted: ShType) -> rules.Typing:
    """The key and the parameters are whole; so is the result, before it is resharded to what is wanted.

    Raises:
        ShardingTypeError: a parameter is sharded or unreduced, or the key is none.
    """
    _sample_rule(name, types[0], wanted)
    for i, t in enumerate(types):
        for axis in t.axes(State.SHARDED):
            raise messages.along(name, t, axis)
        for axis in t.axes(State.UNREDUCED):
            raise messages.nonlinear(name, axis, messages.operand_word(i, len(types)))
    bare = tuple(t.replace(dims=[]) for t in types)
    met = rules.nonlinear(name, bare, wanted.dtype_name)
    (result,) = met.results
    varying = wanted.axes(State.VARYING)
    states = {a: State.VARYING if a in varying else result.state(a) for a in wanted.mesh.axis_names}
    operands = tuple(t.replace(states=list(m.states)) for t, m in zip(types, met.operands, strict=True))
    made = ShType(wanted.mesh, wanted.dtype_name, [Dim(n) for n in wanted.shape], states)
    return rules.Typing(operands, (made,))
