"""Who holds what on the way of a plan: as a table, and as pictures side by side. Pure."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from typing import Final

from shtypes.analysis.describe_plan import sentences, views
from shtypes.analysis.device_slices import Holding, Span, holding, visible
from shtypes.analysis.svg import CELL, COLUMNS, Paint, devices, drawn_dims, element, words
from shtypes.errors import quoted
from shtypes.resharding import Plan, Step
from shtypes.resharding.costs import CostModel
from shtypes.types import ShType
from shtypes.types.tables import Table

#: The most devices that the table shows.
ROWS: Final = 16
#: The most rows of devices in a picture.
DEVICES: Final = 8
#: Where the next picture would end further right, it starts a new row.
WIDTH: Final = 1800
#: How wide a letter is, and how high a line.
LETTER: Final = 6.7
LINE: Final = 16
#: The most pieces of a part that are drawn; what has more of a dim is in no colour.
PIECES: Final = 256
#: What is above the devices: the title of a picture, its type and the names of the columns.
HEAD: Final = 62


def ways(plan: Plan) -> list[ShType]:
    """The types before, after each step but the last, and at the end."""
    return [plan.src, *(step.dst for step in plan.steps[:-1]), *([plan.dst] if plan.steps else [])]


def devices_of(plan: Plan) -> str:
    """The mesh in words."""
    return str(plan.src.mesh) or "one device"


def names(plan: Plan) -> list[str]:
    """What the types on the way are called."""
    between = [f"after {i}" for i in range(1, len(plan.steps))]
    return ["before", *between, "after"] if plan.steps else ["before and after"]


def holders(plan: Plan, title: str) -> Table:
    """Who holds what on the way: a row for each device, or for the first ones and the last."""
    mesh = plan.src.mesh
    rows = []
    for index in visible(mesh.size, ROWS):
        if index is None:
            rows.append(("⋮",) * (len(plan.steps) + 2 - (not plan.steps)))
            continue
        place = dict(zip(mesh.axis_names, _place(mesh.axis_sizes, index), strict=True))
        at = ", ".join(f"{axis}={i}" for axis, i in place.items()) or "the one"
        rows.append((at, *(holding(t, place, plan.src).text(plan.src) for t in ways(plan))))
    return Table(title, ("device", *names(plan)), tuple(rows))


def _place(sizes: Sequence[int], index: int) -> list[int]:
    found = []
    for size in reversed(sizes):
        index, at = divmod(index, size)
        found.append(at)
    return found[::-1]


def draw(title: str, plans: Sequence[tuple[str, Plan]], model: CostModel | None) -> str:
    """One SVG element: for each plan its name, a row of pictures with arrows between, and the steps in words below."""
    dims = _drawn(plans[0][1])
    left_out = f"; of {plans[0][1].src.ndim} dims {', '.join(map(str, dims))} are drawn"
    legend = _LEGEND + (left_out if len(dims) < plans[0][1].src.ndim else "")
    body = [words(8, 24, title, weight="bold"), words(8, 24 + LINE, legend)]
    right, y = 8 + LETTER * max(len(title), len(legend)), 24.0 + 2 * LINE
    for name, plan in plans:
        shown = _plan(name, plan, y, model)
        body += shown.body
        right, y = max(right, shown.right), shown.bottom
    return element(title, right + 8, y + 8, body)


_LEGEND: Final = (
    "colours: the slices that the devices hold before; hatched: a term of a sum; dotted: a value of its own"
)


class _Shown:
    """What is drawn so far, and how far it reaches."""

    def __init__(self, right: float, bottom: float) -> None:
        self.body: list[str] = []
        self.right, self.bottom = right, bottom

    def line(self, x: float, y: float, text: str, weight: str = "normal") -> None:
        self.body.append(words(x, y, text, weight=weight))
        self.right, self.bottom = max(self.right, x + LETTER * len(text)), max(self.bottom, y)


def _plan(name: str, plan: Plan, top: float, model: CostModel | None) -> _Shown:
    shown = _Shown(8, top + LINE)
    shown.line(8, shown.bottom, f"{name}: {plan.src} to {plan.dst}", "bold")
    x, top = 8.0, shown.bottom + 8
    dims = _drawn(plan)

    def paint(cell: Holding) -> Paint:
        return _paint(cell, plan.src, dims)

    margin = 14 + LETTER * _label(plan.src)
    for step, t, called in zip([None, *plan.steps], ways(plan), names(plan), strict=True):
        arrow = [] if step is None else _labels(step, model)
        gap = 36 + LETTER * max(map(len, arrow), default=-3)
        heads = (called, f"{t}, {t.local_bytes:,} B each")
        width = max(margin + _across(plan.src), LETTER * max(map(len, heads)))
        if step is not None and x + gap + width > WIDTH:
            x, top = 8.0, shown.bottom + LINE
        if step is not None:
            _arrow(shown, x, top + HEAD + 40, gap - 16, arrow)
            x += gap
        for i, text in enumerate(heads):
            shown.line(x, top + LINE * (i + 1), text, "normal" if i else "bold")
        cells = devices(t, x + margin, top + HEAD, paint, whole=plan.src, drawn=dims, rows=DEVICES)
        shown.body += cells.body
        x += width + 8
        shown.right, shown.bottom = max(shown.right, x), max(shown.bottom, cells.bottom)
    width = max(int(shown.right / LETTER) - 2, 110)
    said = [f"{i}. {text}" for i, text in enumerate(sentences(plan), start=1)]
    for text in [*said, *views(plan)]:
        for line in textwrap.wrap(text, width, subsequent_indent="   ", break_on_hyphens=False):
            shown.line(8, shown.bottom + LINE, line)
    shown.bottom += LINE
    return shown


def _labels(step: Step, model: CostModel | None) -> list[str]:
    """What is said at an arrow."""
    said = [step.kind.value, f"over {quoted(step.axes).replace('`', '')}" if step.axes else ""]
    said += [f"{step.bytes:,} B/device" if step.bytes else "sends nothing"]
    return said + ([f"{model.seconds(step):.2e} s"] if model and step.bytes else [])


def _arrow(shown: _Shown, x: float, y: float, length: float, labels: Sequence[str]) -> None:
    shown.body.append(f'<path d="M{x:.1f} {y:.1f}h{length:.1f}m-7 -5l7 5l-7 5" fill="none" stroke="currentColor"/>')
    for i, label in enumerate(labels):
        shown.body.append(
            words(x + length / 2, y + (-22 + LINE * i if i < 2 else LINE * (i - 1)), label, anchor="middle")
        )


def _across(whole: ShType) -> float:
    """How wide the cells of the devices are together."""
    last = whole.mesh.axis_sizes[-1] if whole.mesh.axis_names else 1
    return CELL[0] * len(visible(last, COLUMNS))


def _label(whole: ShType) -> int:
    """The length of the longest name of a row of devices."""
    outer = list(whole.mesh.shape.items())[:-1]
    return len(", ".join(f"{axis}={size - 1}" for axis, size in outer))


def _drawn(plan: Plan) -> tuple[int, ...]:
    """The dims that are drawn, the same in each picture: first those that one end has sharded."""
    ends = [drawn_dims(plan.src), drawn_dims(plan.dst)]
    if plan.src.ndim <= 3:
        return ends[0]
    order = sorted(range(plan.src.ndim), key=lambda i: (not plan.src.dims[i].axes, not plan.dst.dims[i].axes, -i))
    return tuple(sorted(order[:3]))


def _paint(cell: Holding, src: ShType, dims: tuple[int, ...]) -> Paint:
    """The part of a device, in pieces by who held them before: those of one part have one colour."""
    cuts = [src.mesh.product(d.axes) if i in dims else 1 for i, d in enumerate(src.dims)]
    pieces = [
        [piece for span in spans for piece in _pieces(span, max(n // k, 1))]
        for spans, n, k in zip(cell.spans, src.shape, cuts, strict=True)
    ]
    found: list[tuple[tuple[Span, ...], int | None]] = []
    for box in itertools.islice(itertools.product(*pieces), PIECES):
        colour: int | None = 0
        for (_, at), k in zip(box, cuts, strict=True):
            colour = None if colour is None or at is None else colour * k + at
        found.append((tuple(span for span, _ in box), colour))
    return found


def _pieces(span: Span, size: int) -> list[tuple[Span, int | None]]:
    """A run of indices cut at the multiples of a size, and which multiple each piece is in; None where many are."""
    start, stop = span
    first = start // size
    last = max(-(-stop // size), first + 1)
    if last - first > PIECES // 4:
        return [(span, None)]
    return [((max(start, i * size), min(stop, (i + 1) * size)), i) for i in range(first, last)]
