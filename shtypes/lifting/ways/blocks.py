"""Pads blocks, and not their elements: ``jnp.pad(x, 64).reshape(-1, 64)`` as ``jnp.pad(x.reshape(-1, 64), 1)``.

As attention to neighbouring blocks is written. No devices divide the size in between, but that of the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax import lax

from shtypes._compat.jaxprs import is_literal
from shtypes.lifting.ways.moving import padding_of
from shtypes.lifting.ways.opened import equations_of
from shtypes.lifting.ways.uses import Pairs


def with_padded_blocks(jaxpr: Any) -> Any:
    """Pads dims after they are split into blocks that are padded as a whole, and crops such before they are merged."""
    return _Swapping(jaxpr, "reshape").program()


class _Swapping(Pairs):
    """Swaps pads and reshapes of blocks."""

    def rewritten(self, eqn: Any) -> list[Any]:
        """An equation, or it and the one before in the other order."""
        first = self.maker_alone(eqn)
        return (first is not None and _swapped(first, eqn)) or [eqn]


def _swapped(first: Any, second: Any) -> list[Any] | None:
    """The other order of a pad and a reshape of blocks; None if they are not such."""
    splits = second.primitive.name == "reshape" and first.primitive.name == "pad"
    if not splits and (first.primitive.name != "reshape" or second.primitive.name not in ("pad", "slice")):
        return None
    reshape, pad = (second, first) if splits else (first, second)
    pads = padding_of(pad) or {}
    moved = [d for d, each in pads.items() if any(each)]
    flat, blocks = (reshape.invars[0], reshape.outvars[0]) if splits else (reshape.outvars[0], reshape.invars[0])
    if len(moved) != 1 or reshape.params["dimensions"] is not None or is_literal(pad.invars[0]):
        return None
    low, high, gap = pads[moved[0]]
    found = _block(flat.aval.shape, blocks.aval.shape, *moved)
    if found is None or gap or low % found[1] or high % found[1]:
        return None
    (e, size), shape = found, second.outvars[0].aval.shape
    low, high = low // size, high // size

    def swapped(x: Any, *fill: Any) -> Any:
        if splits:
            x = x.reshape([n - (low + high if d == e else 0) for d, n in enumerate(blocks.aval.shape)])
        config = [(low, high, 0) if d == e else (0, 0, 0) for d in range(x.ndim)]
        y = lax.pad(x, fill[0], config) if fill else lax.slice_in_dim(x, -low, x.shape[e] + high, axis=e)
        return [y.reshape(shape)]

    return equations_of(swapped, [first.invars[0], *pad.invars[1:]], second, second.outvars)[0]


def _block(flat: Sequence[int], blocks: Sequence[int], d: int) -> tuple[int, int] | None:
    """The dim of the blocks into which a dim is split, and the size of each; None if there is none."""
    before = math.prod(flat[:d])
    for e in range(len(blocks)):
        if math.prod(blocks[:e]) == before and blocks[e] > 1 and flat[d] % blocks[e] == 0 and flat[d] > blocks[e]:
            inner = next((k for k in range(e + 1, len(blocks) + 1) if math.prod(blocks[e:k]) == flat[d]), None)
            return None if inner is None else (e, flat[d] // blocks[e])
    return None
