"""Rows of text in columns: aligned, and as tables of `rich`, which is loaded when it prints."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Container[str] = ()) -> list[str]:
    """The headings and the rows as lines; the columns in ``right`` are aligned to the right."""
    every = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip(headings, row, widths, strict=True)
        return "  ".join(cell.rjust(w) if name in right else cell.ljust(w) for name, cell, w in cells).rstrip()

    return list(map(line, every))


def rich_table(headings: Sequence[str], rows: Iterable[Sequence[str]] = (), right: Container[str] = ()) -> Table:
    """The same as a table of `rich`."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="italic")
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
