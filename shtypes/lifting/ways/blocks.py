"""Pads blocks, and not their elements: ``jnp.pad(x, 64).reshape(-1, 64)`` as ``jnp.pad(x.reshape(-1, 64), 1)``.

As attention to neighbouring blocks is written. No devices divide the size in between, but that of the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import is_literal, variable, with_equations
from shtypes.evaluation.undo_ravel import used
from shtypes.lifting.ways.paddings import cuts_of, marked, pad_of, readers, variables, with_moves_opened


def with_padded_blocks(jaxpr: Any) -> Any:
    """Pads dims after they are split into blocks that are padded as a whole, and crops such before they are merged."""
    reshapes = [e for e in jaxpr.eqns if e.primitive.name == "reshape"]
    if not reshapes:
        return jaxpr
    flat = with_moves_opened(jaxpr, reshapes)
    of, count = marked(flat), readers(flat)
    made: dict[Any, Any] = {}
    eqns: list[Any] = []
    swapped = False
    for eqn in flat.eqns:
        x = of.get(eqn.invars[0], eqn.invars[0]) if variables(eqn.invars[:1]) else None
        may = x in made and count[x] == 1 and set_at(made[x]) == set_at(eqn)
        both = _swapped(made[x], eqn) if may else None
        swapped |= both is not None
        made.update((v, e) for e in both or [eqn] for v in e.outvars)
        eqns += both or [eqn]
    return with_equations(jaxpr, used(eqns, jaxpr.outvars), jaxpr.outvars) if swapped else jaxpr


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
