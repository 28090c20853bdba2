"""The listing as a self-contained page: source with types, totals, mesh and ledger; and a plot."""

from __future__ import annotations

import importlib.resources
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from shtypes.analysis.explain.document import Line, Listing, type_text
from shtypes.analysis.explain.fold_layers import Repeat, fold_values
from shtypes.analysis.explain.source import Excerpt, lines_of_file, spans
from shtypes.analysis.explain.text import bytes_by_type, ledger_of
from shtypes.analysis.svg import devices, element
from shtypes.errors import how_many
from shtypes.traced.entry import HEADINGS, NUMBERS, Entry, row
from shtypes.traced.ledger import Ledger
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh
from shtypes.types.tables import SEALED

#: The maximum number of ledger rows, text lines, bars of saved types and rows of devices on a page.
_MOST_ENTRIES: Final = 1000
_MOST_LINES: Final = 5000
_MOST_BARS: Final = 8
_MOST_ROWS: Final = 8
#: The maximum number of a line's values that differ only in name.
_NAMES: Final = 3
_NUMBER: Final = re.compile(r"_\d+(?![a-zA-Z0-9])|\[\d+\]")


def to_html(listing: Listing) -> str:
    """The text of the page."""
    excerpts = sorted(spans(line.place for line in listing.lines), key=lambda span: span.name != listing.function)
    files = list(dict.fromkeys(span.file for span in excerpts))
    name = escape(listing.function)
    mesh = "no mesh" if listing.mesh is None else str(listing.mesh)
    passes = "forward and backward" if listing.gradient or listing.backward else "forward"
    body = [
        f'<header><h1>{name}</h1><p class="quiet">on the mesh {escape(mesh)}, policy "{listing.policy}", {passes}</p>',
        '<label class="theme"><input type="checkbox" id="theme"> swap light and dark</label></header>',
        f'<main><div class="cards">{"".join(_cards(listing))}</div>',
        _tools(listing),
        f"<h2>Source and types</h2>{source_html(excerpts, listing.lines, fold=listing.fold)}",
        _values("Arguments", listing.arguments, fold=listing.fold),
        _values("Results", listing.results, fold=listing.fold),
        _ledger(ledger_of(listing), files),
        f'<details><summary>The listing as text</summary><pre class="listing">{escape(_text(listing))}</pre></details>',
        "</main><footer>Made by <code>shtypes explain</code>. Bytes are what each device sends, or keeps.</footer>",
    ]
    style = importlib.resources.files(__package__ or "").joinpath("page.css").read_text(encoding="utf-8")
    head = f'<meta charset="utf-8">{SEALED}<meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>{name}: types and communication</title>\n'
        f"<style>\n{style}</style></head>\n<body>{''.join(body)}\n</body></html>"
    )


def framed(page: str) -> str:
    """A page inside another, such as a notebook."""
    style = "width:100%;height:46rem;border:1px solid #8884;border-radius:8px"
    attributes = f'title="types and communication" style="{style}" srcdoc="{escape(page)}"'
    return f"<iframe sandbox {attributes}></iframe>"


def _text(listing: Listing) -> str:
    lines = str(listing).splitlines()
    cut = [f"… and {len(lines) - _MOST_LINES} lines more"] if len(lines) > _MOST_LINES else []
    return "\n".join([*lines[:_MOST_LINES], *cut])


# totals


def size(count: int) -> str:
    """A human-readable number of bytes."""
    value, units = float(count), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= 10_000 and unit != "TiB":
        value, unit = value / 1024, next(units)
    return f"{count:,} B" if unit == "B" else f"{value:,.1f} {unit}"


def mesh_svg(mesh: Mesh) -> str:
    """An SVG of the devices of a mesh, in rows along the last axis; a large mesh is cut."""
    t = ShType(mesh, "f32", [], dict.fromkeys(mesh.axis_names, State.REDUCED))
    drawing = devices(t, 96, 24, lambda device: (), rows=_MOST_ROWS)
    axes = ", ".join(f"{axis} of size {n}" for axis, n in mesh.shape.items())
    return element(f"mesh of {mesh.size} devices: {axes}", drawing.right + 8, drawing.bottom + 8, drawing.body)


def _cards(listing: Listing) -> Iterator[str]:
    ledger = listing.ledger
    if listing.mesh is not None:
        yield _card("Mesh", mesh_svg(listing.mesh))
    bars = [_bar(f"{axes} {way}", n, ledger.bytes, way) for (axes, way), n in bytes_sent(ledger).items()]
    count = f"in {how_many(ledger.launches, 'collective')}{'' if ledger.known else ' at least'}"
    yield _card("Sent by each device", _total(ledger.bytes, count), *bars)
    kinds = [_bar(kind, total.bytes, ledger.bytes, "forward") for kind, total in ledger.by_kind().items()]
    if kinds:
        yield _card("By kind of collective", *kinds)
    if listing.gradient or listing.saved:
        saved = [_bar(t, sum(n), listing.saved_bytes, "saved") for t, n in bytes_by_type(listing.saved)[:_MOST_BARS]]
        total = _total(listing.saved_bytes, "on each device, besides arguments")
        yield _card("Saved for the backward pass", total, *saved)


