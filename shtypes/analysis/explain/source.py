"""The user's source: the text of a line, and where a function starts and ends."""

from __future__ import annotations

import ast
import functools
import linecache
from typing import NamedTuple

from shtypes.analysis.equations import Place
from shtypes.analysis.explain.names import parsed


class Function(NamedTuple):
    """A function of a file.

    Attributes:
        name: Its name, as Python qualifies it.
        start: Its first line, decorators among them.
        end: Its last line.
    """

    name: str
    start: int
    end: int


def line_text(place: Place) -> str:
    """The text of a line, without its indentation; empty where the source cannot be had."""
    return linecache.getline(place.file, place.line).strip() if place.file else ""


def lines_of_file(file: str, start: int, end: int) -> list[str]:
    """The lines of a file from ``start`` to ``end``, both included."""
    return [linecache.getline(file, n).rstrip("\n") for n in range(start, end + 1)]


def function_at(place: Place) -> Function:
    """The outermost function around a line; of a line at the top of a module, the line itself."""
    spans = [f for f in _functions(place.file) if f.start <= place.line <= f.end]
    return spans[0] if spans else Function(place.function or "module", place.line, place.line)


@functools.lru_cache(maxsize=256)
def _functions(file: str) -> tuple[Function, ...]:
    """The functions of a file that are inside no other, and the methods of its classes."""
    tree = parsed(file)
    found: list[Function] = []
    pending: list[tuple[str, ast.AST]] = [("", tree)] if tree is not None else []
    while pending:
        prefix, node = pending.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                start = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                found.append(Function(f"{prefix}{child.name}", start, child.end_lineno or start))
            elif isinstance(child, ast.ClassDef):
                pending.append((f"{prefix}{child.name}.", child))
            else:
                pending.append((prefix, child))
    return tuple(sorted(found, key=lambda f: f.start))
