"""Tables as text, for `rich` and as HTML: what reports print."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
    """A titled table of text.

    Attributes:
        title: What it shows.
        headings: The names of its columns.
        rows: Its cells.
        numbers: The columns that are aligned to the right.
        note: What is said below it, or in its place where it has no rows.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()
    note: str = ""

    def __str__(self) -> str:
        lines = [self.title, *(f"  {line}" for line in self._lines())]
        return "\n".join([*lines, *([f"  {self.note}"] if self.note else [])])

    def _lines(self) -> list[str]:
        if not self.rows:
            return []
        every = [self.headings, *self.rows]
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        return [self._line(row, widths) for row in every]

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        cells = zip(self.headings, row, widths, strict=True)
        return "  ".join(c.rjust(w) if h in self.numbers else c.ljust(w) for h, c, w in cells).rstrip()

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, pad_edge=False, header_style="italic")
        for name in self.headings:
            table.add_column(name, justify="right" if name in self.numbers else "left")
        for row in self.rows:
            table.add_row(*map(Text, row))
        parts: list[Any] = [Text(self.title, style="bold")]
        parts += [table] if self.rows else []
        return Group(*parts, *([Text(self.note)] if self.note else []), Text(""))

    def to_html(self) -> str:
        """The table as an HTML section."""
        kinds = [' class="number"' if name in self.numbers else "" for name in self.headings]

        def cells(tag: str, row: Iterable[str]) -> str:
            filled = zip(row, kinds, strict=True)
            return "<tr>" + "".join(f"<{tag}{kind}>{html.escape(c)}</{tag}>" for c, kind in filled) + "</tr>"

        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        body = "\n".join(cells("td", row) for row in self.rows)
        table = f"<table><thead>{cells('th', self.headings)}</thead><tbody>\n{body}\n</tbody></table>"
        return f"<section><h2>{html.escape(self.title)}</h2>{table if self.rows else ''}{note}</section>"


def page(title: str, parts: Iterable[str]) -> str:
    """One HTML page that needs no other file.

    Args:
        title: Its title.
        parts: Its sections, as HTML.
    """
    head = f'<meta charset="utf-8">{SEALED}<title>{html.escape(title)}</title><style>{STYLE}</style>'
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *parts])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


__all__ = ["SEALED", "STYLE", "Table", "page"]
