"""SVG pictures: a type, with a cell for each device and its part filled; and a Pareto front."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from shtypes.analysis.device_slices import Holding, Span, grid, visible
from shtypes.types import ShType

#: The maximum number of devices along the last mesh axis, and of their rows.
COLUMNS: Final = 8
ROWS: Final = 12
#: The size of a device's cell, and the largest side of the array in it.
CELL: Final = (108, 92)
SIDE: Final = 52
#: The distance between planes of a third dim, and their maximum number.
SHIFT: Final = 6
PLANES: Final = 4
#: The minimum width of a part.
LEAST: Final = 2.5
LEFT: Final = 96
TOP: Final = 84

#: Boxes of the array, with colour numbers; None for no colour.
Paint: TypeAlias = Iterable[tuple[tuple[Span, ...], int | None]]


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


def drawn_dims(*types: ShType) -> tuple[int, ...]:
    """The drawn dims of an array, at most three: those that the types shard first, then the last."""
    order = sorted(range(types[0].ndim), key=lambda i: (*(not t.dims[i].axes for t in types), -i))
    return tuple(sorted(order[:3]))


class Devices(NamedTuple):
    """The cells of the devices, drawn."""

    body: list[str]
    right: float
    bottom: float


def devices(
    t: ShType,
    left: float,
    top: float,
    paint: Callable[[Holding], Paint],
    *,
    base: ShType | None = None,
    drawn: tuple[int, ...] = (),
    rows: int = ROWS,
) -> Devices:
    """Draws the contents of devices, at most ``rows`` rows of them, of the dims ``drawn``; ``base`` as for `holding`.

    ``left`` and ``top`` are the edges of the first cell: row names are left of it, column names above it. ``paint`` has
    the colours of a device's part.
    """
    base = base or t
    outer, last = base.mesh.axis_names[:-1], (base.mesh.axis_names or ("",))[-1]
    across = visible(base.mesh.shape.get(last, 1), COLUMNS)
    body: list[str] = []
    y = top
    first = outer[0] if len(outer) > 1 else None
    before: int | None = None
    for place, cells in grid(t, rows, COLUMNS, base):
        group = None if place is None or first is None else place[first]
        if before is not None and group != before:
            y += 14  # a gap for the outermost of three axes
        before = group
        if place is None:
            body.append(words(left, y + 12, "⋮"))
            y += 20
            continue
        label = ", ".join(f"{axis}={i}" for axis, i in place.items())
        body.append(words(left - 10, y + CELL[1] / 2, label, anchor="end"))
        for j, cell in enumerate(cells):
            x = left + j * CELL[0]
            if cell is None:
                body.append(words(x + CELL[0] / 2, y + CELL[1] / 2, "…", anchor="middle"))
            else:
                body += _cell(base, drawn or drawn_dims(t), cell, x, y, paint(cell))
        y += CELL[1]
    if last:
        for j, index in enumerate(across):
            label_of_column = "…" if index is None else f"{last}={index}"
            body.append(words(left + j * CELL[0] + CELL[0] / 2, top - 8, label_of_column, anchor="middle"))
    return Devices(body, left + CELL[0] * len(across), y)


def draw(t: ShType, title: str, sentences: list[str]) -> str:
    """The picture as one SVG element; it uses the page's text colour."""
    parts: dict[object, int] = {}
    drawing = devices(
        t, LEFT, TOP, lambda cell: [(box, parts.setdefault(cell.part, len(parts))) for box in cell.boxes()]
    )
    body = drawing.body + [words(8, drawing.bottom + 20 + 16 * i, line) for i, line in enumerate(sentences)]
    head = [words(8, 24, title, weight="bold")]
    if len(drawn_dims(t)) < t.ndim:
        head.append(words(8, 42, f"drawn: dims {', '.join(map(str, drawn_dims(t)))} of {t.ndim}"))
    width = max(drawing.right + 8, 8 + 7 * max(map(len, [title, *sentences])))
    return element(title, width, drawing.bottom + 20 + 16 * len(sentences), [*head, *body])


