"""Pictures of a listing: the mesh as SVG, and the bytes that each device sends as a plot of matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, Final

from shtypes.analysis.explain.document import Listing
from shtypes.traced.ledger import Ledger
from shtypes.types.mesh import Mesh

#: Devices that are drawn along one axis, and along one of several frames; of a longer one, the text tells the size.
MOST: Final = 8
MOST_IN_FRAMES: Final = 4
_FRAMES: Final = 4
_CELL, _GAP, _PAD, _TEXT = 34, 5, 12, 16


def mesh_svg(mesh: Mesh) -> str:
    """An SVG of a mesh; its colours follow the page's text."""
    shape = list(mesh.shape.items())
    *outer, rows, columns = [("", 1), ("", 1), *shape][-max(len(shape), 2) :]
    frames = 1
    for _, size in outer:
        frames *= size
    shown, most = min(frames, _FRAMES), MOST if frames == 1 else MOST_IN_FRAMES
    drawn = min(rows[1], most), min(columns[1], most)
    height, width = (n * (_CELL + _GAP) + 2 * _PAD for n in drawn)
    left, top = (_TEXT + 10 if rows[0] else 0), _TEXT + 8
    total_width = left + shown * (width + 12) + (60 if columns[1] > most or frames > shown else 0)
    total_height = top + height + (_TEXT if rows[1] > most or outer else 0) + 4
    label = f"mesh of {mesh.size} devices: " + ", ".join(f"{axis} of size {size}" for axis, size in shape)
    parts = [
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {total_width} {total_height}" '
        f'width="{total_width}" height="{total_height}" fill="none" stroke="currentColor" '
        'font-family="ui-monospace, monospace" font-size="12">'
    ]
    for i in range(shown):
        parts += _frame((left + i * (width + 12), top, width, height), drawn, i * rows[1] * columns[1], columns[1])
    parts.append(_text(left + width / 2, _TEXT, _axis(columns), "middle"))
    if rows[0]:
        x, y = _TEXT - 4, top + height / 2
        parts.append(_text(x, y, _axis(rows), "middle", f' transform="rotate(-90 {x} {y})"'))
    if outer:
        axes = ", ".join(_axis(pair) for pair in outer)
        parts.append(_text(left, total_height - 4, f"one frame for each of {axes}", "start"))
    if columns[1] > most or frames > shown:
        parts.append(_text(left + shown * (width + 12), top + height / 2, "…", "start"))
    return "".join([*parts, "</svg>"])


def _frame(box: tuple[float, float, float, float], drawn: tuple[int, int], first: int, row: int) -> Iterator[str]:
    """One grid of devices; ``first`` is the number of its first one, ``row`` how many a whole row has."""
    x, y, width, height = box
    yield f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" stroke-opacity=".25"/>'
    for r, c in itertools.product(*map(range, drawn)):
        left, top = x + _PAD + c * (_CELL + _GAP), y + _PAD + r * (_CELL + _GAP)
        place = f'x="{left}" y="{top}" width="{_CELL}" height="{_CELL}" rx="5"'
        yield f'<rect {place} fill="currentColor" fill-opacity=".06" stroke-opacity=".5"/>'
        yield _text(left + _CELL / 2, top + _CELL / 2 + 4, str(first + r * row + c), "middle")


def _axis(pair: tuple[str, int]) -> str:
    return f"{pair[0]}={pair[1]}" if pair[0] else ""


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    fill = f'stroke="none" fill="currentColor" text-anchor="{anchor}"{more}'
    return f'<text x="{x}" y="{y}" {fill}>{escape(text)}</text>' if text else ""


DIRECTIONS: Final = ("forward", "recomputed", "backward")
_COLOURS: Final = {"forward": "#2b7bb9", "recomputed": "#b8a93a", "backward": "#a2558f"}


class MissingPlotError(ImportError):
    """Matplotlib is not installed."""


def plot(listing: Listing, path: str | Path | None = None) -> Any:
    """Draws the plot; see `Explanation.plot`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPlotError("a plot needs matplotlib: pip install 'shtypes[plot]'") from None
    sent = bytes_sent(listing.ledger)
    groups = list(dict.fromkeys(axes for axes, _ in sent)) or ["no collectives"]
    directions = [d for d in DIRECTIONS if any(key[1] == d for key in sent)]
    figure = Figure(figsize=(max(4.5, 1.6 + 1.3 * len(groups)), 3.4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(len(directions), 1)
    for i, direction in enumerate(directions):
        places = [g - 0.4 + width * (i + 0.5) for g in range(len(groups))]
        heights = [sent.get((group, direction), 0) for group in groups]
        bars = axes.bar(places, heights, width * 0.94, label=direction, color=_COLOURS[direction])
        axes.bar_label(bars, labels=[f"{h:,}" if h else "" for h in heights], fontsize=7, padding=2)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlabel("mesh axes")
    axes.set_ylabel("bytes that each device sends")
    axes.set_title(f'{listing.function}, policy "{listing.policy}"', fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.15)
    if directions:
        axes.legend(frameon=False)
    if path is not None:
        figure.savefig(path, dpi=160)
    return figure


def bytes_sent(ledger: Ledger) -> dict[tuple[str, str], int]:
    """The bytes for each group of axes, joined with commas, and each direction."""
    sent: dict[tuple[str, str], int] = {}
    for axes in ledger.by_axes():
        of_axes = ledger.select(lambda entry, axes=axes: entry.axes == axes)  # type: ignore[misc]
        for direction, total in of_axes.by_direction().items():
            sent[", ".join(axes), direction] = total.bytes
    return sent
