"""Reshards that stand for several of the program's: what `traced.merging` puts in their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from shtypes.core.hitype import HiShType
from shtypes.core.operation import Sending
from shtypes.primitives.reshard import Reshard
from shtypes.resharding.transport import one_transport

#: What each reshard has of its own; the others of its fields are options, which only alike ones share.
_OWN: Final = {"src", "dst", "inserted", "constant", "transport", "merged"}


@dataclass(frozen=True, eq=False)
class MergedReshard(Reshard):
    """One reshard in the place of several."""

    merged: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class AbsorbedReshard(Reshard):
    """A reshard that another one does too: it sends nothing. For reports; no program has it."""

    def forth(self) -> list[Sending]:
        return []

    def back(self) -> list[Sending]:
        return []


def direct(moves: Sequence[Reshard], src: HiShType, dst: HiShType) -> MergedReshard | None:
    """One reshard for several that are alike but for their types; None where their options differ."""
    options = {tuple(sorted(_options(move).items())) for move in moves}
    transport = one_transport([move.transport for move in moves])
    if len(options) != 1 or transport is None:
        return None
    inserted = all(move.inserted for move in moves)
    constant = any(move.constant for move in moves)
    return MergedReshard(src, dst, inserted, constant, transport, **dict(options.pop()))


def absorbed(move: Reshard) -> AbsorbedReshard:
    """The reshard, when another one does it too."""
    return AbsorbedReshard(move.src, move.dst, move.inserted, move.constant, move.transport, **_options(move))


def _options(move: Reshard) -> dict[str, Any]:
    """What a reshard says besides its types."""
    return {f.name: getattr(move, f.name) for f in dataclasses.fields(move) if f.name not in _OWN}


__all__ = ["AbsorbedReshard", "MergedReshard", "absorbed", "direct"]
