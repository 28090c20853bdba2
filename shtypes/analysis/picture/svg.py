"""The picture of a type: one cell for each device, in it the array with the device's part filled. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Final, NamedTuple

from shtypes.analysis.picture.holdings import Holding, grid, visible
from shtypes.types import ShType

#: The most devices along the last mesh axis, and the most rows of them.
COLUMNS: Final = 8
ROWS: Final = 12
#: The width and the height of a device's cell, and the largest side of the array in it.
CELL: Final = (108, 92)
SIDE: Final = 52
#: How far the planes of a third dim lie apart, and the most of them that are drawn.
SHIFT: Final = 6
PLANES: Final = 4
#: No part is drawn thinner.
LEAST: Final = 2.5
LEFT: Final = 96
TOP: Final = 84


class Box(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    def svg(self, style: str) -> str:
        """The element."""
        size = f'width="{self.width:.1f}" height="{self.height:.1f}"'
        return f'<rect x="{self.x:.1f}" y="{self.y:.1f}" {size} {style}/>'


def drawn_dims(t: ShType) -> tuple[int, ...]:
    """The dims that are drawn, at most three: the sharded ones first, then the last ones."""
    if t.ndim <= 3:
        return tuple(range(t.ndim))
    order = sorted(range(t.ndim), key=lambda i: (not t.dims[i].axes, -i))
    return tuple(sorted(order[:3]))


def draw(t: ShType, title: str, sentences: list[str]) -> str:
    """The picture as one SVG element; it takes its ink from the page around it."""
    rows = list(grid(t, ROWS, COLUMNS))
    outer, last = t.mesh.axis_names[:-1], (t.mesh.axis_names or ("",))[-1]
    across = visible(t.mesh.shape.get(last, 1), COLUMNS)
    parts: dict[object, int] = {}
    body: list[str] = []
    y = float(TOP)
    first = outer[0] if len(outer) > 1 else None
    before: int | None = None
    for place, cells in rows:
        group = None if place is None or first is None else place[first]
        if before is not None and group != before:
            y += 14  # the outermost of three axes is a gap
        before = group
        if place is None:
            body.append(_text(LEFT, y + 12, "⋮"))
            y += 20
            continue
        label = ", ".join(f"{axis}={i}" for axis, i in place.items())
        body.append(_text(LEFT - 10, y + CELL[1] / 2, label, anchor="end"))
        for j, cell in enumerate(cells):
            x = LEFT + j * CELL[0]
            if cell is None:
                body.append(_text(x + CELL[0] / 2, y + CELL[1] / 2, "…", anchor="middle"))
            else:
                colour = parts.setdefault(cell.part, len(parts))
                body += _cell(t, cell, x, y, colour)
        y += CELL[1]
    if last:
        for j, index in enumerate(across):
            shown = "…" if index is None else f"{last}={index}"
            body.append(_text(LEFT + j * CELL[0] + CELL[0] / 2, TOP - 8, shown, anchor="middle"))
    for i, sentence in enumerate(sentences):
        body.append(_text(8, y + 20 + 16 * i, sentence))
    width = max(LEFT + CELL[0] * len(across) + 8, 8 + 7 * max(map(len, [title, *sentences])))
    height = y + 20 + 16 * len(sentences)
    head = _text(8, 24, title, weight="bold")
    if len(drawn_dims(t)) < t.ndim:
        head += _text(8, 42, f"drawn: dims {', '.join(map(str, drawn_dims(t)))} of {t.ndim}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" font-family="ui-monospace, monospace" font-size="11" fill="currentColor">'
        f"<title>{html.escape(title)}</title>{_PATTERNS}{head}{''.join(body)}</svg>"
    )


#: Terms of a sum are hatched and values of their own dotted, over their colour.
_PATTERNS: Final = (
    "<defs>"
    '<pattern id="shtypes-term" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="3" height="6" fill="#fff" fill-opacity=".55"/></pattern>'
    '<pattern id="shtypes-own" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<circle cx="3" cy="3" r="1.4" fill="#fff" fill-opacity=".8"/></pattern>'
    "</defs>"
)


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{html.escape(text)}</text>'


def _cell(t: ShType, cell: Holding, x: float, y: float, colour: int) -> Iterator[str]:
    """One device: the outline of the whole array, and its part in the colour that copies share."""
    yield f"<g><title>{html.escape(cell.words(t))}</title>"
    frame = Box(x + 2, y + 2, CELL[0] - 4, CELL[1] - 4)
    yield frame.svg('rx="4" fill="none" stroke="currentColor" stroke-opacity=".25"')
    fill = f"hsl({colour * 137.5 % 360:.0f} 65% 55%)"  # steps of the golden angle: neighbours differ
    for outline, part in _planes(t, cell, x, y):
        yield outline.svg('fill="none" stroke="currentColor" stroke-opacity=".6"')
        if part is None:
            continue
        yield part.svg(f'fill="{fill}"')
        if cell.term is not None:
            yield part.svg('fill="url(#shtypes-term)"')
        if cell.own is not None:
            yield part.svg('fill="url(#shtypes-own)"')
    label = cell.text(t) if t.ndim < 3 and len(cell.text(t)) <= 15 else cell.text(t).rpartition("] ")[2]
    if len(label) <= 15:
        yield _text(x + CELL[0] / 2, y + CELL[1] - 8, label, anchor="middle")
    yield "</g>"


def _planes(t: ShType, cell: Holding, x: float, y: float) -> Iterator[tuple[Box, Box | None]]:
    """The planes of the array, the last first, and the device's part of each: None where it holds nothing of it."""
    dims = drawn_dims(t)
    sizes = [max(t.shape[i], 1) for i in dims]
    slices = [cell.slices[i] for i in dims]
    height, width = ([1, 1, *sizes])[-2:]
    depth = sizes[0] if len(sizes) == 3 else 1
    planes = min(depth, PLANES)
    scale = SIDE / max(height, width)
    h, w = max(height * scale, 8), max(width * scale, 8)
    left, top = x + (CELL[0] - w) / 2, y + 8 + (SIDE - h) / 2
    for plane in reversed(range(planes)):
        outline = Box(left + SHIFT * plane - SHIFT * (planes - 1) / 2, top - SHIFT * plane / 2 + 6, w, h)
        (a, b), (c, d) = ([(0, 1), (0, 1), *slices])[-2:]
        inside = len(sizes) < 3 or _meets(slices[0], depth, plane, planes)
        part = Box(
            outline.x + w * c / width,
            outline.y + h * a / height,
            max(w * (d - c) / width, LEAST),
            max(h * (b - a) / height, LEAST),
        )
        yield outline, part if inside else None


def _meets(part: tuple[int, int], size: int, plane: int, planes: int) -> bool:
    """Whether a slice of a dim has anything of a drawn plane, which stands for an equal share of the dim."""
    start, stop = plane * size / planes, (plane + 1) * size / planes
    return part[0] < stop and part[1] > start
