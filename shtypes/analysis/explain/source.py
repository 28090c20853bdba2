"""The user's source: its functions, and the names that statements assign."""

from __future__ import annotations

import ast
import bisect
import functools
import linecache
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from shtypes._compat.eqn_frames import UserFrame
from shtypes.traced.equations import SourceLine


class Excerpt(NamedTuple):
    """A function of a file, or a line outside of functions."""

    file: str
    name: str  # the function's qualified name, or ``"module"``
    start: int  # its first line, with decorators
    end: int  # its last line


def lines_of_file(file: str, start: int, end: int) -> list[str]:
    """The lines of a file from ``start`` to ``end``, inclusive."""
    return [linecache.getline(file, n).rstrip("\n") for n in range(start, end + 1)]


def spans(places: Iterable[SourceLine]) -> list[Excerpt]:
    """The outermost functions around some lines, in order of first appearance."""
    excerpts: dict[Excerpt, None] = {}
    for file, line in dict.fromkeys((place.file, place.line) for place in places if place.file):
        i = bisect.bisect_right(_functions(file), line, key=lambda f: f.start) - 1
        inside = _functions(file)[i] if i >= 0 else None
        excerpts[inside if inside is not None and line <= inside.end else Excerpt(file, "module", line, line)] = None
    return list(excerpts)


@functools.lru_cache(maxsize=256)
def _functions(file: str) -> tuple[Excerpt, ...]:
    """The top-level functions of a file, and the methods of its classes, in order."""
    tree = parsed(file)
    excerpts: list[Excerpt] = []
    pending: list[tuple[str, ast.AST]] = [("", tree)] if tree is not None else []
    while pending:
        prefix, node = pending.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                start = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                excerpts.append(Excerpt(file, f"{prefix}{child.name}", start, child.end_lineno or start))
            elif isinstance(child, ast.stmt):
                pending.append((f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix, child))
    return tuple(sorted(excerpts, key=lambda f: f.start))


#: The targets of an assignment: a name, or nested tuples of names.
Names = str | tuple["Names", ...]
#: The path of a part in a value: indices and keys, outermost first.
Path = tuple[int | str, ...]


class _Target(NamedTuple):
    """The target of an expression's value."""

    names: Names = ()  # empty for a returned value, which the caller names
    path: Path = ()  # the part of the full value


class _File(NamedTuple):
    """The named expressions of a file: by position, and calls and attributes also by their end alone."""

    exact: dict[tuple[int, int, int, int], _Target]
    ends: dict[tuple[int, int], _Target]


def assigned(frames: Sequence[UserFrame]) -> Names:
    """The names that the source assigns to an expression's value, by its frames, innermost first.

    A value that the caller does not name has the name of the function.
    """
    path: Path = ()
    function = ""
    for frame in frames:
        target = _target(frame)
        if target is None:
            break
        path = (*target.path, *path)
        if target.names:
            names, path = inside(target.names, path)
            if names and (isinstance(names, str) or not function):
                return f"{names}{_written(path)}" if isinstance(names, str) else names
            break
        function = function or _called(frame.function)
    return f"{function}{_written(path)}" if function else ()


def _called(function: str) -> str:
    """The name of a called function; the class for a method such as ``__call__``, and none for a lambda."""
    outer, _, last = function.rpartition(".")
    name = outer.rpartition(".")[2] if last.startswith("__") else last
    return name if name.isidentifier() else ""


def inside(names: Names, path: Path) -> tuple[Names, Path]:
    """The targets of one part of a value, and the rest of the path."""
    while not isinstance(names, str) and path and isinstance(path[0], int):
        if path[0] >= len(names):
            return (), path
        names, path = names[path[0]], path[1:]
    return names, path


def _written(path: Path) -> str:
    return "".join(f"[{part!r}]" for part in path)


def _target(frame: UserFrame) -> _Target | None:
    targets = _expressions(frame.file)
    target = targets.exact.get((frame.line, frame.column, frame.end_line, frame.end_column))
    # for a chain of methods over several lines, some Pythons report the line of the method
    return target or targets.ends.get((frame.end_line, frame.end_column))


@functools.lru_cache(maxsize=256)
def _expressions(file: str) -> _File:
    exact: dict[tuple[int, int, int, int], _Target] = {}
    ends: dict[tuple[int, int], _Target] = {}
    tree = parsed(file)
    for node, target in _targets(tree) if tree is not None else ():
        place = (node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0)
        exact.setdefault(place, target)
        if isinstance(node, (ast.Call, ast.Attribute)):
            ends.setdefault(place[2:], target)
    return _File(exact, ends)


@functools.lru_cache(maxsize=256)
def parsed(file: str) -> ast.Module | None:
    """The syntax tree of a file, or None if unavailable."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _targets(tree: ast.Module) -> Iterator[tuple[Any, _Target]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target, *_], value=value):
                yield from _assignment(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from _assignment(target, value)
            case ast.NamedExpr(target=target, value=value):
                yield from _assignment(target, value)
            case ast.AugAssign(target=target):
                yield node, _Target(ast.unparse(target))
            case ast.Return(value=ast.expr() as value):
                yield from _values(value, _Target())
            case ast.Lambda(body=value):
                yield from _values(value, _Target())


def _assignment(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, _Target]]:
    if isinstance(value, (ast.Tuple, ast.List)) and isinstance(target, (ast.Tuple, ast.List)):
        if len(value.elts) == len(target.elts):
            for inner, part in zip(target.elts, value.elts, strict=True):
                yield from _assignment(inner, part)
    else:
        yield from _values(value, _Target(_names(target)))


def _names(target: ast.expr) -> Names:
    if isinstance(target, (ast.Tuple, ast.List)):
        return tuple(map(_names, target.elts))
    return ast.unparse(target.value if isinstance(target, ast.Starred) else target)


def _values(value: ast.expr, target: _Target) -> Iterator[tuple[ast.expr, _Target]]:
    """The expressions whose value, or a part of it, is assigned to the target."""
    match value:
        case ast.IfExp(body=body, orelse=orelse):
            yield from _values(body, target)
            yield from _values(orelse, target)
        case ast.NamedExpr():
            return  # it has a name
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for i, part in enumerate(parts):
                yield from _values(part, target._replace(path=(*target.path, i)))
        case ast.Dict(keys=keys, values=parts):
            for key, part in zip(keys, parts, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, (str, int)):
                    yield from _values(part, target._replace(path=(*target.path, key.value)))
        case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) | ast.DictComp(value=part):
            yield from _values(part, target)
        case _:
            yield value, target


class Unique:
    """Generates unique names in a scope: the second ``h`` is ``h_2``."""

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        """The name, or the first free variant of it, now taken."""
        n = self._counts.get(name, 1)
        free = name if n == 1 else f"{name}_{n}"
        while free in self._taken:
            n += 1
            free = f"{name}_{n}"
        self._counts[name] = n + 1
        self._taken.add(free)
        return free

    def release(self, name: str) -> None:
        """Frees a name."""
        self._taken.discard(name)
        self._counts.pop(name, None)
