"""A plan in words (who sends what to whom, and what each device holds), as a table, and in pictures."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from shtypes.analysis.device_slices import Holding, Span, digits_of_dims, holding, unravel, visible
from shtypes.analysis.svg import CELL, COLUMNS, Paint, devices, drawn_dims, element, words
from shtypes.errors import how_many, quoted
from shtypes.resharding import Kind, Plan, Step
from shtypes.resharding.costs import CostModel
from shtypes.types import ShType, State
from shtypes.types.mesh import part_of
from shtypes.types.tables import Table

#: The maximum number of devices in the table.
ROWS: Final = 16
#: The maximum number of rows of devices in a picture.
DEVICES: Final = 8
#: The width at which pictures wrap.
WIDTH: Final = 1800
#: The width of a character, and the height of a line.
LETTER: Final = 6.7
LINE: Final = 16
#: The maximum number of drawn pieces of a shard; longer runs have no colour.
PIECES: Final = 256
#: The height above the devices: title, type and column names.
HEAD: Final = 62


def sentences(plan: Plan) -> list[str]:
    """The steps of a plan in words: who sends what to whom, and what each device then holds."""
    return [f"{step}: {sentence(step, plan.src)}" for step in plan.steps]


def sentence(step: Step, base: ShType) -> str:
    """A step in words, with what each device holds after it; ``base`` is a type of the array, not reshaped."""
    return f"{action(step, base)}; each device then holds {contents(step.dst, base, _changed(step, base))}"


def action(step: Step, base: ShType) -> str:
    """The action of a step in words."""
    if step.kind is not Kind.RELABEL and step.group == 1:
        axes, has = quoted(step.axes) if step.axes else "the axes", "has" if len(step.axes) == 1 else "have"
        return f"{axes} {has} one device, so nothing is done or sent"
    return _ACTIONS[step.kind](step, base)


def contents(t: ShType, base: ShType, about: Iterable[int] = ()) -> str:
    """The contents of each device in words, with the dims in ``about`` even if unsharded; ``base`` as for `holding`."""
    first = holding(t, dict.fromkeys(base.mesh.axis_names, 0), base)  # others differ only in position
    parts, has_all = [], True
    for i, (dim, spans) in enumerate(zip(base.dims, first.spans, strict=True)):
        name = f"dim {i}" + (f" (`{dim.name}`)" if dim.name else "")
        if spans == ((0, dim.size),):
            parts += [f"{name} whole"] if i in about else []
            continue
        has_all = False
        count = sum(b - a for a, b in spans)
        pieces = f" ({len(spans)} pieces of {count // len(spans)})" if len(spans) > 1 else ""
        parts.append(f"{count:,} of {dim.size:,}{pieces} along {name}")
    parts_text = ("the whole array" if base.ndim else "the value") if has_all else _listed(parts)
    terms, varying = t.axes(State.UNREDUCED), t.axes(State.VARYING)
    parts_text += f", as a term of the sum over {quoted(terms)}" if terms else ""
    parts_text += f", of its own value over {quoted(varying)}" if varying else ""
    return f"{parts_text} ({t.local_bytes:,} B)"


def views(plan: Plan) -> list[str]:
    """The reshaped views of the array in a plan, in words, or empty."""
    base = plan.src
    texts: list[str] = []
    for t in (t for step in plan.steps for t in (step.src, step.dst)):
        for axis, size in base.mesh.shape.items():
            parts = [name for name in t.mesh.axis_names if part_of(name)[0] == axis]
            if len(parts) > 1:
                sizes = _listed([str(t.mesh.shape[part]) for part in parts])
                texts += [f"{quoted(parts)}: the axis `{axis}` of {size} devices in parts of {sizes}, major to minor"]
        seen = [
            f"dim {i} as {'x'.join(str(t.shape[k]) for k in digits)}"
            for i, digits in enumerate(digits_of_dims(t, base))
            if t.shape != base.shape and sum(t.shape[k] > 1 for k in digits) > 1
        ]
        if seen:
            view = f"{_shape(t)} is {_shape(base)} with {_listed(seen)}"
            texts += [f"{view}: the same elements in the same order, on the same devices"]
    return list(dict.fromkeys(texts))


def bound(plan: Plan, least: int, gathered: int | None) -> str:
    """Compares a plan with a lower bound, and with gathering first."""
    if not plan.bytes:
        return ""
    parts_text = (
        "no plan sends less" if least >= plan.bytes else f"a plan sends at least {least:,} B/device" if least else ""
    )
    naive = f"gathering first, then slicing, would send {gathered:,} B/device" if (gathered or 0) > plan.bytes else ""
    return "; ".join(filter(None, (parts_text, naive)))


def _group(step: Step) -> str:
    if step.group == step.src.mesh.size:
        return "between the two devices" if step.group == 2 else f"among all {step.group} devices"
    return "in each pair of devices" if step.group == 2 else f"in each group of {step.group} devices"


def _others(step: Step) -> str:
    return "the other" if step.group == 2 else "each of the others"


def _all_gather(step: Step, base: ShType) -> str:
    return f"{_group(step)}, each sends its slice of {_dims(step.lost, step, base)} to {_others(step)}"


def _all_to_all(step: Step, base: ShType) -> str:
    cut = f"each cuts what it holds in {step.group} along {_dims(step.gained, step, base)}"
    return f"{_group(step)}, {cut}, keeps one piece and sends one to {_others(step)}"


def _permute(step: Step, base: ShType) -> str:
    devices = step.src.mesh.size
    if step.pieces is not None:
        rounds = how_many(step.launches, "round")
        return f"each device gets what it lacks of the {len(step.pieces.rounds)} pieces of its new shard, in {rounds}"
    moved = sum(a != b for a, b in step.exchange) * (devices // step.src.mesh.product(step.live))
    if not moved:
        return "each device holds what it needs already, so nothing is sent"
    who = f"all {devices}" if moved == devices else f"{moved} of the {devices}"
    return f"{who} devices change places: each sends all that it holds to one other, and gets all that another held"


def _reduce_scatter(step: Step, base: ShType) -> str:
    return f"{_group(step)}, the terms are added up, and each gets its own slice of {_dims(step.gained, step, base)}"


def _all_reduce(step: Step, base: ShType) -> str:
    return f"{_group(step)}, the terms are added up, and each gets all of the result"


def _slice(step: Step, base: ShType) -> str:
    return f"each device keeps its own slice of {_dims(step.gained, step, base)} and drops the rest; nothing is sent"


def _place(step: Step, base: ShType) -> str:
    dims = _dims(step.lost, step, base)
    return f"each device fills the rest of {dims} with zeros, to be a term of a sum; nothing is sent"


def _mask(step: Step, base: ShType) -> str:
    rest = "the other takes" if step.group == 2 else "the others take"
    return f"{_group(step)}, the first keeps its copy as its term and {rest} zeros; nothing is sent"


def _relabel(step: Step, base: ShType) -> str:
    parts_text = []
    for state, gradients in _GRADIENTS.items():
        axes = [a for a in step.axes if step.dst.state(a) is state]
        why = f": {gradients}" if step.dst.differentiable else ""
        parts_text += [f"the copies over {quoted(axes)} are {state.name.lower()} from here{why}"] if axes else []
    return "; ".join(["nothing is done or sent", *parts_text])


_GRADIENTS: Final = {
    State.REDUCED: "their gradients are terms of a sum",
    State.INVARIANT: "their gradients are summed at once",
}
_ACTIONS: Final[Mapping[Kind, Callable[[Step, ShType], str]]] = {
    Kind.RELABEL: _relabel,
    Kind.MASK: _mask,
    Kind.SLICE: _slice,
    Kind.PLACE: _place,
    Kind.ALL_GATHER: _all_gather,
    Kind.ALL_TO_ALL: _all_to_all,
    Kind.PERMUTE: _permute,
    Kind.REDUCE_SCATTER: _reduce_scatter,
    Kind.ALL_REDUCE: _all_reduce,
}


def _changed(step: Step, base: ShType) -> set[int]:
    """The dims whose sharding a step changes."""
    return {*_dim_numbers(step.lost, step, base), *_dim_numbers(step.gained, step, base)}


def _dim_numbers(of: Sequence[tuple[str, ...]], step: Step, base: ShType) -> list[int]:
    return [i for i, digits in enumerate(digits_of_dims(step.src, base)) if any(of[k] for k in digits)]


def _dims(of: Sequence[tuple[str, ...]], step: Step, base: ShType) -> str:
    numbers = _dim_numbers(of, step, base)
    return f"dim{'s' if len(numbers) > 1 else ''} {_listed(list(map(str, numbers)))}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _shape(t: ShType) -> str:
    return f"[{','.join(map(str, t.shape))}]"


# table and pictures


def ways(plan: Plan) -> list[ShType]:
    """The types before, after each step but the last, and at the end."""
    return [plan.src, *(step.dst for step in plan.steps[:-1]), *([plan.dst] if plan.steps else [])]


def devices_of(plan: Plan) -> str:
    """The mesh in words."""
    return str(plan.src.mesh) or "one device"


def names(plan: Plan) -> list[str]:
    """The labels of the intermediate types."""
    between = [f"after {i}" for i in range(1, len(plan.steps))]
    return ["before", *between, "after"] if plan.steps else ["before and after"]


def holders(plan: Plan, title: str) -> Table:
    """The table of each device's contents during a plan, for the first devices and the last."""
    mesh = plan.src.mesh
    rows = []
    for index in visible(mesh.size, ROWS):
        if index is None:
            rows.append(("⋮",) * (len(plan.steps) + 2 - (not plan.steps)))
            continue
        place = unravel(index, mesh)
        at = ", ".join(f"{axis}={i}" for axis, i in place.items()) or "the one"
        rows.append((at, *(holding(t, place, plan.src).text(plan.src) for t in ways(plan))))
    return Table(title, ("device", *names(plan)), tuple(rows))


