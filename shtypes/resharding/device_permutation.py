"""Permutes of pieces of shards, in rounds, so that each device receives only what it lacks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from shtypes.types import ShType
from shtypes.types.mesh import Mesh

#: A start index along each dim.
Offset: TypeAlias = tuple[int, ...]


class Round(NamedTuple):
    """One piece from each device."""

    pairs: tuple[tuple[int, int], ...]  # (source, destination), by index along the axes; empty for a local copy
    cut: tuple[Offset, ...]  # for each device, the piece's start in its old shard
    put: tuple[Offset, ...]  # for each device, the received piece's start in its new shard


class Pieces(NamedTuple):
    """Rounds that build new shards from pieces of the old ones."""

    shape: Offset  # of a piece
    rounds: tuple[Round, ...]


class _Message(NamedTuple):
    source: int
    target: int
    cut: Offset
    put: Offset


def pieces_of(src: ShType, dst: ShType, axes: tuple[str, ...]) -> Pieces | None:
    """The rounds between two types with the same pending sums; None if a device would send too much.

    Devices are numbered along ``axes``: all that shard either type beyond those that begin a dim in both.
    """
    sizes = [src.mesh.shape[a] for a in axes]
    places = [dict(zip(axes, at, strict=True)) for at in itertools.product(*map(range, sizes))]
    shape = tuple(map(math.gcd, src.local_shape, dst.local_shape))
    had = [dict(_grid(src, at, shape)) for at in places]
    holders: dict[Offset, list[int]] = {}
    for device, grid in enumerate(had):
        for piece in grid:
            holders.setdefault(piece, []).append(device)
    needs = [dict(_grid(dst, at, shape)) for at in places]
    rounds = max(sum(piece not in had[device] for piece in grid) for device, grid in enumerate(needs))
    staying = math.prod(dst.local_shape) // math.prod(shape) - rounds
    stay: list[list[_Message]] = []
    messages: list[_Message] = []
    for device, grid in enumerate(needs):
        local_messages = [_Message(device, device, had[device][p], put) for p, put in grid.items() if p in had[device]]
        stay.append(local_messages[:staying])
        messages += local_messages[staying:]
    load = [sum(m.source == device for m in messages) for device in range(len(places))]
    lacking = [[(p, put) for p, put in grid.items() if p not in had[i]] for i, grid in enumerate(needs)]
    for row in itertools.zip_longest(*lacking):
        for target, wanted_piece in enumerate(row):
            if wanted_piece is not None:
                piece, put = wanted_piece
                source = min(holders[piece], key=lambda d: load[d])
                load[source] += 1
                messages.append(_Message(source, target, had[source][piece], put))
    if max(load) > rounds:
        return None
    local = [_round([local_messages[k] for local_messages in stay], len(places)) for k in range(staying)]
    return Pieces(
        shape, (*local, *(_round(messages_of_round, len(places)) for messages_of_round in _rounds(messages, rounds)))
    )


def _grid(t: ShType, at: Mapping[str, int], shape: Offset) -> Iterator[tuple[Offset, Offset]]:
    """The pieces of a device: their starts in the array and in the shard."""
    first = [index_along(t.mesh, d.axes, at) * n for d, n in zip(t.dims, t.local_shape, strict=True)]
    for offset in itertools.product(*(range(0, n, step) for n, step in zip(t.local_shape, shape, strict=True))):
        yield tuple(a + b for a, b in zip(first, offset, strict=True)), offset


def index_along(mesh: Mesh, axes: Iterable[str], at: Mapping[str, int]) -> int:
    """The index along some axes of a device at the mesh indices ``at``; axes not in ``at`` are skipped."""
    n = 0
    for axis in axes:
        if axis in at:
            n = n * mesh.shape[axis] + at[axis]
    return n


def _round(messages: list[_Message], devices: int) -> Round:
    rank = len(messages[0].cut)
    cut, put = [(0,) * rank] * devices, [(0,) * rank] * devices
    for m in messages:
        cut[m.source], put[m.target] = m.cut, m.put
    pairs = tuple(sorted((m.source, m.target) for m in messages))
    return Round(pairs if any(a != b for a, b in pairs) else (), tuple(cut), tuple(put))


def _rounds(messages: list[_Message], count: int) -> list[list[_Message]]:
    """Splits messages into rounds in which each device sends and receives one: bipartite edge colouring (Kőnig)."""
    sent: dict[tuple[int, int], _Message] = {}  # by device and round
    got: dict[tuple[int, int], _Message] = {}
    for message in messages:
        a = next(k for k in range(count) if (message.source, k) not in sent)
        b = next(k for k in range(count) if (message.target, k) not in got)
        path = []  # the alternating path of messages in rounds a and b, from the target on
        at = got.get((message.target, a))
        while at is not None:
            path.append((at, a))
            at = sent.get((at.source, b))
            if at is not None:
                path.append((at, b))
                at = got.get((at.target, a))
        for m, k in path:
            del sent[m.source, k], got[m.target, k]
        for m, k in [*((m, a + b - k) for m, k in path), (message, a)]:
            sent[m.source, k] = got[m.target, k] = m
    return [[m for (_, k), m in sent.items() if k == number] for number in range(count)]
