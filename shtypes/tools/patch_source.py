"""The text of a source file: marks its expressions for a trace, and edits them."""

from __future__ import annotations

import ast
import bisect
import io
import itertools
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from shtypes.errors import ShardingTypeError, short

#: The function of a marked file that marks values.
MARK: Final = "__shtypes_mark__"
#: Expressions that have values; of others, only the subexpressions do.
_VALUES: Final = (
    *(ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.IfExp, ast.Name, ast.NamedExpr),
    *(ast.Subscript, ast.UnaryOp),
)
#: Expressions that need no parentheses in place of a call.
_ATOMS: Final = (ast.Attribute, ast.Call, ast.Name, ast.Subscript)


#: Statements with a value.
_VALUED: Final = (ast.AnnAssign, ast.Assign, ast.AugAssign, ast.Expr, ast.Return)


#: The file and position of a statement or a lambda.
Place = tuple[Path, int]
#: Python's name of functions that are lambdas.
_LAMBDA: Final = "<lambda>"


class Edits(NamedTuple):
    """The edits of a program's files."""

    reshards: dict[int, list[str]]  # the targets of reshards as source, by expression
    scopes: dict[Place, str]  # the statements and lambdas that get a scope, and why
    refused: list[str]  # why other parts cannot be written
    pins: dict[int, str]  # the types to which the values of scopes are resharded, by expression


class Edit(NamedTuple):
    """A text that is put into the file. Edits are sorted: at one position, inner calls close first and open last."""

    at: int  # its position, in bytes
    order: int  # 0: closes a call; 1: opens one, or starts a line
    nesting: int  # minus the position of the other parenthesis of a call
    text: str
    end: int  # of the text that it replaces