def draw(title: str, plans: Sequence[tuple[str, Plan]], model: CostModel | None) -> str:
    """One SVG element: for each plan its name, a row of pictures with arrows, and the steps in words."""
    dims = drawn_dims(plans[0][1].src, plans[0][1].dst)
    left_out = f"; of {plans[0][1].src.ndim} dims {', '.join(map(str, dims))} are drawn"
    legend = _LEGEND + (left_out if len(dims) < plans[0][1].src.ndim else "")
    body = [words(8, 24, title, weight="bold"), words(8, 24 + LINE, legend)]
    right, y = 8 + LETTER * max(len(title), len(legend)), 24.0 + 2 * LINE
    for name, plan in plans:
        drawing = _plan(name, plan, y, model)
        body += drawing.body
        right, y = max(right, drawing.right), drawing.bottom
    return element(title, right + 8, y + 8, body)


_LEGEND: Final = (
    "colours: the slices that the devices hold before; hatched: a term of a sum; dotted: a value of its own"
)


class _Drawing:
    """The drawing so far, and its extent."""

    def __init__(self, right: float, bottom: float) -> None:
        self.body: list[str] = []
        self.right, self.bottom = right, bottom

    def line(self, x: float, y: float, text: str, weight: str = "normal") -> None:
        self.body.append(words(x, y, text, weight=weight))
        self.right, self.bottom = max(self.right, x + LETTER * len(text)), max(self.bottom, y)


