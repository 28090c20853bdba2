"""How much memory buffers need together, laid out as the compiler does: the largest first, each as low as it fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shtypes.analysis.memory.graph import Value
from shtypes.analysis.memory.liveness import Buffer

#: What is smaller than this part of the largest is added up and not laid out.
_SMALL: Final = 1 / 1000


def packed(buffers: Sequence[Buffer]) -> int:
    """The bytes that buffers need: results have their own, which others may have before them; the rest share one."""
    results = sorted((b for b in buffers if b.result), key=lambda b: -b.bytes)
    hosted: dict[Buffer, list[Buffer]] = {b: [b] for b in results}
    others = sorted((b for b in buffers if not b.result), key=lambda b: (-b.bytes, b.start))
    least = max((b.bytes for b in others), default=0) * _SMALL
    left = [b for b in others if b.bytes >= least and not _hosted(b, hosted)]
    small = [b for b in others if b.bytes < least]
    return sum(b.bytes for b in results) + _heap(left) + peak(small)


def _hosted(buffer: Buffer, hosted: dict[Buffer, list[Buffer]]) -> bool:
    """Puts a buffer into the memory of a result that has room for it all its life, if there is one."""
    for result, inside in hosted.items():
        if buffer.bytes <= result.bytes and not any(_meet(buffer, b) for b in inside):
            inside.append(buffer)
            return True
    return False


def _heap(buffers: Sequence[Buffer]) -> int:
    """The size of a heap for buffers, which come by size."""
    placed: list[tuple[int, Buffer]] = []
    size = 0
    for buffer in buffers:
        place, best, room = 0, None, None
        for low, other in sorted(((low, b) for low, b in placed if _meet(buffer, b)), key=lambda p: p[0]):
            gap = low - place
            if gap >= buffer.bytes and (room is None or gap < room):
                best, room = place, gap
            place = max(place, low + other.bytes)
        at = place if best is None else best
        placed.append((at, buffer))
        size = max(size, at + buffer.bytes)
    return size


def _meet(a: Buffer, b: Buffer) -> bool:
    return a.start <= b.end and b.start <= a.end


def peak(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are in use at once."""
    return sum(v.bytes for v in live(buffers))


def live(buffers: Sequence[Buffer]) -> list[Value]:
    """What is in use when most is."""
    change: dict[int, int] = {}
    for b in buffers:
        change[b.start] = change.get(b.start, 0) + b.bytes
        change[b.end + 1] = change.get(b.end + 1, 0) - b.bytes
    now, most, when = 0, 0, -1
    for time in sorted(change):
        now += change[time]
        if now > most:
            most, when = now, time
    return [b.at(when) for b in buffers if b.start <= when <= b.end]
