"""Pads blocks, and not their elements: ``jnp.pad(x, 64).reshape(-1, 64)`` as ``jnp.pad(x.reshape(-1, 64), 1)``.

As attention to neighbouring blocks is written. No devices divide the size in between, but that of the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from jax import lax

from shtypes._compat.jaxprs import is_literal
from shtypes._compat.plain_programs import bind_in_program
from shtypes.lifting.ways.moving import cuts_of, padding_of
from shtypes.lifting.ways.opened import equations_of
from shtypes.lifting.ways.uses import Pairs

#: The primitives by which dims are split, merged and turned, and dims of size 1 come and go.
_RESHAPES: Final = ("reshape", "squeeze", "broadcast_in_dim", "reduce_sum", "transpose")


def with_padded_blocks(jaxpr: Any) -> Any:
    """Pads dims after they are split into blocks that are padded as a whole, and crops such before they are merged.

    Crops sums before they are added: in gradients of what several parts were taken of, these are padded and added.
    """
    return _Swapping(jaxpr, *_RESHAPES, "add_any").program()


class _Swapping(Pairs):
    """Swaps pads and reshapes of blocks, and sums and crops."""

    def rewritten(self, eqn: Any) -> list[Any]:
        """An equation, or it and the one before in the other order."""
        first = self.maker_alone(eqn)
        swapped = None if first is None else _swapped(first, eqn) or _of_terms(first, eqn)
        return [eqn] if swapped is None else [y for e in swapped for y in self.rewritten(e)]


def _of_terms(added: Any, crop: Any) -> list[Any] | None:
    """The sum of the cropped terms of a sum; None if these are not such."""
    cuts = cuts_of(crop) or {}
    if added.primitive.name != "add_any" or not any(map(any, cuts.values())):
        return None

    def cropped(*terms: Any) -> Any:
        ends = [(cuts[d][0], n - cuts[d][1]) for d, n in enumerate(terms[0].shape)]
        return bind_in_program(added, [lax.slice(x, *zip(*ends, strict=True)) for x in terms])

    return equations_of(cropped, added.invars, crop, crop.outvars)[0]


def _swapped(first: Any, second: Any) -> list[Any] | None:
    """The other order of a pad and a reshape of blocks, or a transpose; None if they are not such."""
    splits = _reshapes(second) and first.primitive.name == "pad"
    if not splits and (not _reshapes(first) or second.primitive.name not in ("pad", "slice")):
        return None
    reshape, pad = (second, first) if splits else (first, second)
    pads = padding_of(pad) or {}
    moved = [d for d, each in pads.items() if any(each)]
    flat, blocks = (reshape.invars[0], reshape.outvars[0]) if splits else (reshape.outvars[0], reshape.invars[0])
    if len(moved) != 1 or is_literal(pad.invars[0]):
        return None
    low, high, gap = pads[moved[0]]
    turn, (d,) = reshape.params.get("permutation"), moved
    found = (turn.index(d) if splits else turn[d], 1) if turn else _block(flat.aval.shape, blocks.aval.shape, d)
    if found is None or gap or low % found[1] or high % found[1]:
        return None
    (e, size), shape = found, second.outvars[0].aval.shape
    low, high = low // size, high // size

    def swapped(x: Any, *fill: Any) -> Any:
        if splits:
            sizes = [n - (low + high if d == e else 0) for d, n in enumerate(blocks.aval.shape)]
            x = x.transpose(turn) if turn else x.reshape(sizes)
        config = [(low, high, 0) if d == e else (0, 0, 0) for d in range(x.ndim)]
        y = lax.pad(x, fill[0], config) if fill else lax.slice_in_dim(x, -low, x.shape[e] + high, axis=e)
        return [y if splits else y.transpose(turn) if turn else y.reshape(shape)]

    return equations_of(swapped, [first.invars[0], *pad.invars[1:]], second, second.outvars)[0]


def _reshapes(eqn: Any) -> bool:
    """Whether an equation changes the shape alone, or the order of dims."""
    name, p = eqn.primitive.name, eqn.params
    if name in ("broadcast_in_dim", "reduce_sum"):
        return bool(eqn.outvars[0].aval.size == eqn.invars[0].aval.size)
    return name in ("squeeze", "transpose") or (name == "reshape" and p["dimensions"] is None)


def _block(flat: Sequence[int], blocks: Sequence[int], d: int) -> tuple[int, int] | None:
    """The dim of the blocks into which a dim is split, and the size of each; None if there is none."""
    before = math.prod(flat[:d])
    for e in range(len(blocks)):
        if math.prod(blocks[:e]) == before and blocks[e] > 1 and flat[d] % blocks[e] == 0:
            inner = next((k for k in range(e + 1, len(blocks) + 1) if math.prod(blocks[e:k]) == flat[d]), None)
            return None if inner is None else (e, flat[d] // blocks[e])
    return None