def _plan(name: str, plan: Plan, top: float, model: CostModel | None) -> _Drawing:
    drawing = _Drawing(8, top + LINE)
    drawing.line(8, drawing.bottom, f"{name}: {plan.src} to {plan.dst}", "bold")
    x, top = 8.0, drawing.bottom + 8
    dims = drawn_dims(plan.src, plan.dst)

    def paint(cell: Holding) -> Paint:
        return _paint(cell, plan.src, dims)

    margin = 14 + LETTER * _label(plan.src)
    for step, t, called in zip([None, *plan.steps], ways(plan), names(plan), strict=True):
        arrow = [] if step is None else _labels(step, model)
        gap = 36 + LETTER * max(map(len, arrow), default=-3)
        heads = (called, f"{t}, {t.local_bytes:,} B each")
        width = max(margin + _across(plan.src), LETTER * max(map(len, heads)))
        if step is not None and x + gap + width > WIDTH:
            x, top = 8.0, drawing.bottom + LINE
        if step is not None:
            _arrow(drawing, x, top + HEAD + 40, gap - 16, arrow)
            x += gap
        for i, text in enumerate(heads):
            drawing.line(x, top + LINE * (i + 1), text, "normal" if i else "bold")
        cells = devices(t, x + margin, top + HEAD, paint, base=plan.src, drawn=dims, rows=DEVICES)
        drawing.body += cells.body
        x += width + 8
        drawing.right, drawing.bottom = max(drawing.right, x), max(drawing.bottom, cells.bottom)
    width = max(int(drawing.right / LETTER) - 2, 110)
    parts_text = [f"{i}. {text}" for i, text in enumerate(sentences(plan), start=1)]
    for text in [*parts_text, *views(plan)]:
        for line in textwrap.wrap(text, width, subsequent_indent="   ", break_on_hyphens=False):
            drawing.line(8, drawing.bottom + LINE, line)
    drawing.bottom += LINE
    return drawing


