"""The mesh as a picture: a grid of devices over its last two axes, and a frame for each place on the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from html import escape
from typing import Final

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
