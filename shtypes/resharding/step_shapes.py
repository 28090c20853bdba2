"""Faster steps between the same types, which send no more bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from shtypes.resharding.moves import Kind
from shtypes.resharding.steps import Step, after_common
from shtypes.types import ShType, State

#: The size of a shard from which a copy costs more than a launch.
LARGE: Final = 1 << 20
#: The maximum number of devices, and of pieces of a shard, in a permute of pieces.
_DEVICES: Final = 64
_PIECES: Final = 8
_MOVING: Final = frozenset({Kind.SLICE, Kind.ALL_TO_ALL, Kind.PERMUTE})
_COPYING: Final = _MOVING | {Kind.ALL_GATHER}
_FAMILY: Final = (State.UNREDUCED, State.VARYING)


def shaped(src: ShType, dst: ShType, steps: Sequence[Step]) -> list[Step]:
    """Replaces steps of large shards: permutes of pieces, and all-gathers of several dims in two steps."""
    out: list[Step] = []
    for copying, run in itertools.groupby(steps, lambda s: s.kind in _COPYING and s.dst.local_bytes >= LARGE):
        run_steps = list(run)
        if copying:
            ends = (out[-1].dst if out else src, dst if run_steps[-1] is steps[-1] else run_steps[-1].dst)
            run_steps = _quickest(src, *ends, run_steps)
        out += [part for step in run_steps for part in _gathers(step)]
    return out


def _quickest(like: ShType, src: ShType, dst: ShType, steps: list[Step]) -> list[Step]:
    """Replaces steps without sums by one permute of pieces, if the last transposes the shard, or else parts of them.

    A gather along a dim other than the major one costs one more copy, and twice the memory.
    """
    one = _in_pieces(like, src, dst, steps)
    if one is not None and _transposes(steps[-1]) and (one.bytes <= _bytes(steps) and one.launches <= _launches(steps)):
        return [one]
    out: list[Step] = []
    for moving, run in itertools.groupby(steps, lambda s: s.kind in _MOVING):
        run_steps = list(run)
        if moving and any(s.kind is Kind.ALL_TO_ALL for s in run_steps):
            one = _in_pieces(
                like, out[-1].dst if out else src, dst if run_steps[-1] is steps[-1] else run_steps[-1].dst, run_steps
            )
            if one is not None and (one.bytes, one.launches) <= (_bytes(run_steps), _launches(run_steps)):
                run_steps = [one]
        out += run_steps
    return out


def _transposes(step: Step) -> bool:
    """Whether a gather joins pieces along a dim with others before it."""
    dims = [d for d, axes in enumerate(step.lost) if axes]
    return step.kind is Kind.ALL_GATHER and any(n > 1 for n in step.dst.local_shape[: dims[-1]])


def _bytes(steps: Sequence[Step]) -> int:
    return sum(s.bytes for s in steps)


def _launches(steps: Sequence[Step]) -> int:
    return sum(s.launches for s in steps)


def _in_pieces(like: ShType, src: ShType, dst: ShType, steps: Sequence[Step]) -> Step | None:
    """One permute of pieces for several steps, or for an all-to-all; None if impossible, or with too many pieces.

    It sends each device what it lacks, directly from its holder. Each device copies its shard twice, where an
    all-to-all cuts, sends and joins all of it.
    """
    if (len(steps) == 1 and steps[0].kind is not Kind.ALL_TO_ALL) or any(t.shape != like.shape for t in (src, dst)):
        return None
    if src.mesh is not dst.mesh or any(src.axes(s) != dst.axes(s) for s in _FAMILY):
        return None
    changing: set[str] = set()
    for a, b in zip(src.dims, dst.dims, strict=True):
        changing.update(after_common(a.axes, b.axes), after_common(b.axes, a.axes))
    step = Step(Kind.PERMUTE, tuple(a for a in src.mesh.axis_names if a in changing), src, dst)
    parts = math.prod(n // math.gcd(n, m) for n, m in zip(dst.local_shape, src.local_shape, strict=True))
    return None if step.group > _DEVICES or parts > _PIECES or step.pieces is None else step


def _gathers(step: Step) -> Iterator[Step]:
    """Splits an all-gather into one along the major dim, and after that one along the others.

    Pieces gathered along the major dim are contiguous. Along other dims the shard is transposed afterwards, so that is
    done while it is small.
    """
    src, dst = step.src, step.dst
    dims = [d for d, axes in enumerate(step.lost) if axes]
    if step.kind is not Kind.ALL_GATHER or len(dims) < 2 or dst.local_bytes < LARGE:
        yield step
        return
    if any(n > 1 for n in dst.local_shape[: dims[0]]):
        yield step
        return
    axes = tuple(a for a in step.axes if a not in src.dims[dims[0]].axes)
    dims_between = [d._replace(axes=tuple(a for a in d.axes if a not in axes)) for d in src.dims]
    between = src.replace(dims=dims_between, states=src.beside_dims | {a: dst.state(a) for a in axes})
    yield Step(step.kind, axes, src, between)
    yield Step(step.kind, tuple(a for a in step.axes if a not in axes), between, dst)