def _labels(step: Step, model: CostModel | None) -> list[str]:
    parts_text = [step.kind.value, f"over {quoted(step.axes).replace('`', '')}" if step.axes else ""]
    parts_text += [f"{step.bytes:,} B/device" if step.bytes else "sends nothing"]
    return parts_text + ([f"{model.seconds(step):.2e} s"] if model and step.bytes else [])


def _arrow(drawing: _Drawing, x: float, y: float, length: float, labels: Sequence[str]) -> None:
    drawing.body.append(f'<path d="M{x:.1f} {y:.1f}h{length:.1f}m-7 -5l7 5l-7 5" fill="none" stroke="currentColor"/>')
    for i, label in enumerate(labels):
        drawing.body.append(
            words(x + length / 2, y + (-22 + LINE * i if i < 2 else LINE * (i - 1)), label, anchor="middle")
        )


def _across(base: ShType) -> float:
    """The total width of the devices' cells."""
    last = base.mesh.axis_sizes[-1] if base.mesh.axis_names else 1
    return CELL[0] * len(visible(last, COLUMNS))


def _label(base: ShType) -> int:
    """The length of the longest name of a row of devices."""
    outer = list(base.mesh.shape.items())[:-1]
    return len(", ".join(f"{axis}={size - 1}" for axis, size in outer))


def _paint(cell: Holding, src: ShType, dims: tuple[int, ...]) -> Paint:
    """The colours of a device's pieces, by the device that had them before."""
    cuts = [src.mesh.product(d.axes) if i in dims else 1 for i, d in enumerate(src.dims)]
    pieces = [
        [piece for span in spans for piece in _pieces(span, max(n // k, 1))]
        for spans, n, k in zip(cell.spans, src.shape, cuts, strict=True)
    ]
    boxes: list[tuple[tuple[Span, ...], int | None]] = []
    for box in itertools.islice(itertools.product(*pieces), PIECES):
        colour: int | None = 0
        for (_, at), k in zip(box, cuts, strict=True):
            colour = None if colour is None or at is None else colour * k + at
        boxes.append((tuple(span for span, _ in box), colour))
    return boxes


def _pieces(span: Span, size: int) -> list[tuple[Span, int | None]]:
    """Cuts a run of indices at multiples of a size, with the index of each piece; None for too many."""
    start, stop = span
    first = start // size
    last = max(-(-stop // size), first + 1)
    if last - first > PIECES // 4:
        return [(span, None)]
    return [((max(start, i * size), min(stop, (i + 1) * size)), i) for i in range(first, last)]
