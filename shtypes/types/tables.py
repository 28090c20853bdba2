"""Tables of text: aligned, for `rich`, as HTML; what reports print."""

from __future__ import annotations

import html
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Container[str] = ()) -> list[str]:
    """The headings and the rows as lines; the columns in ``right`` are aligned to the right."""
    every = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip(headings, row, widths, strict=True)
        return "  ".join(cell.rjust(w) if name in right else cell.ljust(w) for name, cell, w in cells).rstrip()

    return list(map(line, every))


def rich_table(headings: Sequence[str], rows: Iterable[Sequence[str]] = (), right: Container[str] = ()) -> RichTable:
    """The same as a table of `rich`."""
    from rich.table import Table as RichTable

    table = RichTable(box=None, pad_edge=False, header_style="italic")
    for name in headings:
        table.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*map(rich_text, row))
    return table


def rich_text(text: str = "", style: str = "", *, no_wrap: bool | None = None) -> Text:
    """Text of `rich`, in which brackets are brackets."""
    from rich.text import Text

    return Text(text, style=style, no_wrap=no_wrap)


def rich_group(*parts: RenderableType) -> Group:
    """What `rich` prints one below the other."""
    from rich.console import Group

    return Group(*parts)


#: A page may load nothing and run nothing, and browsers hold it to that.
SEALED: Final = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
#: The style of a page: it needs nothing else, and follows the reader's choice of light or dark.
STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th { text-align: left; font-weight: 600; border-bottom: 1px solid #8886; }
th, td { padding: .2rem .9rem .2rem 0; vertical-align: top; white-space: nowrap; }
td { font-family: ui-monospace, monospace; font-size: .85rem; border-bottom: 1px solid #8882; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; } .note { opacity: .75; }
""".strip()


@dataclass(frozen=True)
class Table:
    """A titled table of text."""

    title: str  # what it shows
    headings: tuple[str, ...]  # the names of its columns
    rows: tuple[tuple[str, ...], ...]  # its cells
    numbers: frozenset[str] = frozenset()  # the columns that are aligned to the right
    note: str = ""  # what is said below it, or in its place where it has no rows

    def __str__(self) -> str:
        shown = aligned(self.headings, self.rows, self.numbers) if self.rows else []
        lines = [self.title, *(f"  {line}" for line in shown)]
        return "\n".join([*lines, *([f"  {self.note}"] if self.note else [])])

    def __rich__(self) -> Group:
        table = [rich_table(self.headings, self.rows, self.numbers)] if self.rows else []
        note = [rich_text(self.note)] if self.note else []
        return rich_group(rich_text(self.title, "bold"), *table, *note, rich_text())

    def to_html(self) -> str:
        """The table as an HTML section."""
        kinds = [' class="number"' if name in self.numbers else "" for name in self.headings]

        def cells(tag: str, row: Iterable[str]) -> str:
            filled = zip(row, kinds, strict=True)
            return "<tr>" + "".join(f"<{tag}{kind}>{html.escape(c)}</{tag}>" for c, kind in filled) + "</tr>"

        said = html.escape(self.note).replace("\n", "<br>")
        note = f'<p class="note">{said}</p>' if self.note else ""
        body = "\n".join(cells("td", row) for row in self.rows)
        table = f"<table><thead>{cells('th', self.headings)}</thead><tbody>\n{body}\n</tbody></table>"
        title = f"<h2>{html.escape(self.title)}</h2>" if self.title else ""
        return f"<section>{title}{table if self.rows else ''}{note}</section>"


def page(title: str, parts: Iterable[Table | str]) -> str:
    """One HTML page that needs no other file, of tables and of HTML."""
    head = f'<meta charset="utf-8">{SEALED}<title>{html.escape(title)}</title><style>{STYLE}</style>'
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *map(_section, parts)])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def notebook(*parts: Table | str) -> str:
    """Tables and HTML as a notebook shows them: the `_repr_html_` of every report."""
    style = "<style>.shtypes td, .shtypes th { text-align: left } .shtypes .number { text-align: right }</style>"
    return "\n".join([f'<div class="shtypes">{style}', *map(_section, parts), "</div>"])


def _section(part: Table | str) -> str:
    return part.to_html() if isinstance(part, Table) else part


class Report:
    """A report of tables: prints, also by `rich`, shows in a notebook, and is a page. Subclasses say the parts."""

    @property
    def title(self) -> str:
        """The heading of its page."""
        raise NotImplementedError

    def tables(self) -> Sequence[Table]:
        """Its tables."""
        raise NotImplementedError

    def _parts(self) -> Sequence[Table | str]:
        """What pages and notebooks show."""
        return self.tables()

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))

    def __rich__(self) -> Group:
        """The same as `rich` tables."""
        return rich_group(*self.tables())

    def to_html(self) -> str:
        """The report as a page that needs no other file."""
        return page(self.title, [notebook(*self._parts())])

    def _repr_html_(self) -> str:
        return notebook(*self._parts())
