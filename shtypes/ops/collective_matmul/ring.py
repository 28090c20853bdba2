"""The ring of a collective matmul, on one device's shards.

In each step the permute and the products depend on the same values, not on each other, so that they can run at the same
time. Each step waits for the products of the previous one: a compiler that ran ahead would hold all pieces at once, as
the collective does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from shtypes.caches import CACHE_SIZE
from shtypes.core.collective import on_shards
from shtypes.core.dim_fns import Einsum
from shtypes.core.operation import Comm
from shtypes.resharding.moves import Kind
from shtypes.rules.local import Op
from shtypes.types import REPLICATED, ShType


class RingSpec(NamedTuple):
    """The pieces and axes of a ring.

    Attributes:
        equations: One product for each pair of operands, with one alphabet.
        label: The label along which the pieces are sharded.
        axes: The mesh axes of the ring, major to minor.
        both: Whether each half of a piece moves in its own direction.
        precision: As in `jax.numpy.einsum`.
    """

    equations: tuple[str, ...]
    label: str
    axes: tuple[str, ...]
    both: bool
    precision: Any


class _Half(NamedTuple):
    """A part of each piece: its start and size, and the hops that it moves in each step."""

    start: int
    size: int
    step: int


def halves(size: int, both: bool) -> list[_Half]:
    """The parts of a piece of some size."""
    if not both or size < 2:
        return [_Half(0, size, -1)]
    return [_Half(0, size // 2, 1), _Half(size // 2, size - size // 2, -1)]


def one_round(spec: RingSpec, piece: ShType, src: ShType, dst: ShType) -> Comm:
    """The communication of one round of shards of a type, for the ledger and for scopes."""
    others = piece.mesh.product(spec.axes) - 1
    dim = next(i for i, d in enumerate(piece.dims) if spec.axes[-1] in d.axes)
    launches = others * len(halves(piece.local_shape[dim], spec.both))
    return Comm(Kind.PERMUTE, spec.axes, others * piece.local_bytes, launches, src, dst, src.dtype_name)


def _shift(x: Any, by: int, spec: RingSpec, t: ShType) -> Any:
    n = t.mesh.product(spec.axes)
    perm = tuple((i, (i + by) % n) for i in range(n))
    return on_shards(Op("ppermute", spec.axes, perm=perm), t)(x)[0]


def _index(spec: RingSpec, t: ShType) -> Any:
    live = tuple(a for a in spec.axes if t.mesh.shape[a] > 1)
    return lax.axis_index(live) if live else 0


def _part(x: Any, labels: str, label: str, start: Any, size: int) -> Any:
    """The part of an operand along a label, if it has the label."""
    return lax.dynamic_slice_in_dim(x, start, size, labels.index(label)) if label in labels else x


def _zero_after(previous: Any) -> Any:
    """A zero that depends on a value: XLA drops its barriers before it orders a program for the CPU."""
    first = lax.squeeze(lax.slice(previous, (0,) * previous.ndim, (1,) * previous.ndim), range(previous.ndim))
    return (first != 0).astype(jnp.int32) >> 1


@functools.lru_cache(maxsize=CACHE_SIZE)
def gathering(
    spec: RingSpec, positions: tuple[int, ...], moved: ShType, results: tuple[ShType, ...]
) -> Callable[..., list[Any]]:
    """Gathers a sharded operand and multiplies it with others: ``(moved, *others) -> results``.

    ``positions`` are the indices of the moved operand in the equations, ``moved`` is its type.
    """
    n = moved.mesh.product(spec.axes)
    parts = [equation.split("->") for equation in spec.equations]
    inputs = [in_labels.split(",") for in_labels, _ in parts]
    outputs = [output for _, output in parts]
    moved_labels = inputs[0][positions[0]]
    # whether devices of the ring have the same result, for which they must add in the same order
    equal = [
        spec.label not in o and any(t.state(a) in REPLICATED and t.mesh.shape[a] > 1 for a in spec.axes)
        for o, t in zip(outputs, results, strict=True)
    ]
    size = moved.local_shape[moved_labels.index(spec.label)]

    def product(i: int, piece: Any, other: Any, at: Any, width: int) -> Any:
        other = _part(other, inputs[i][1 - positions[i]], spec.label, at, width)
        pair = (piece, other) if positions[i] == 0 else (other, piece)
        return Einsum(spec.equations[i], results[i].dtype_name, spec.precision)(*pair)

    def run(piece: Any, *others: Any) -> list[Any]:
        index = _index(spec, moved)
        ways = halves(size, spec.both)
        halves_of_piece = [
            lax.slice_in_dim(piece, h.start, h.start + h.size, axis=moved_labels.index(spec.label)) for h in ways
        ]
        # Both directions share the sums; the other results are merged at the end.
        slots = [[k if spec.label in o else 0 for o in outputs] for k in range(len(ways))]
        accumulated: list[list[Any]] = [[None] * len(others) for _ in ways]
        for step in range(n):
            for k, h in enumerate(ways):
                previous = [accumulated[slot][i] for i, slot in enumerate(slots[k])]
                zero = sum(_zero_after(x) for x in previous if x.size) if step else 0
                x = halves_of_piece[k]
                if step:  # wait for ``zero``
                    x = jnp.where(zero == 0, x, jnp.zeros_like(x))
                source = (index - h.step * step) % n + zero
                if step < n - 1:
                    halves_of_piece[k] = _shift(x, h.step, spec, moved)
                for i, other in enumerate(others):
                    update = product(i, x, other, source * size + h.start, h.size)
                    slot = slots[k][i]
                    if equal[i]:
                        accumulated[slot][i] = _stored(
                            accumulated[slot][i], update, source * len(ways) + k, n * len(ways)
                        )
                    else:
                        accumulated[slot][i] = _joined(accumulated[slot][i], update, outputs[i], spec.label, source, n)
        merged = [_merged(both, o, spec.label, n) for *both, o in zip(*accumulated, outputs, strict=True)]
        return [jnp.sum(x, 0, dtype=x.dtype) if e else x for x, e in zip(merged, equal, strict=True)]

    return run


def _joined(result: Any, update: Any, output: str, label: str, source: Any, n: int) -> Any:
    """The result with the product of one piece written at its place, or added."""
    if label not in output:
        return update if result is None else result + update
    d = output.index(label)
    size = update.shape[d]
    if result is None:
        result = jnp.zeros((*update.shape[:d], n * size, *update.shape[d + 1 :]), update.dtype)
    return lax.dynamic_update_slice_in_dim(result, update, source * size, d)


def _stored(terms: Any, update: Any, place: Any, count: int) -> Any:
    """The terms with one more: they arrive in another order on each device, and floating-point sums depend on it."""
    if terms is None:
        terms = jnp.zeros((count, *update.shape), update.dtype)
    return lax.dynamic_update_index_in_dim(terms, update, place, 0)


def _merged(parts: Sequence[Any], output: str, label: str, n: int) -> Any:
    """Joins the results of both directions: the halves of each piece side by side."""
    if len(parts) == 1 or label not in output:
        return parts[0]
    d = output.index(label)
    before, after = parts[0].shape[:d], parts[0].shape[d + 1 :]
    halves_of_pieces = [x.reshape(*before, n, x.shape[d] // n, *after) for x in parts]
    size = sum(x.shape[d] for x in parts)
    return jnp.concatenate(halves_of_pieces, d + 1).reshape(*before, size, *after)


@functools.lru_cache(maxsize=CACHE_SIZE)
def scattering(spec: RingSpec, result: ShType) -> Callable[..., list[Any]]:
    """A scattered sum of products: ``(lhs, rhs, lhs, rhs, ...) -> [result]``; ``result`` is the type of the shard."""
    n = result.mesh.product(spec.axes)
    parts = [equation.split("->") for equation in spec.equations]
    output = parts[0][1]
    size = result.local_shape[output.index(spec.label)]

    def term(operands: Sequence[Any], at: Any, width: int) -> Any:
        total = None
        for i, (inputs, _) in enumerate(parts):
            pair = [
                _part(x, labels, spec.label, at, width)
                for x, labels in zip(operands[2 * i : 2 * i + 2], inputs.split(","), strict=True)
            ]
            product = Einsum(spec.equations[i], result.dtype_name, spec.precision)(*pair)
            total = product if total is None else total + product
        return total

    def run(*operands: Any) -> list[Any]:
        index = _index(spec, result)
        ways = halves(size, spec.both)
        sums: list[Any] = [None] * len(ways)
        for step in range(n):
            zero = sum(_zero_after(x) for x in sums if x.size) if step else 0
            for k, h in enumerate(ways):
                arrived = _shift(sums[k], h.step, spec, result) if step else None
                # It moves in each remaining step, and ends on the device that keeps it.
                at = (index + h.step * (n - 1 - step)) % n * size + h.start + zero
                product_sum = term(operands, at, h.size)
                sums[k] = product_sum if arrived is None else arrived + product_sum
        return [(sums[0] if len(sums) == 1 else jnp.concatenate(sums, output.index(spec.label)))]

    return run
