"""Steps as they run quickest: other steps between the same types, which send as many bytes or fewer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from shtypes.plans.moves import Kind
from shtypes.plans.steps import Step, after_common
from shtypes.types import ShType, State

#: Bytes of a shard from which going over it once more takes longer than another launch.
_LARGE: Final = 1 << 20
#: Devices that exchange pieces, and pieces of a shard, at most.
_DEVICES: Final = 64
_PIECES: Final = 8
_MOVING: Final = frozenset({Kind.SLICE, Kind.ALL_TO_ALL, Kind.PERMUTE})
_FAMILY: Final = (State.UNREDUCED, State.VARYING)


def shaped(src: ShType, dst: ShType, steps: Sequence[Step]) -> list[Step]:
    """Steps that do the same, where shards are large: shards in pieces, and all-gathers of several dims in two."""
    out: list[Step] = []
    for moving, run in itertools.groupby(steps, lambda s: s.kind in _MOVING and s.dst.local_bytes >= _LARGE):
        found = list(run)
        if moving:
            before = out[-1].dst if out else src
            last = found[-1] is steps[-1]
            found = _in_pieces(src, before, dst if last else found[-1].dst, found)
        out += [part for step in found for part in _gathers(step)]
    return out


def _in_pieces(like: ShType, src: ShType, dst: ShType, steps: list[Step]) -> list[Step]:
    """One permute of pieces instead of all-to-alls and permutes, if it sends no more.

    It gives each device what it lacks, straight from where it is, so it never sends more than these. Each device goes
    over its shard twice, where an all-to-all cuts it, sends all of it and joins it.
    """
    if not any(s.kind is Kind.ALL_TO_ALL for s in steps) or any(t.shape != like.shape for t in (src, dst)):
        return steps
    if src.mesh is not dst.mesh or any(src.axes(s) != dst.axes(s) for s in _FAMILY):
        return steps
    changing: set[str] = set()
    for a, b in zip(src.dims, dst.dims, strict=True):
        changing.update(after_common(a.axes, b.axes), after_common(b.axes, a.axes))
    step = Step(Kind.PERMUTE, tuple(a for a in src.mesh.axis_names if a in changing), src, dst)
    parts = math.prod(n // math.gcd(n, m) for n, m in zip(dst.local_shape, src.local_shape, strict=True))
    if step.group > _DEVICES or parts > _PIECES or step.pieces is None:
        return steps
    before = sum(s.bytes for s in steps), sum(s.launches for s in steps)
    return [step] if (step.bytes, step.launches) <= before else steps


def _gathers(step: Step) -> Iterator[Step]:
    """An all-gather along the major dim by itself, after that along the others.

    Pieces that are gathered along the major dim lie one behind the other as they come. Along other dims the shard is
    transposed afterwards, so that is done while it is small.
    """
    src, dst = step.src, step.dst
    dims = [d for d, axes in enumerate(step.lost) if axes]
    if step.kind is not Kind.ALL_GATHER or len(dims) < 2 or dst.local_bytes < _LARGE:
        yield step
        return
    if any(n > 1 for n in dst.local_shape[: dims[0]]):
        yield step
        return
    axes = tuple(a for a in step.axes if a not in src.dims[dims[0]].axes)
    kept = [d._replace(axes=tuple(a for a in d.axes if a not in axes)) for d in src.dims]
    between = src.replace(dims=kept, states=src.beside_dims | {a: dst.state(a) for a in axes})
    yield Step(step.kind, axes, src, between)
    yield Step(step.kind, tuple(a for a in step.axes if a not in axes), between, dst)
