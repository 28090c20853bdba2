"""Pads blocks, and not their elements: ``jnp.pad(x, 64).reshape(-1, 64)`` as ``jnp.pad(x.reshape(-1, 64), 1)``.

As attention to neighbouring blocks is written. No devices divide the size in between, but that of the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shtypes._compat.jaxprs import is_literal, variable
from shtypes.lifting.ways.paddings import cuts_of, pad_of
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
    if reshape.params["dimensions"] is not None:
        return None
    if pad.primitive.name == "pad":
        pads = dict(enumerate(map(pad_of, pad.params["padding_config"])))
    elif (cuts := cuts_of(pad)) is not None:
        pads = {d: (-low, -high, 0) for d, (low, high, _) in cuts.items()}
    else:
        return None
    moved = [d for d, each in pads.items() if any(each)]
    flat, blocks = (reshape.invars[0], reshape.outvars[0]) if splits else (reshape.outvars[0], reshape.invars[0])
    if (
        len(moved) != 1
        or is_literal(pad.invars[0])
        or (found := _block(flat.aval.shape, blocks.aval.shape, *moved)) is None
    ):
        return None
    (d,), (e, size) = moved, found
    low, high, gap = pads[d]
    if gap or low % size or high % size:
        return None
    return _ordered(reshape, pad, splits, d, e, (low // size, high // size))


def _block(flat: Sequence[int], blocks: Sequence[int], d: int) -> tuple[int, int] | None:
    """The dim of the blocks into which a dim is split, and the size of each; None if there is none."""
    before = math.prod(flat[:d])
    for e in range(len(blocks)):
        if math.prod(blocks[:e]) == before and blocks[e] > 1 and flat[d] % blocks[e] == 0 and flat[d] > blocks[e]:
            inner = next((k for k in range(e + 1, len(blocks) + 1) if math.prod(blocks[e:k]) == flat[d]), None)
            return None if inner is None else (e, flat[d] // blocks[e])
    return None


def _ordered(reshape: Any, pad: Any, splits: bool, d: int, e: int, by: tuple[int, int]) -> list[Any]:
    """The pad of dim ``e`` of the blocks and the reshape, in the other order."""
    x, y = (pad.invars[0], reshape.outvars[0]) if splits else (reshape.invars[0], pad.outvars[0])
    shape = list(y.aval.shape if splits else x.aval.shape)
    shape[e] += -sum(by) if splits else sum(by)
    between = variable(x.aval.update(shape=tuple(shape)))
    source, target = (between, y) if splits else (x, between)
    if pad.primitive.name == "pad":
        config = tuple((*by, 0) if k == e else (0, 0, 0) for k in range(len(shape)))
        of_blocks = pad.replace(invars=[source, pad.invars[1]], outvars=[target], params={"padding_config": config})
    else:
        sizes = source.aval.shape
        starts = tuple(-by[0] if k == e else 0 for k in range(len(sizes)))
        ends = tuple(n + by[1] if k == e else n for k, n in enumerate(sizes))
        params = {"start_indices": starts, "limit_indices": ends, "strides": None}
        of_blocks = pad.replace(invars=[source], outvars=[target], params=params)
    params = reshape.params | {"new_sizes": tuple(shape) if splits else y.aval.shape}
    reshaped = reshape.replace(invars=[x if splits else between], outvars=[between if splits else y], params=params)
    return [reshaped, of_blocks] if splits else [of_blocks, reshaped]
