"""Reports: tables and paragraphs, as plain text, `rich` and HTML."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text as RichText


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Container[str] = ()) -> list[str]:
    """The headings and rows as aligned lines, with the columns in ``right`` right-aligned."""
    all_rows = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*all_rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip(headings, row, widths, strict=True)
        return "  ".join(cell.rjust(w) if name in right else cell.ljust(w) for name, cell, w in cells).rstrip()

    return list(map(line, all_rows))


def rich_table(headings: Sequence[str], rows: Iterable[Sequence[str]] = (), right: Container[str] = ()) -> RichTable:
    """The table for `rich`."""
    from rich.table import Table as RichTable

    table = RichTable(box=None, pad_edge=False, header_style="italic")
    for name in headings:
        table.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*map(rich_text, row))
    return table


def rich_text(text: str = "", style: str = "", *, no_wrap: bool | None = None) -> RichText:
    """`rich` text without markup."""
    from rich.text import Text as RichText

    return RichText(text, style=style, no_wrap=no_wrap)


def rich_group(*parts: RenderableType) -> Group:
    """Renderables that `rich` prints one below the other."""
    from rich.console import Group

    return Group(*parts)


#: A policy for browsers that forbids a page to load or run anything.
SEALED: Final = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
#: The style of a page, light or dark by the reader's preference.
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


#: The width of the sentences below a table.
WIDTH: Final = 120


@dataclass(frozen=True)
class Table:
    """A table of strings, with sentences below it."""

    title: str  # without one, lines are not indented
    headings: tuple[str, ...]  # the names of its columns
    rows: tuple[tuple[str, ...], ...]  # its cells
    numbers: frozenset[str] = frozenset()  # the right-aligned columns
    note: str = ""  # below the table, or in place of an empty one
    steps: tuple[str, ...] = ()  # numbered sentences
    remarks: tuple[str, ...] = ()  # other sentences

    def __str__(self) -> str:
        indent = "  " if self.title else ""
        lines = aligned(self.headings, self.rows, self.numbers) if self.rows else []
        lines = [indent + line for line in (*lines, *self.note.splitlines())]
        for mark, text in (
            *((f"{i}. ", step) for i, step in enumerate(self.steps, 1)),
            *(("", r) for r in self.remarks),
        ):
            first, later = indent + mark, indent + " " * len(mark)
            lines += textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
        return "\n".join([*([self.title] if self.title else []), *lines])

    def __rich__(self) -> Group:
        title = [rich_text(self.title, "bold")] if self.title else []
        table = [rich_table(self.headings, self.rows, self.numbers)] if self.rows else []
        steps = [f"{i}. {step}" for i, step in enumerate(self.steps, 1)]
        notes = [*([self.note] if self.note else []), *steps, *self.remarks, *([""] if self.title else [])]
        return rich_group(*title, *table, *map(rich_text, notes))

    def to_html(self) -> str:
        """The table as an HTML section."""
        kinds = [' class="number"' if name in self.numbers else "" for name in self.headings]

        def cells(tag: str, row: Iterable[str]) -> str:
            filled = zip(row, kinds, strict=True)
            return "<tr>" + "".join(f"<{tag}{kind}>{html.escape(c)}</{tag}>" for c, kind in filled) + "</tr>"

        def notes(*texts: str) -> str:
            return "".join(f'<p class="note">{html.escape(t)}</p>'.replace("\n", "<br>") for t in texts if t)

        body = "\n".join(cells("td", row) for row in self.rows)
        table = f"<table><thead>{cells('th', self.headings)}</thead><tbody>\n{body}\n</tbody></table>"
        title = f"<h2>{html.escape(self.title)}</h2>" if self.title else ""
        section = f"<section>{title}{table if self.rows else ''}{notes(self.note)}</section>"
        steps = "".join(f"<li>{html.escape(step)}</li>" for step in self.steps)
        below = (f"<ol>{steps}</ol>" if steps else "") + notes(*self.remarks)
        return f"{section}\n{below}" if below else section


@dataclass(frozen=True)
class Text:
    """A paragraph, with a `rich` style and an HTML tag."""

    text: str
    style: str = ""
    tag: str = "pre"

    def __str__(self) -> str:
        return self.text

    def __rich__(self) -> Group:
        return rich_group(rich_text(self.text, self.style), "")

    def to_html(self) -> str:
        """The paragraph as an element."""
        return f"<{self.tag}>{html.escape(self.text)}</{self.tag}>"


def page(title: str, parts: Iterable[Table | Text | str]) -> str:
    """A self-contained HTML page of tables, paragraphs and HTML."""
    head = f'<meta charset="utf-8">{SEALED}<title>{html.escape(title)}</title><style>{STYLE}</style>'
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *map(_html, parts)])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def notebook(*parts: Table | Text | str) -> str:
    """Tables, paragraphs and HTML for a notebook: the `_repr_html_` of every report."""
    style = "<style>.shtypes td, .shtypes th { text-align: left } .shtypes .number { text-align: right }</style>"
    return "\n".join([f'<div class="shtypes">{style}', *map(_html, parts), "</div>"])


def _html(part: Table | Text | str) -> str:
    return part if isinstance(part, str) else part.to_html()


class Report:
    """A report of tables, for printing, `rich`, notebooks, HTML and JSON."""

    #: Whether its title is printed above it.
    titled: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """The heading of its page."""
        raise NotImplementedError

    def tables(self) -> Sequence[Table]:
        """Its tables."""
        raise NotImplementedError

    def parts(self) -> Sequence[Table | Text]:
        """Its tables, with paragraphs between them."""
        return self.tables()

    def pictures(self) -> Sequence[str]:
        """SVG elements for pages and notebooks, above the tables."""
        return ()

    def _all(self) -> list[Table | Text]:
        return [*([Text(self.title, "bold", "h1")] if self.titled else []), *self.parts()]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self._all()))

    def __rich__(self) -> Group:
        """The same as `rich` tables."""
        return rich_group(*self._all())

    def to_html(self) -> str:
        """The report as a self-contained page."""
        return page(self.title, [notebook(*self.pictures(), *self.parts())])

    def _repr_html_(self) -> str:
        return notebook(*self.pictures(), *self._all())

    def to_dict(self) -> dict[str, Any]:
        """The content of its JSON: by default the tables."""
        tables = [{"title": t.title, "headings": t.headings, "rows": t.rows, "note": t.note} for t in self.tables()]
        return {"title": self.title, "tables": tables}

    def to_json(self, indent: int | None = None) -> str:
        """The report as JSON; the docs list its keys."""
        return json.dumps(self.to_dict(), indent=indent)
