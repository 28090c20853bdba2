"""The listing as one page that needs nothing else: source with types beside it, totals, the mesh, the ledger."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from shtypes.analysis.explain.document import Line, Listing, type_text
from shtypes.analysis.explain.figures import bytes_sent, mesh_svg
from shtypes.analysis.explain.fold_layers import Repeat, fold_values
from shtypes.analysis.explain.html_source import anchor, source_html
from shtypes.analysis.explain.source import spans
from shtypes.analysis.explain.text import sent
from shtypes.traced.entry import Entry
from shtypes.traced.ledger import Ledger
from shtypes.types.tables import SEALED

#: Rows of the ledger and lines of the text that a page shows; more is in the other formats.
_MOST_ENTRIES: Final = 1000
_MOST_LINES: Final = 5000


def to_html(listing: Listing) -> str:
    """The text of the page."""
    shown = sorted(spans(line.place for line in listing.lines), key=lambda span: span.name != listing.function)
    files = list(dict.fromkeys(span.file for span in shown))
    name = escape(listing.function)
    mesh = "no mesh" if listing.mesh is None else str(listing.mesh)
    passes = "forward and backward" if listing.gradient or listing.backward else "forward"
    body = [
        f'<header><h1>{name}</h1><p class="quiet">on the mesh {escape(mesh)}, policy "{listing.policy}", {passes}</p>',
        '<label class="theme"><input type="checkbox" id="theme"> swap light and dark</label></header>',
        f'<main><div class="cards">{"".join(_cards(listing))}</div>',
        _tools(listing),
        f"<h2>Source and types</h2>{source_html(shown, listing.lines, fold=listing.fold)}",
        _values("Arguments", listing.arguments, fold=listing.fold),
        _values("Results", listing.results, fold=listing.fold),
        _ledger(sent(listing), files),
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
    of = f'title="types and communication" style="{style}" srcdoc="{escape(page)}"'
    return f"<iframe sandbox {of}></iframe>"


def _text(listing: Listing) -> str:
    lines = str(listing).splitlines()
    cut = [f"… and {len(lines) - _MOST_LINES} lines more"] if len(lines) > _MOST_LINES else []
    return "\n".join([*lines[:_MOST_LINES], *cut])


def size(count: int) -> str:
    """A number of bytes for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 10_000 or unit == "TiB":
            return f"{count:,} B" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return ""


# the cards


def _cards(listing: Listing) -> Iterable[str]:
    if listing.mesh is not None:
        yield f'<section class="card"><h3>Mesh</h3>{mesh_svg(listing.mesh)}</section>'
    ledger = listing.ledger
    count = f"{ledger.launches:,} collective{'' if ledger.launches == 1 else 's'}"
    known = "" if ledger.known else " at least"
    sent = "".join(_bar(f"{axes} {way}", n, ledger.bytes, way) for (axes, way), n in bytes_sent(ledger).items())
    yield (
        f'<section class="card"><h3>Sent by each device</h3><p class="big">{size(ledger.bytes)}</p>'
        f'<p class="quiet">in {count}{known}</p>{sent}</section>'
    )
    kinds = "".join(_bar(kind, total.bytes, ledger.bytes, "forward") for kind, total in ledger.by_kind().items())
    if kinds:
        yield f'<section class="card"><h3>By kind of collective</h3>{kinds}</section>'
    if listing.gradient or listing.saved:
        yield f'<section class="card"><h3>Saved for the backward pass</h3>{_saved(listing)}</section>'


def _saved(listing: Listing) -> str:
    sizes: dict[str, int] = {}
    for value in listing.saved:
        if not value.argument:
            sizes[type_text(value.type)] = sizes.get(type_text(value.type), 0) + value.bytes
    bars = [_bar(t, n, listing.saved_bytes, "saved") for t, n in sorted(sizes.items(), key=lambda pair: -pair[1])[:8]]
    whole = f'<p class="big">{size(listing.saved_bytes)}</p><p class="quiet">on each device, besides arguments</p>'
    return whole + "".join(bars)


def _bar(label: str, part: int, whole: int, kind: str) -> str:
    width = 100 * part / whole if whole else 0
    fill = f'<span class="fill" style="display:block;width:{width:.1f}%"></span>'
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


# the tables


def _values(title: str, lines: Sequence[Line], *, fold: bool) -> str:
    rows: list[str] = []
    for item in fold_values(lines) if fold else lines:
        shown = item.items if isinstance(item, Repeat) else (item,)
        if isinstance(item, Repeat):
            rows.append(f"<tr><td class=quiet>repeated {item.times} times</td></tr>")
        rows += [f"<tr><td class=mono>{escape(str(line))}</td></tr>" for line in shown]
    body = "".join(rows[:_MOST_ENTRIES])
    return (
        f'<details><summary>{title}</summary><div class="scroll"><table><tbody>{body}</tbody></table></div></details>'
    )


def _ledger(ledger: Ledger, files: Sequence[str]) -> str:
    notes = "".join(f'<p class="quiet">{escape(str(item))}</p>' for item in dict.fromkeys(ledger.not_covered))
    notes = f"<h3>Not covered</h3>{notes}" if notes else ""
    if not ledger.entries:
        return (
            f'<h2>Collectives</h2><p class="quiet">No communication{" that types know of" if notes else ""}.</p>{notes}'
        )
    heads = ("line", "direction", "collective", "dtype", "B/device", "times", "before", "after", "by")
    numbers = ("B/device", "times")
    head = "".join(f'<th scope="col"{" class=n" if h in numbers else ""}>{h}</th>' for h in heads)
    rows = "".join(_row(entry, files) for entry in ledger.entries[:_MOST_ENTRIES])
    if len(ledger.entries) > _MOST_ENTRIES:
        rows += f'<tr><td colspan="9">and {len(ledger.entries) - _MOST_ENTRIES:,} more</td></tr>'
    return (
        f'<h2 id="ledger">Collectives</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{notes}"
    )


def _row(entry: Entry, files: Sequence[str]) -> str:
    to = anchor(entry.place.file, entry.place.line, files)
    place = escape(str(entry.place))
    branches = "".join(f", branch {b.index} of {b.count}" for b in entry.branches)
    cells = (
        ("mono", f'<a href="#{to}">{place}</a>' if to else place),
        (entry.direction, entry.direction + branches),
        ("", escape(entry.collective)),
        ("mono", entry.dtype),
        ("n", f"{entry.bytes:,}"),
        ("n", "?" if entry.times is None else f"{entry.times:,}"),
        ("mono", escape(str(entry.src))),
        ("mono", escape(str(entry.dst))),
        ("", "inserted" if entry.inserted else "written"),
    )
    return "<tr>" + "".join(f'<td class="{kind}">{text}</td>' for kind, text in cells) + "</tr>"
