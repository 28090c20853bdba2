"""The user's source as syntax trees: the expression at a place, and the names bound to it or to parts of a value."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

#: The lines and byte columns of an expression's first character and of its end.
Span = tuple[int, int | None, int | None, int | None]
#: A bound on the length of a chain of assignments that is followed.
_MOST_ASSIGNMENTS: Final = 8


class _Tree(NamedTuple):
    """The syntax tree of a file."""

    lines: list[bytes]
    nodes: dict[Span, ast.expr]
    parents: dict[ast.AST, ast.AST]


class Place(NamedTuple):
    """A part of an expression."""

    text: str  # of the expression, on one line
    number: int  # of the part, in the order of `ast.walk`
    is_only: bool  # whether the function has such a part nowhere else on the line


class Written(NamedTuple):
    """An expression in the source."""

    tree: _Tree
    node: ast.expr

    def text(self) -> str:
        """The source, on one line."""
        return self._text_of(self.node)

    def _text_of(self, node: ast.expr) -> str:
        if node.lineno != node.end_lineno:
            return ast.unparse(node)
        return self.tree.lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    def item(self) -> str:
        """The index or attribute that the source takes of it, ``[0]``; empty without one."""
        return self._taken()[0]

    def _taken(self) -> tuple[str, ast.expr]:
        match parent := self.tree.parents.get(self.node):
            case ast.Subscript(value=value, slice=ast.Constant(value=int(index))) if value is self.node:
                return f"[{index}]", parent
            case ast.Attribute(value=value, attr=name) if value is self.node and name != "at":
                caller = self.tree.parents.get(parent)
                if not (isinstance(caller, ast.Call) and caller.func is parent):
                    return f".{name}", parent
        return "", self.node

    def bound_names(self) -> dict[str, str]:
        """The names that its statement binds to parts of it, by paths; ``[:]`` is that of a loop's variable."""
        item, node = self._taken()
        path = item if item.startswith("[") else ""
        match self.tree.parents.get(node):
            case ast.For(iter=iterated, target=ast.Name(id=name)) if iterated is node and not item:
                return {"[:]": name}
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
                return dict(_names_by_path(target, path))
            case ast.Tuple() as parent:
                pairs = _unpacked(self.tree.parents.get(parent))
                return next((dict(_names_by_path(target, path)) for target, value in pairs if value is node), {})
        return {}

    def operands(self) -> list[ast.expr]:
        """Its direct operands: of an index expression the indexed value and the parts of the key."""
        return _operands(self.node)

    def reads(self, text: str) -> bool:
        """Whether an expression is a part of it."""
        return any(_occurrences(self.node, text))

    def place_of(self, text: str) -> Place | None:
        """The place of the ``text`` that it uses, in itself or in what it is a part of; None if that is unclear."""
        inside = [*_occurrences(self.node, text)]
        direct = [n for n in inside if any(n is part for part in self.operands())]
        used = direct if len(direct) == 1 else inside
        outer = self.tree.parents.get(self.node) if used == [self.node] else self.node
        if len(used) != 1 or not isinstance(outer, ast.expr):
            return None
        count = sum(n.lineno == self.node.lineno for n in _occurrences(self._function(), text))
        number = next(i for i, n in enumerate(ast.walk(outer)) if n is used[0])
        return Place(self._text_of(outer), number, is_only=count == 1)

    def names_of(self, text: str) -> list[str]:
        """Names that assignments of the enclosing function give an expression, and the expression, last."""
        assigned = [pair for stmt in ast.walk(self._function()) for pair in _assigned(stmt)]
        names = [text]
        for _ in range(_MOST_ASSIGNMENTS):
            name = next((bound for target, value in assigned if (bound := _bound(target, value, names[0]))), "")
            if not name or name in names:
                break
            names.insert(0, name)
        return names

    def _function(self) -> ast.AST:
        """The function that contains it, or the module."""
        node: ast.AST = self.node
        while not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.Module)):
            node = self.tree.parents[node]
        return node


def filled(text: str, parts: Mapping[int, str]) -> str:
    """An expression, written on one line, with other texts for some of its parts, by their numbers."""
    source = text.encode()
    nodes = {i: node for i, node in enumerate(ast.walk(ast.parse(text, mode="eval").body)) if i in parts}
    for i, node in sorted(nodes.items(), key=lambda item: -getattr(item[1], "col_offset", 0)):
        source = source[: node.col_offset] + parts[i].encode() + source[node.end_col_offset :]  # type: ignore[attr-defined]
    return source.decode()


def written_at(file: str, span: Span) -> Written | None:
    """The expression at a place of a file; None if the source is not available, or has no expression there."""
    lines = linecache.getlines(file)
    tree = _tree("".join(lines)) or _tree_of_lines(tuple(lines), span)
    if tree is None:
        return None
    node = tree.nodes.get(span)
    return None if node is None else Written(tree, node)