class _Marker(ast.NodeTransformer):
    """Marks the expressions in functions."""

    def __init__(self, source: SourceFile) -> None:
        self.source, self.inside = source, 0
        self.exprs: list[ast.expr] = []
        self.reshards: dict[tuple[int, int], int] = {}  # the spans of reshards to a string, with their expressions

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and (inner := self.source.resharded(node)) is not None:
            where, new = self.source.span(node), self.visit(inner)
            if isinstance(new, ast.Call) and isinstance(new.func, ast.Name) and new.func.id == MARK:
                self.reshards[where] = new.args[0].value  # type: ignore[attr-defined]
            return new
        if isinstance(node, (ast.JoinedStr, ast.pattern)):
            return node
        new = super().visit(node)
        has_value = isinstance(node, _VALUES) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if not self.inside or not has_value:
            return new
        self.exprs.append(node)  # type: ignore[arg-type]
        number = self.source.first + len(self.exprs) - 1
        call = ast.Call(ast.Name(MARK, ast.Load()), [ast.Constant(number), new], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def _visit_body(self, node: Any) -> Any:
        """Marks a function's body, and not its decorators, defaults and annotations."""
        self.inside += 1
        node.body = [self.visit(x) for x in node.body] if isinstance(node.body, list) else self.visit(node.body)
        self.inside -= 1
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_body  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        node.value = None if node.value is None else self.visit(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        elif not isinstance(node.func, ast.Name):
            node.func = self.visit(node.func)
        node.args = [self.visit(x) for x in node.args]
        for word in node.keywords:
            word.value = self.visit(word.value)
        return node


class SourceFile:
    """A source file, whose expressions have numbers from ``first`` on."""

    def __init__(self, path: Path, first: int = 0) -> None:
        self.path, self.first = path, first
        self.bytes = path.read_bytes()
        self.encoding, _ = tokenize.detect_encoding(io.BytesIO(self.bytes).readline)
        text = self.bytes.decode(self.encoding)
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.content = text.replace("\r\n", "\n")
        if self.content.replace("\n", self.newline) != text:
            raise ShardingTypeError(f"`{path.name}` cannot be edited", why="its lines end in different ways")
        self.lines = [line.encode() for line in self.content.split("\n")]
        self.starts = [0, *itertools.accumulate(len(line) + 1 for line in self.lines)]
        self.tree = ast.parse(self.content)
        self.alias = self._alias()
        self.run: set[int] = set()  # the expressions in a trace
        self._source_lines: dict[int, int] = {}
        self._marker = _Marker(self)
        self.marked: ast.Module = self._marker.visit(ast.parse(self.content))
        self.numbers = range(first, first + len(self._marker.exprs))

    def _alias(self) -> str:
        """The file's name for this library; empty if it is not imported."""
        imports = [a for n in self.tree.body if isinstance(n, ast.Import) for a in n.names if a.name == "shtypes"]
        return next((a.asname or a.name for a in imports), "")

    def _free_alias(self) -> str:
        """A name for this library that the file uses for nothing else."""
        names = {getattr(n, field, None) for n in ast.walk(self.tree) for field in ("id", "arg", "name", "asname")}
        numbered = (f"shtypes_{i}" for i in itertools.count())
        return next(name for name in itertools.chain(("sh", "shtypes"), numbered) if name not in names)

    def resharded(self, node: ast.expr) -> ast.expr | None:
        """The operand of a call `sh.reshard(x, "...")`, or with a mapping of strings; None for other expressions."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
            return None
        named = node.func.attr == "reshard" and ast.unparse(node.func.value) == self.alias
        target = node.args[1] if len(node.args) == 2 else None
        texts = [*target.keys, *target.values] if isinstance(target, ast.Dict) else [target]
        to_text = all(isinstance(x, ast.Constant) and isinstance(x.value, str) for x in texts)
        return node.args[0] if named and to_text else None

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The start and end of a node, in bytes."""
        at: Any = node
        return self.starts[at.lineno - 1] + at.col_offset, self.starts[at.end_lineno - 1] + at.end_col_offset

    def expression(self, k: int) -> ast.expr:
        """The expression of a number."""
        return self._marker.exprs[k - self.first]

    def expressions(self, line: int, *, all_expressions: bool) -> list[int]:
        """The expressions of a line; without names and the values of statements unless ``all_expressions``."""
        on_line = [(k, x) for k, x in zip(self.numbers, self._marker.exprs, strict=True) if _has(x, line)]
        values = [self.span(n.value) for n in self._valued()]
        return [k for k, x in on_line if all_expressions or not (isinstance(x, ast.Name) or self.span(x) in values)]

    def value(self, at: int) -> int:
        """The expression that is the value of the statement or lambda at a position; -1 if it has no number."""
        nodes = (n for n in ast.walk(self.tree) if isinstance(n, (*_VALUED, ast.Lambda)) and self.span(n)[0] == at)
        values = [self.span(x) for n in nodes if (x := getattr(n, "value", None) or getattr(n, "body", None))]
        return next((k for k, x in zip(self.numbers, self._marker.exprs, strict=True) if self.span(x) in values), -1)

    def _valued(self) -> Iterator[Any]:
        """The statements with a value."""
        return (n for n in ast.walk(self.tree) if isinstance(n, _VALUED) and n.value is not None)

    def text(self, k: int) -> str:
        """The source of an expression."""
        start, end = self.span(self.expression(k))
        return short(" ".join(b"\n".join(self.lines)[start:end].decode().split()), 60)

    def scope_of(self, line: int, function: str) -> int | None:
        """The position of what a line's scope goes around: its statement or lambda; None if it can have none."""
        on_line = [n for n in ast.walk(self.tree) if isinstance(n, (ast.stmt, ast.Lambda)) and _has(n, line)]
        if function == _LAMBDA:
            return next((self.span(n)[0] for n in on_line if isinstance(n, ast.Lambda)), None)
        statements = [n for n in on_line if isinstance(n, ast.stmt)]
        return self._scope_at(max(statements, key=lambda n: n.lineno, default=None))

    def _scope_at(self, node: ast.stmt | None) -> int | None:
        """The position of a statement that can be wrapped in a scope."""
        if not isinstance(node, _VALUED):
            return None
        before, after = self.starts[node.lineno - 1], self.end_of_line(node.end_lineno or 0)
        (start, end), rest = self.span(node), b"\n".join(self.lines)
        alone = not rest[before:start].strip() and not rest[end:after].partition(b"#")[0].strip()
        return start if alone and self._can_be_indented(node) else None

    @staticmethod
    def _can_be_indented(node: ast.stmt) -> bool:
        """Whether no string of a statement goes over several lines."""
        texts = (n for n in ast.walk(node) if isinstance(n, (ast.Constant, ast.JoinedStr)))
        return all(n.lineno == n.end_lineno for n in texts)

    def _scopes(self) -> dict[int, ast.With | ast.Call]:
        """The scopes of single statements and lambdas in what has run, by the position of these."""
        scopes: dict[int, ast.With | ast.Call] = {}
        run = [self.span(self.expression(k)) for k in self.run]
        scope = f"{self.alias}.implicit_comm"
        for node in ast.walk(self.tree) if self.alias else ():
            if not isinstance(node, (ast.With, ast.Call)):
                continue
            start, end = self.span(node)
            if not any(start <= first and last <= end for first, last in run):
                continue
            if isinstance(node, ast.With) and [ast.unparse(item) for item in node.items] == [f"{scope}()"]:
                if len(node.body) == 1 and node.lineno != node.body[0].lineno:
                    at = self._scope_at(node.body[0])
                    scopes |= {} if at is None else {at: node}
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == scope and not node.keywords:
                scopes |= {self.span(x)[0]: node for x in node.args[:1] if isinstance(x, ast.Lambda)}
        return scopes

    def _unscoped(self, node: ast.With | ast.Call) -> Iterator[Edit]:
        """The edits that take a statement or lambda out of its scope."""
        if isinstance(node, ast.Call):
            (start, end), (first, last) = self.span(node), self.span(node.args[0])
            yield from (Edit(start, 1, -end, "", first), Edit(last, 0, -start, "", end))
            return
        (one,) = node.body
        yield Edit(self.starts[node.lineno - 1], 1, 0, "", self.starts[one.lineno - 1])
        for line in range(one.lineno, (one.end_lineno or 0) + 1):
            text = self.lines[line - 1]
            blank = len(text) - len(text.lstrip())
            first, last = (self.starts[line - 1] + min(n.col_offset, blank) for n in (node, one))
            yield Edit(first, 1, 1, "", last)

    def _in_scope(self, at: int, sh: str) -> Iterator[Edit]:
        nodes = (n for n in ast.walk(self.tree) if isinstance(n, (ast.stmt, ast.Lambda)))
        node = next(n for n in nodes if self.span(n)[0] == at)
        if isinstance(node, ast.Lambda):
            start, end = self.span(node)
            yield from (Edit(start, 1, -end, f"{sh}.implicit_comm(", start), Edit(end, 0, -start, ")", end))
            return
        before = self.lines[node.lineno - 1][: node.col_offset].decode()
        for line in range(node.lineno, (node.end_lineno or 0) + 1):
            head = f"{before}with {sh}.implicit_comm():\n" * (line == node.lineno)
            indent = "\t" if before.endswith("\t") else "    "
            yield Edit(self.starts[line - 1], 1, -len(self.content) - 1, head + indent, 0)

    def edited(self, edits: Edits, more: Callable[[str], Iterator[Edit]]) -> bytes:
        """The file with reshards around expressions, and ``more`` edits that use its name for this library."""
        sh, scopes = self.alias or self._free_alias(), self._scopes()
        reshards = {k: texts for k, texts in edits.reshards.items() if k in self.numbers}
        places = {at for path, at in edits.scopes if path == self.path}
        text_edits: list[Edit] = [*more(sh)]
        for k, texts in reshards.items():
            start, end = self.span(self.expression(k))
            text_edits.append(Edit(start, 1, -end, f"{sh}.reshard(" * len(texts), start))
            text_edits.append(Edit(end, 0, -start, "".join(f", {text})" for text in texts), end))
        wrapped = {self.span(self.expression(k)) for k in reshards}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr) and (inner := self.resharded(node)) is not None:
                (start, end), (first, last) = self.span(node), self.span(inner)
                if self._marker.reshards.get((start, end)) not in self.run:
                    continue  # in another function
                parentheses = (first, last) not in wrapped and not isinstance(inner, (*_ATOMS, ast.Constant))
                text_edits += [
                    Edit(start, 1, -end, "(" * parentheses, first),
                    Edit(last, 0, -start, ")" * parentheses, end),
                ]
        text_edits += [
            *(edit for at in places - scopes.keys() for edit in self._in_scope(at, sh)),
            *(edit for at in scopes.keys() - places for edit in self._unscoped(scopes[at])),
        ]
        if text_edits and not self.alias:
            text_edits.append(self._import(sh))
        data, out, copied = b"\n".join(self.lines), b"", 0
        self._source_lines = {}
        for edit in [*sorted(text_edits), Edit(len(data), 2, 0, "", 0)]:
            for i, _ in enumerate(rest := data[copied : max(edit.at, copied)].split(b"\n")):
                self._source_lines[out.count(b"\n") + 1 + i] = bisect.bisect_right(self.starts, copied) + i
            out += b"\n".join(rest) + edit.text.encode()
            copied = max(copied, edit.at, edit.end)
        text = out.decode()
        return text.replace("\n", self.newline).encode(self.encoding)

    def source_line(self, line: int) -> int:
        """The line of the file that a line of the edited file was."""
        return self._source_lines.get(line, 0)

    def end_of_line(self, line: int) -> int:
        """The position of the end of a line, in bytes."""
        return self.starts[line - 1] + len(self.lines[line - 1])

    def _import(self, sh: str) -> Edit:
        """The edit that imports this library: after the first imports, or after the docstring."""
        after, statement = 0, "import shtypes" if sh == "shtypes" else f"import shtypes as {sh}"
        for node in self.tree.body:
            docstring = (
                isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node is self.tree.body[0]
            )
            if not isinstance(node, (ast.Import, ast.ImportFrom)) and not docstring:
                break
            after = node.end_lineno or 0
        if after:
            return Edit(self.end_of_line(after), 1, 0, f"\n{statement}", 0)
        comments = 0  # such as the encoding
        while self.lines[comments].startswith(b"#"):
            comments += 1
        return Edit(self.starts[comments], 1, 0, f"{statement}\n\n", 0)


def _has(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)
