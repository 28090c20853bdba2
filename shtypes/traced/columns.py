"""Rows of text in columns: aligned, and as a table of `rich`."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

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
    table = Table(box=None, pad_edge=False, header_style="italic")
    for name in headings:
        table.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
