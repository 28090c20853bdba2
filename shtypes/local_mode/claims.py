"""The types that a user says the results of a function have: each fits the shards that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from shtypes.context.scope import mapped_axes
from shtypes.core.device_put import type_of
from shtypes.errors import ShardingTypeError
from shtypes.local_mode.user_function import ShardResults
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh
from shtypes.types.notation.dim_axes import in_scope
from shtypes.types.notation.syntax import spread
from shtypes.types.target import Spec


def claims(name: str, found: ShardResults, out: Any, operands: Sequence[ShType]) -> tuple[ShType, ...]:
    """The types that the results are claimed to have; they fit the shards that the function makes.

    A claim is of one step of the `vmap`s around: where an operand varies because its steps are on several devices,
    what is made of it does too.
    """
    mesh = operands[0].mesh
    varying = [a for a in mapped_axes() if any(t.state(a) is State.VARYING for t in operands)]
    placeholders = jax.tree.unflatten(found.tree, [0] * len(found.shards))
    try:
        targets = jax.tree.leaves(jax.tree.broadcast(out, placeholders, is_leaf=is_target), is_leaf=is_target)
    except ValueError:
        raise ShardingTypeError(
            f"`out` of `{name}` has another structure than its results",
            why=f"the function returns {found.tree}",
            hints=["one type for each result, in the same structure, or one for all"],
        ) from None
    return tuple(
        _of_steps(_claim(name, i, len(targets), t, shard, mesh), varying)
        for i, (t, shard) in enumerate(zip(targets, found.shards, strict=True))
    )


def _of_steps(t: ShType, axes: Sequence[str]) -> ShType:
    """What is replicated among devices that are at different steps is a value of each step."""
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
    full = spread(written, rank)
    return [tuple(a.text for a in d.axes) for d in (written if full is None else full)]
