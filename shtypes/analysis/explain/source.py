"""The user's source: its lines, and where a function starts and ends."""

from __future__ import annotations

import ast
import bisect
import functools
import linecache
from collections.abc import Iterable
from typing import NamedTuple

from shtypes.analysis.explain.names import parsed
from shtypes.traced.equations import SourceLine


class Excerpt(NamedTuple):
    """A function of a file, or a few lines outside of functions."""

    file: str
    name: str  # the function's name, as Python qualifies it; of lines outside, ``"module"``
    start: int  # its first line, decorators among them
    end: int  # its last line


def lines_of_file(file: str, start: int, end: int) -> list[str]:
    """The lines of a file from ``start`` to ``end``, both included."""
    return [linecache.getline(file, n).rstrip("\n") for n in range(start, end + 1)]


def spans(places: Iterable[SourceLine]) -> list[Excerpt]:
    """The outermost functions around some lines, in the order in which the lines come first."""
    found: dict[Excerpt, None] = {}
    for file, line in dict.fromkeys((place.file, place.line) for place in places if place.file):
        i = bisect.bisect_right(_functions(file), line, key=lambda f: f.start) - 1
        inside = _functions(file)[i] if i >= 0 else None
        found[inside if inside is not None and line <= inside.end else Excerpt(file, "module", line, line)] = None
    return list(found)


@functools.lru_cache(maxsize=256)
def _functions(file: str) -> tuple[Excerpt, ...]:
    """The functions of a file that are inside no other, and the methods of its classes, in order."""
    tree = parsed(file)
    found: list[Excerpt] = []
    pending: list[tuple[str, ast.AST]] = [("", tree)] if tree is not None else []
    while pending:
        prefix, node = pending.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                start = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                found.append(Excerpt(file, f"{prefix}{child.name}", start, child.end_lineno or start))
            elif isinstance(child, ast.stmt):
                pending.append((f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix, child))
    return tuple(sorted(found, key=lambda f: f.start))