def _card(title: str, *parts: str) -> str:
    return f'<section class="card"><h3>{title}</h3>{"".join(parts)}</section>'


def _total(count: int, note: str) -> str:
    return f'<p class="big">{size(count)}</p><p class="quiet">{note}</p>'


def _bar(label: str, part: int, total: int, kind: str) -> str:
    fill = f'<span class="fill" style="display:block;width:{100 * part / max(total, 1):.1f}%"></span>'
    return (
        f'<div class="bar {kind}"><span class="mono">{escape(label)}</span>'
        f'<span class="track" aria-hidden="true">{fill}</span><span class="n">{size(part)}</span></div>'
    )


def _tools(listing: Listing) -> str:
    boxes = [("show-forward", "forward"), ("show-ops", "how values are made")]
    if any(line.direction != "forward" for line in listing.lines):
        boxes.insert(1, ("show-backward", "backward"))
    inputs = "".join(f'<label><input type="checkbox" id="{id}" checked> {text}</label>' for id, text in boxes)
    return f'<div class="tools" role="group" aria-label="What is shown">{inputs}</div>'


# tables


def _values(title: str, lines: Sequence[Line], *, fold: bool) -> str:
    rows: list[str] = []
    for item in fold_values(lines) if fold else lines:
        if isinstance(item, Repeat):
            rows.append(f"<tr><td class=quiet>repeated {item.times} times</td></tr>")
        lines_of_item = item.items if isinstance(item, Repeat) else (item,)
        rows += [f"<tr><td class=mono>{escape(str(line))}</td></tr>" for line in lines_of_item]
    table = f'<div class="scroll"><table><tbody>{"".join(rows[:_MOST_ENTRIES])}</tbody></table></div>'
    return f"<details><summary>{title}</summary>{table}</details>"


def _ledger(ledger: Ledger, files: Sequence[str]) -> str:
    notes = "".join(f'<p class="quiet">{escape(str(item))}</p>' for item in dict.fromkeys(ledger.not_covered))
    notes = f"<h3>Not covered</h3>{notes}" if notes else ""
    if not ledger.entries:
        none = f"No communication{' that types know of' if notes else ''}."
        return f'<h2>Collectives</h2><p class="quiet">{none}</p>{notes}'
    numbers = [' class="n"' if heading in NUMBERS else "" for heading in HEADINGS]
    head = "".join(f'<th scope="col"{kind}>{text}</th>' for text, kind in zip(HEADINGS, numbers, strict=True))
    rows = []
    for entry in ledger.entries[:_MOST_ENTRIES]:
        place, *others = map(escape, row(entry))
        to = anchor(entry.place.file, entry.place.line, files)
        cells = zip([f'<a href="#{to}">{place}</a>' if to else place, *others], numbers, strict=True)
        rows.append(f"<tr>{''.join(f'<td{kind}>{text}</td>' for text, kind in cells)}</tr>")
    more = len(ledger.entries) - len(rows)
    rows += [f'<tr><td colspan="{len(HEADINGS)}">and {more:,} more</td></tr>'] if more else []
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<h2 id="ledger">Collectives</h2><div class="scroll">{table}</div>{notes}'


# source with types


def anchor(file: str, line: int, files: Sequence[str]) -> str:
    """The id of a source line on the page."""
    return f"L{files.index(file)}-{line}" if file in files else ""


def source_html(spans: Sequence[Excerpt], lines: Iterable[Line], *, fold: bool = True) -> str:
    """The functions around the lines; with ``fold``, a line's values that differ only in name are grouped."""
    by_place: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        by_place.setdefault((line.place.file, line.place.line), []).append(line)
    tips = itertools.count(1)
    values = {
        place: "".join(_value(group, tips) for group in (_alike(at) if fold else [[line] for line in at]))
        for place, at in by_place.items()
    }
    kinds = {place: " typed sends" if any(x.collectives for x in at) else " typed" for place, at in by_place.items()}
    files = list(dict.fromkeys(span.file for span in spans))
    return "".join(_section(span, values, kinds, files) for span in spans)


def _section(
    span: Excerpt, values: Mapping[tuple[str, int], str], kinds: Mapping[tuple[str, int], str], files: Sequence[str]
) -> str:
    rows = []
    for number, text in enumerate(_highlighted(lines_of_file(span.file, span.start, span.end)), span.start):
        place = span.file, number
        rows.append(
            f'<div class="row{kinds.get(place, "")}" id="{anchor(*place, files)}">'
            f'<span class="at mono">{number}</span><code class="src">{text or " "}</code>'
            f'<div class="types mono">{values.get(place, "")}</div></div>'
        )
    file = escape(span.file.replace("\\", "/").rsplit("/", 1)[-1])
    title = f"<h3><span class=mono>{file}</span>, <span class=mono>{escape(span.name)}</span></h3>"
    return f'<section class="file" aria-label="{escape(span.name)}">{title}{"".join(rows)}</section>'