@functools.lru_cache(maxsize=64)
def _tree(text: str, before: int = 0) -> _Tree | None:
    """The tree of a text that has so many lines before it."""
    try:
        module = ast.increment_lineno(ast.parse(text), before)
    except (SyntaxError, ValueError):
        return None
    nodes = {_span(n): n for n in ast.walk(module) if isinstance(n, ast.expr)}
    calls = [n for n in nodes.values() if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    nodes |= {_span_of_method(n, n.func): n for n in calls}
    parents = {child: n for n in ast.walk(module) for child in ast.iter_child_nodes(n)}
    return _Tree([b""] * before + text.encode().splitlines(), nodes, parents)


def _tree_of_lines(lines: tuple[str, ...], span: Span) -> _Tree | None:
    """The tree of the lines of an expression, or of it alone, in a file that is not a program, such as a page."""
    start, end, column, stop = span
    of_lines = [line.encode() for line in lines[start - 1 : end]]
    if not of_lines or column is None:
        return None
    alone = [*of_lines[:-1], of_lines[-1][:stop] + b")" * bool(column) + b"\n"]
    alone[0] = (b" " * (column - 1) + b"(") * bool(column) + alone[0][column:]
    for text in (b"".join(of_lines).decode(errors="replace"), b"".join(alone).decode(errors="replace")):
        tree = _tree(text, start - 1) or _tree(f"if True:\n{text}", start - 2)  # else it is indented
        if tree is not None:
            return tree
    return None


def _span(node: ast.expr) -> Span:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _span_of_method(call: ast.Call, method: ast.expr) -> Span:
    """The place of the call of a method, whose instruction begins at the method's name if that starts a line."""
    assert isinstance(method, ast.Attribute)
    start = (method.end_col_offset or 0) - len(method.attr.encode())
    return method.end_lineno or 0, call.end_lineno, start, call.end_col_offset


def parsed(text: str) -> ast.expr | None:
    """The expression that a text is; None if it is none."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _occurrences(node: ast.AST, text: str) -> Iterator[ast.expr]:
    """The parts of a tree that read an expression."""
    sought = parsed(text)
    form = None if sought is None else ast.dump(sought)
    for n in ast.walk(node):
        if type(n) is type(sought) and ast.dump(n) == form:
            yield n


def _operands(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right]):
            return [left, right]
        case ast.UnaryOp(operand=part) | ast.Attribute(value=part):
            return [part]
        case ast.Subscript(value=ast.Attribute(value=part, attr="at") | part, slice=key):
            return [part, *_positions(key)]
        case ast.Call(func=called, args=args, keywords=keywords):
            return [*_called_of(called), *args, *(k.value for k in keywords)]
    return []


def _called_of(called: ast.expr) -> list[ast.expr]:
    """The operands in the function of a call: a method's object; of ``x.at[key].set`` the operands of the index."""
    match called:
        case ast.Attribute(value=ast.Subscript(value=ast.Attribute(attr="at")) as indexed):
            return _operands(indexed)
        case ast.Attribute(value=value):
            return [value]
    return []


def _positions(key: ast.expr) -> list[ast.expr]:
    """The parts of a key that may be arrays: its items and the bounds of its slices, without constants."""
    match key:
        case ast.Tuple(elts=items):
            return [part for item in items for part in _positions(item)]
        case ast.Slice(lower=lower, upper=upper, step=step):
            return [part for bound in (lower, upper, step) if bound is not None for part in _positions(bound)]
        case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
            return []
    return [key]


def _assigned(stmt: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets and values of an assignment."""
    match stmt:
        case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
    yield from _unpacked(stmt)


def _unpacked(stmt: ast.AST | None) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets and values of an assignment of a tuple to a tuple."""
    match stmt:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            if not any(isinstance(part, ast.Starred) for part in (*targets, *values)):
                yield from zip(targets, values, strict=False)


def _bound(target: ast.expr, value: ast.expr, text: str) -> str:
    """The name that an assignment gives an expression, which is the value or a part of it; empty if none."""
    source = ast.unparse(value)
    if not text.startswith(source) or text[len(source) :][:1] not in ("", "[", "."):
        return ""
    return name_at(dict(_names_by_path(target)), text[len(source) :])


def name_at(names: dict[str, str], path: str) -> str:
    """The expression for a part of a value, of the name of the value or of a larger part; empty without one."""
    outer = max((p for p in names if path.startswith(p)), key=len, default=None)
    return "" if outer is None else names[outer] + path[len(outer) :]


def _names_by_path(target: ast.expr, path: str = "") -> Iterator[tuple[str, str]]:
    """The names in the target of an assignment, by their paths in the value."""
    if isinstance(target, ast.Name):
        yield path, target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for i, part in enumerate(target.elts):
            if isinstance(part, ast.Starred):  # what follows has no index
                return
            yield from _names_by_path(part, f"{path}[{i}]")
