"""The listing as text: plain, and in colours for `rich`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from shtypes.analysis.explain.document import Block, Item, Line, Listing, Saved, type_text
from shtypes.analysis.explain.fold_layers import Repeat, fold, fold_values, merged
from shtypes.errors import how_many
from shtypes.traced.entry import Entry, merged_words
from shtypes.traced.ledger import Ledger
from shtypes.types.tables import Table, rich_group, rich_text

if TYPE_CHECKING:
    from rich.console import Group

#: The maximum column of the source; longer lines push it to the right.
_WIDEST: Final = 88
_INDENT: Final = "    "
#: The maximum number of names in the line that connects the rounds of a repeat.
_ENDS: Final = 3
#: The maximum number of lines in a table.
_MOST_ROWS: Final = 1000
#: The maximum length of a source line.
_LONGEST: Final = 80


class TextRow(NamedTuple):
    """One row of the text."""

    kind: str  # a key of the styles
    text: str
    source: str = ""  # the source


def plain(listing: Listing, *, source: bool, totals: bool) -> str:
    """The text of a listing."""
    rows = list(_single_spaced(_rows(listing, totals=totals)))
    width = min(max((len(r.text) for r in rows if r.source), default=0), _WIDEST)
    return "\n".join(f"{r.text:{width}}  | {r.source}" if source and r.source else r.text for r in rows)


def rich(listing: Listing) -> Group:
    """The listing for `rich`."""
    rows = list(_single_spaced(_rows(listing, totals=False)))
    width = min(max((len(r.text) for r in rows if r.source), default=0), _WIDEST)
    texts = []
    for row in rows:
        text = rich_text(row.text, _STYLES[row.kind], no_wrap=True)
        if row.source:
            text.append(" " * max(width - len(row.text), 0) + "  | ", style="dim").append(row.source, style="dim")
        texts.append(text)
    return rich_group(*texts, rich_text(), ledger_of(listing), *(rich_text(t) for t in _notes(listing)))


def table(listing: Listing) -> Table:
    """The lines of a listing as a table, with its totals below."""
    rows = [
        (
            str(line.place),
            line.direction,
            line.name,
            type_text(line.type),
            " ".join((line.op, *line.operands)),
            "; ".join(map(collective_text, line.collectives)),
        )
        for line in listing.lines[:_MOST_ROWS]
    ]
    more = len(listing.lines) - len(rows)
    notes = [*([f"and {more} lines more"] if more else []), *ledger_of(listing).notes(), *_notes(listing)]
    title = f'{listing.function}{_on(listing)}, policy "{listing.policy}"'
    headings = ("line", "direction", "value", "type", "made by", "communication")
    return Table(title, headings, tuple(rows), note="\n".join(notes))


_STYLES: Final = {
    "title": "bold",
    "note": "",
    "line": "",
    "cast": "yellow",
    "collective": "bold magenta",
    "heading": "dim italic",
    "block": "cyan",
    "repeat": "cyan",
}


def _rows(listing: Listing, *, totals: bool) -> Iterator[TextRow]:
    yield TextRow("title", f'{listing.function}{_on(listing)}, policy "{listing.policy}"')
    yield TextRow("note", "")
    rows = _Rows(listing)
    yield from rows.values(listing.arguments)
    if listing.arguments and listing.items:
        yield TextRow("note", "")
    # a function that takes gradients itself goes on after them, in program order
    yield from rows.items(listing.forward if listing.gradient else listing.items)
    if listing.gradient:
        yield TextRow("note", "")
        yield from rows.values(listing.seeds)
        yield from rows.items(listing.backward)
        others = [line for line in listing.gradients if line.op]
        if others:
            yield TextRow("note", "")
        yield from rows.values(others)
    if totals:
        yield TextRow("note", "")
        for text in (*str(ledger_of(listing)).splitlines(), *_notes(listing)):
            yield TextRow("note", text)


def _on(listing: Listing) -> str:
    return "" if listing.mesh is None else f" on the mesh {listing.mesh}"


def ledger_of(listing: Listing) -> Ledger:
    """The ledger, folded if the listing is."""
    return merged(listing.ledger) if listing.fold else listing.ledger


def _notes(listing: Listing) -> list[str]:
    """Notes on residuals, and on functions that were not optimized jointly."""
    return [*_saved_rows(listing), *(f"op by op: {why}" for why in listing.undecided)]


def _saved_rows(listing: Listing) -> list[str]:
    if not listing.gradient and not listing.saved:
        return []
    if all(value.argument for value in listing.saved):
        return ["saved for the backward pass: nothing but arguments"]
    rows = [f"saved for the backward pass, besides arguments: {listing.saved_bytes} B/device"]
    sizes = bytes_by_type(listing.saved)
    return rows + [f"  {sum(n)} B/device: {f'{len(n)} of ' if len(n) > 1 else ''}{text}" for text, n in sizes]


def bytes_by_type(saved: Iterable[Saved]) -> list[tuple[str, list[int]]]:
    """For each type of residuals, without arguments, the bytes of each; the largest first."""
    sizes: dict[str, list[int]] = {}
    for value in saved:
        if not value.argument:
            sizes.setdefault(type_text(value.type), []).append(value.bytes)
    return sorted(sizes.items(), key=lambda pair: -sum(pair[1]))


class _Rows:
    """The rows of a listing, level by level."""

    def __init__(self, listing: Listing) -> None:
        self.fold = listing.fold
        self.types = {line.name: type_text(line.type) for line in (*listing.arguments, *listing.seeds, *listing.lines)}

    def values(self, lines: Sequence[Line]) -> Iterator[TextRow]:
        """Lines of inputs or results."""
        for item in fold_values(lines) if self.fold else lines:
            if isinstance(item, Repeat):
                yield from _repeat(item, "", (TextRow("line", f"{_INDENT}{line}") for line in item.items))
            else:
                yield TextRow("line", str(item))

    def items(self, items: Sequence[Item], indent: str = "") -> Iterator[TextRow]:
        """The rows of one level; backward lines under the forward line that causes them."""
        heading: Line | str | None = None
        place = None
        for item in fold(items, self.types) if self.fold else items:
            if isinstance(item, Repeat):
                yield from _repeat(item, indent, self.items(item.items, indent + _INDENT))
                heading = place = None
                continue
            group = item.cause if item.direction == "backward" else "again" if item.direction == "recomputed" else None
            if group is not heading:
                yield TextRow("note", "")
                if isinstance(group, Line):
                    yield TextRow("heading", f"{indent}# {group}", _source_text(group))
                elif group:
                    yield TextRow("heading", f"{indent}# computed again")
                heading = group
            if isinstance(item, Line):
                source = "" if item.direction != "forward" or item.place == place else _source_text(item)
                yield from _line(item, indent, source)
                place = item.place
            else:
                yield from self.block(item, indent)
                place = None

    def block(self, block: Block, indent: str) -> Iterator[TextRow]:
        branch = not block.results and block.cause is None
        yield TextRow(
            "block", f"{indent}{block.title}:", "" if branch or block.direction != "forward" else _source_text(block)
        )
        inner = indent + _INDENT
        for line in block.parameters:
            yield from _line(line, inner)
        if block.parameters and block.items:
            yield TextRow("note", "")
        yield from self.items(block.items, inner)
        for line in block.results:
            yield from _line(line, indent)


def _repeat(repeat: Repeat, indent: str, rows: Iterator[TextRow]) -> Iterator[TextRow]:
    """One round, with the number of rounds above and their connection below."""
    total = repeat.sent.total
    sent = f", {total.bytes} B/device in {how_many(total.launches, 'collective')} in all" if repeat.sent else ""
    yield TextRow("note", "")
    yield TextRow("repeat", f"{indent}repeated {repeat.times} times{sent}:")
    yield from rows
    if repeat.ends:
        verb = "the last makes" if repeat.direction == "forward" else "the first takes"
        notes = [f"{other} for {name}" for name, other in repeat.ends[:_ENDS]]
        notes += [f"{len(repeat.ends) - _ENDS} more"] if len(repeat.ends) > _ENDS else []
        yield TextRow("repeat", f"{indent}{verb} {', '.join(notes)}")
    yield TextRow("note", "")


def _line(line: Line, indent: str, source: str = "") -> Iterator[TextRow]:
    kind = "collective" if line.collectives else "cast" if line.cast else "line"
    sent = "".join(f"  <- {collective_text(e)}" for e in line.collectives) + "  (merged)" * line.merged
    unknown = f"  <- not covered: {line.not_covered}" if line.not_covered else ""
    yield TextRow(kind, f"{indent}{line}{sent}{unknown}", source)


def collective_text(entry: Entry) -> str:
    """One collective in a few words."""
    times = "an unknown number of times" if entry.times is None else f"{entry.times} times"
    notes = [f"{entry}, {entry.bytes} B/device", "" if entry.times == 1 else times, merged_words(entry)]
    return ", ".join(filter(None, notes))


def _source_text(item: Item) -> str:
    text = item.place.text
    cut = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return f"{item.place}  {cut}" if text else str(item.place)


def _single_spaced(rows: Iterable[TextRow]) -> Iterator[TextRow]:
    """The rows without consecutive empty ones, or empty ones at the start of a block."""
    last = TextRow("note", "")
    for row in rows:
        if row.text or (last.text and not last.text.endswith(":")):
            yield row
            last = row