def _alike(lines: Sequence[Line]) -> Iterable[list[Line]]:
    """A source line's values, those of an unrolled loop grouped."""
    groups: dict[tuple[object, ...], list[Line]] = {}
    for line in lines:
        sends = tuple((str(e), e.bytes, e.times) for e in line.collectives)
        key = (_NUMBER.sub("", line.name), line.direction, type_text(line.type), line.op, sends, line.not_covered)
        groups.setdefault(key, []).append(line)
    return groups.values()


def _value(group: Sequence[Line], tips: Iterator[int]) -> str:
    line = group[0]
    names = ", ".join(escape(member.name) for member in group[:_NAMES])
    many = f' <span class="many">and {len(group) - _NAMES} more</span>' if len(group) > _NAMES else ""
    op = f'<span class="op"> = {escape(" ".join((line.op, *line.operands)))}</span>' if line.op else ""
    labels = {"cast": line.cast, "in the body": not line.op, "computed again": line.direction == "recomputed"}
    tags = "".join(f'<span class="tag">{label}</span>' for label, on in labels.items() if on)
    entries = [entry for member in group for entry in member.collectives]
    marks = ""
    if entries:
        times = f" ×{len(entries)}" if len(entries) > 1 else ""
        more = f"<p>and {len(entries) - _NAMES} more like these</p>" if len(entries) > _NAMES else ""
        marks += _tip(f"{entries[0]}{times}", "".join(map(_entry, entries[:_NAMES])) + more, tips)
    marks += _tip("not covered", escape(line.not_covered), tips) if line.not_covered else ""
    return (
        f'<span class="v {line.direction}{" cast" * line.cast}"><span class="name">{names}</span>{many}: '
        f'<span class="type">{escape(type_text(line.type))}</span>{op}{tags}{marks}</span>'
    )


def _tip(text: str, inside: str, tips: Iterator[int]) -> str:
    """A mark with a tooltip."""
    name = f"tip-{next(tips)}"
    button = f'<button type="button" aria-describedby="{name}">{escape(text)}</button>'
    return f' <span class="comm">{button}<span class="tip" role="tooltip" id="{name}">{inside}</span></span>'


def _entry(entry: Entry) -> str:
    """An entry of the ledger, for a tooltip."""
    rows = dict(zip(HEADINGS, row(entry), strict=True))
    fields = {
        "collective": rows["collective"],
        "direction": rows["direction"],
        "sends": f"{entry.bytes:,} B/device, {entry.dtype}",
        "times": "as often as the loop runs" if entry.times is None else rows["times"],
        "from": str(entry.src),
        "to": str(entry.dst),
        "by": "a cast that a typing rule inserted" if entry.inserted else "a reshard that the program writes",
    }
    return "<dl>" + "".join(f"<dt>{key}</dt><dd>{escape(text)}</dd>" for key, text in fields.items()) + "</dl>"


def _highlighted(lines: Sequence[str]) -> list[str]:
    """The lines as HTML, with syntax highlighting."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    text = textwrap.dedent("\n".join(lines))
    lexer = PythonLexer(stripnl=False, ensurenl=False)
    return str(highlight(text, lexer, HtmlFormatter(nowrap=True))).removesuffix("\n").split("\n")


# the plot

_COLOURS: Final = {"forward": "#2b7bb9", "recomputed": "#b8a93a", "backward": "#a2558f"}


def bytes_sent(ledger: Ledger) -> dict[tuple[str, str], int]:
    """The bytes for each group of axes, joined with commas, and each direction."""
    sizes: dict[tuple[str, str], int] = {}
    for axes in ledger.by_axes():
        of_axes = ledger.select(lambda entry, axes=axes: entry.axes == axes)  # type: ignore[misc]
        for direction, total in of_axes.by_direction().items():
            sizes[", ".join(axes), direction] = total.bytes
    return sizes


def plot(listing: Listing, path: str | Path | None = None) -> Any:
    """Draws the plot; see `Explanation.plot`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a plot needs matplotlib: pip install 'shtypes[plot]'") from None
    bytes_of = bytes_sent(listing.ledger)
    groups = list(dict.fromkeys(axes for axes, _ in bytes_of)) or ["no collectives"]
    directions = [d for d in _COLOURS if any(key[1] == d for key in bytes_of)]
    figure = Figure(figsize=(max(4.5, 1.6 + 1.3 * len(groups)), 3.4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(len(directions), 1)
    for i, direction in enumerate(directions):
        places = [g - 0.4 + width * (i + 0.5) for g in range(len(groups))]
        heights = [bytes_of.get((group, direction), 0) for group in groups]
        bars = axes.bar(places, heights, width * 0.94, label=direction, color=_COLOURS[direction])
        axes.bar_label(bars, labels=[f"{h:,}" if h else "" for h in heights], fontsize=7, padding=2)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(xlabel="mesh axes", ylabel="bytes that each device sends")
    axes.set_title(f'{listing.function}, policy "{listing.policy}"', fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.15)
    if directions:
        axes.legend(frameon=False)
    if path is not None:
        figure.savefig(path, dpi=160)
    return figure