def element(title: str, width: float, height: float, body: Iterable[str]) -> str:
    """An SVG element with a body."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'style="max-width: 100%; height: auto" role="img" font-family="ui-monospace, monospace" font-size="11" '
        f'fill="currentColor">'
        f"<title>{html.escape(title)}</title>{_PATTERNS}{''.join(body)}</svg>"
    )


#: Hatching for terms of a sum and dots for varying values, over their colour.
_PATTERNS: Final = (
    "<defs>"
    '<pattern id="shtypes-term" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="3" height="6" fill="#fff" fill-opacity=".55"/></pattern>'
    '<pattern id="shtypes-own" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<circle cx="3" cy="3" r="1.4" fill="#fff" fill-opacity=".8"/></pattern>'
    "</defs>"
)


class Mark(NamedTuple):
    """A point of a front: its position, its label, and whether it was proved."""

    x: float
    y: float
    label: str
    proved: bool


def front(title: str, marks: Sequence[Mark], names: tuple[str, str], limit: tuple[float, str] | None = None) -> str:
    """Draws a Pareto front, proved points filled, with a line at the limit of the first quantity."""
    xs = [m.x for m in marks] + ([] if limit is None else [limit[0]])
    left, top, width, height = 72.0, 34.0, 460.0, 220.0

    def at(value: float, values: Sequence[float], start: float, length: float) -> float:
        low, high = min(values), max(values)
        return start + length * (0.5 if high == low else 0.06 + 0.88 * (value - low) / (high - low))

    points = [(at(m.x, xs, left, width), at(m.y, [n.y for n in marks], top + height, -height), m) for m in marks]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    body = [words(left, 18, title, weight="bold"), Box(left, top, width, height).svg(f'{_FAINT} fill="none"')]
    body += [f'<polyline points="{line}" fill="none" {_FAINT}/>']
    if limit is not None:
        x = at(limit[0], xs, left, width)
        body += [f'<path d="M{x:.1f} {top:.1f}v{height:.1f}" stroke="#c33" stroke-dasharray="4 3"/>']
        body += [words(x - 4, top + 14, limit[1], anchor="end")]
    for x, y, m in points:
        paint = 'fill="currentColor"' if m.proved else 'fill="none" stroke="currentColor"'
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {paint}><title>{html.escape(m.label)}</title></circle>']
        side = (-8, "end") if x > left + width * 0.6 else (8, "start")
        body += [words(x + side[0], y - 6, m.label, anchor=side[1])]
    body += [words(left + width, top + height + 18, names[0], anchor="end"), words(4, top + 10, names[1])]
    return element(title, left + width + 16, top + height + 28, body)


_FAINT: Final = 'stroke="currentColor" stroke-opacity=".35"'


def words(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{html.escape(text)}</text>'


def _cell(base: ShType, dims: tuple[int, ...], cell: Holding, x: float, y: float, paint: Paint) -> Iterator[str]:
    """One device: the outline of the array, and its part in the colour that copies share."""
    yield f"<g><title>{html.escape(cell.words(base))}</title>"
    frame = Box(x + 2, y + 2, CELL[0] - 4, CELL[1] - 4)
    yield frame.svg('rx="4" fill="none" stroke="currentColor" stroke-opacity=".25"')
    painted = list(paint)
    for plane, outline in _planes(base, dims, x, y):
        yield outline.svg('fill="none" stroke="currentColor" stroke-opacity=".6"')
        for box, colour in painted:
            part = _in_plane(base, dims, box, plane, outline)
            if part is None:
                continue
            yield part.svg(_fill(colour))
            if cell.term is not None:
                yield part.svg('fill="url(#shtypes-term)"')
            if cell.value is not None:
                yield part.svg('fill="url(#shtypes-own)"')
    text = cell.text(base)
    label = text if base.ndim < 3 and len(text) <= 15 else text.rpartition("] ")[2]
    if len(label) <= 15:
        yield words(x + CELL[0] / 2, y + CELL[1] - 8, label, anchor="middle")
    yield "</g>"


def _fill(colour: int | None) -> str:
    if colour is None:
        return 'fill="currentColor" fill-opacity=".4"'
    return f'fill="hsl({colour * 137.5 % 360:.0f} 65% 55%)"'  # golden-angle steps, to separate neighbours


def _planes(base: ShType, dims: tuple[int, ...], x: float, y: float) -> Iterator[tuple[int, Box]]:
    """The planes of the array, the last first."""
    height, width = ([1, 1, *(max(base.shape[i], 1) for i in dims)])[-2:]
    planes = _count(base, dims)
    scale = SIDE / max(height, width)
    h, w = max(height * scale, 8), max(width * scale, 8)
    left, top = x + (CELL[0] - w) / 2, y + 8 + (SIDE - h) / 2
    for plane in reversed(range(planes)):
        yield plane, Box(left + SHIFT * plane - SHIFT * (planes - 1) / 2, top - SHIFT * plane / 2 + 6, w, h)


def _count(base: ShType, dims: tuple[int, ...]) -> int:
    return min(max(base.shape[dims[0]], 1), PLANES) if len(dims) == 3 else 1


def _in_plane(base: ShType, dims: tuple[int, ...], box: tuple[Span, ...], plane: int, outline: Box) -> Box | None:
    """The part of a box in a plane, which stands for an equal share of the first of three dims; None for no part."""
    height, width = ([1, 1, *(max(base.shape[i], 1) for i in dims)])[-2:]
    (a, b), (c, d) = ([(0, 1), (0, 1), *(box[i] for i in dims)])[-2:]
    if len(dims) == 3:
        depth, planes = max(base.shape[dims[0]], 1), _count(base, dims)
        start, stop = box[dims[0]]
        if start >= (plane + 1) * depth / planes or stop <= plane * depth / planes:
            return None
    return Box(
        outline.x + outline.width * c / width,
        outline.y + outline.height * a / height,
        max(outline.width * (d - c) / width, LEAST),
        max(outline.height * (b - a) / height, LEAST),
    )
