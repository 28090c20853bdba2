"""A source file for a plan: marks its expressions for a trace, and edits its text."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import itertools
import pprint
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import jax
from jax.ad_checkpoint import checkpoint_name

from shtypes.errors import ShardingTypeError, short
from shtypes.lifting.ways.moves import MARKED
from shtypes.suggestions.plan import Plan
from shtypes.tools.patch_literals import Literals
from shtypes.traced.equations import SourceLine

_MARK: Final = "__shtypes_mark__"
#: Expressions that have values; of others, only the subexpressions do.
_VALUES: Final = (
    *(ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.IfExp, ast.Name, ast.NamedExpr),
    *(ast.Subscript, ast.UnaryOp),
)
#: Expressions that need no parentheses in place of a call.
_ATOMS: Final = (ast.Attribute, ast.Call, ast.Name, ast.Subscript)


class Edits(NamedTuple):
    """The edits of a file."""

    reshards: dict[int, list[str]]  # the targets of reshards as source, by expression
    scopes: dict[int, str]  # the first lines of statements with ops that communicate themselves, and which ops
    refused: list[str]  # why other parts cannot be written


class _Edit(NamedTuple):
    """A text that is put into the file. Edits are sorted: at one position, inner calls close first and open last."""

    at: int  # its position, in bytes
    order: int  # 0: closes a call; 1: opens one, or starts a line
    nesting: int  # minus the position of the other parenthesis of a call
    text: str
    end: int  # of the text that it replaces


class _Marker(ast.NodeTransformer):
    """Marks the expressions in functions."""

    def __init__(self, source: Source) -> None:
        self.source, self.inside = source, 0
        self.exprs: list[ast.expr] = []
        self.reshards: dict[tuple[int, int], int] = {}  # the spans of reshards to a string, with their expressions

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and (inner := self.source.resharded(node)) is not None:
            where, new = self.source.span(node), self.visit(inner)
            if isinstance(new, ast.Call) and isinstance(new.func, ast.Name) and new.func.id == _MARK:
                self.reshards[where] = new.args[0].value  # type: ignore[attr-defined]
            return new
        if isinstance(node, (ast.JoinedStr, ast.pattern)):
            return node
        new = super().visit(node)
        has_value = isinstance(node, _VALUES) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if not self.inside or not has_value:
            return new
        self.exprs.append(node)  # type: ignore[arg-type]
        call = ast.Call(ast.Name(_MARK, ast.Load()), [ast.Constant(len(self.exprs) - 1), new], [])
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

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        node.value = self.visit(node.value)
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


class Source:
    """The source file of a function."""

    def __init__(self, f: Callable[..., Any], step: str) -> None:
        f = inspect.unwrap(f)
        self.name = str(getattr(f, "__qualname__", ""))
        self.types, self.step = (f"{self.name.replace('.', '_')}_{what}" for what in ("types", step))
        file = inspect.getsourcefile(f) if inspect.isfunction(f) else None
        if file is None or "<" in self.name or not Path(file).is_file():
            raise ShardingTypeError(
                "the plan cannot be written into a file",
                why="the target is no function that a file defines by its name",
            )
        self.path, self._globals = Path(file), f.__globals__
        self.bytes = self.path.read_bytes()
        self.encoding, _ = tokenize.detect_encoding(io.BytesIO(self.bytes).readline)
        text = self.bytes.decode(self.encoding)
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.content = text.replace("\r\n", "\n")
        if self.content.replace("\n", self.newline) != text:
            raise ShardingTypeError(f"`{self.path.name}` cannot be edited", why="its lines end in different ways")
        self.lines = [line.encode() for line in self.content.split("\n")]
        self.starts = [0, *itertools.accumulate(len(line) + 1 for line in self.lines)]
        self.tree = ast.parse(self.content)
        first = self.name.partition(".")[0]
        top = [n for n in self.tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == first]
        if not top:
            raise ShardingTypeError(f"`{self.path.name}` does not define `{self.name}` where it can be edited")
        self.top = top[-1]
        self.alias = self._alias()
        comment = f"# Types of `{self.name}` by `shtypes suggest --patch`: "
        #: The first line of an earlier patch's code, or None.
        self.patched = next((i for i, line in enumerate(self.lines, 1) if line.decode().startswith(comment)), None)
        self.comment = comment
        taken = {self.types, self.step}.intersection(*([self._globals] if self.patched is None else [()]))
        if taken:
            raise ShardingTypeError(
                f"the plan cannot be written into `{self.path.name}`", why=f"`{min(taken)}` is there already"
            )
        self._marker = _Marker(self)
        self._run: set[int] = set()  # the expressions in a trace
        self._marked = self._marker.visit(ast.parse(self.content))

    def _alias(self) -> str:
        """The file's name for this library; empty if it is not imported."""
        imports = [a for n in self.tree.body if isinstance(n, ast.Import) for a in n.names if a.name == "shtypes"]
        return next((a.asname or a.name for a in imports), "")

    def _free_alias(self) -> str:
        """A name for this library that the file uses for nothing else."""
        names = {getattr(n, field, None) for n in ast.walk(self.tree) for field in ("id", "arg", "name", "asname")}
        numbered = (f"shtypes_{i}" for i in itertools.count())
        return next(name for name in itertools.chain(("sh", "shtypes"), numbered) if name not in names)

    def _mark(self, k: int, x: Any) -> Any:
        """Marks the value of an expression in a trace."""
        self._run.add(k)
        return checkpoint_name(x, f"{MARKED}{k}") if isinstance(x, jax.core.Tracer) else x

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

    def text(self, k: int) -> str:
        """The source of an expression."""
        start, end = self.span(self._marker.exprs[k])
        return short(" ".join(b"\n".join(self.lines)[start:end].decode().split()), 60)

    def loaded(self, code: Any) -> dict[str, Any]:
        """Runs the file with other code, and returns its namespace."""
        dunders = ("__name__", "__file__", "__package__", "__spec__", "__loader__")
        space = {name: self._globals[name] for name in dunders if name in self._globals} | {_MARK: self._mark}
        before = list(sys.path)
        sys.path.insert(0, str(self.path.parent))  # as for a script, for imports of its siblings
        try:
            exec(compile(code, str(self.path), "exec", dont_inherit=True), space)
        finally:
            sys.path[:] = before
        return space

    def marked(self, arguments: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The function with its expressions marked, and its arguments in the trees of the marked file's classes."""
        space, types = self.loaded(self._marked), self.types_of(arguments)
        f = functools.reduce(getattr, self.name.split("."), cast(Any, SimpleNamespace(**space)))
        try:
            tree = jax.tree.structure(eval(types, space))
            return f, jax.tree.unflatten(tree, jax.tree.leaves(arguments))
        except (TypeError, ValueError, NameError, AttributeError) as error:
            why = f"`{short(' '.join(types.split()))}` does not make its arguments: {error}"
            raise ShardingTypeError("the plan cannot be written into its file", why=why) from None

    def statement(self, line: SourceLine) -> int | None:
        """The first line of a line's statement, if the statement can be wrapped in a scope."""
        if not line.file or Path(line.file).resolve() != self.path.resolve():
            return None
        of_line = [
            n for n in ast.walk(self.tree) if isinstance(n, ast.stmt) and n.lineno <= line.line <= (n.end_lineno or 0)
        ]
        return self.statement_at(max(of_line, key=lambda n: n.lineno, default=None))

    def statement_at(self, node: ast.stmt | None) -> int | None:
        """The first line of a statement that can be wrapped in a scope."""
        if not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)):
            return None
        before, after = self.starts[node.lineno - 1], self._end_of_line(node.end_lineno or 0)
        (start, end), rest = self.span(node), b"\n".join(self.lines)
        alone = not rest[before:start].strip() and not rest[end:after].partition(b"#")[0].strip()
        return node.lineno if alone and self._can_be_indented(node) else None

    @staticmethod
    def _can_be_indented(node: ast.stmt) -> bool:
        """Whether no string of a statement goes over several lines."""
        texts = (n for n in ast.walk(node) if isinstance(n, (ast.Constant, ast.JoinedStr)))
        return all(n.lineno == n.end_lineno for n in texts)

    def _scopes(self) -> dict[int, ast.With]:
        """The scopes ``with sh.implicit_comm():`` of a statement each in what has run, by the statement's line."""
        found = {}
        run = [self.span(self._marker.exprs[k]) for k in self._run]
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.With) or len(node.body) > 1 or node.lineno == node.body[0].lineno:
                continue
            one, (start, end) = node.body[0], self.span(node)
            named = [ast.unparse(item) for item in node.items] == [f"{self.alias}.implicit_comm()"]
            ran = any(start <= first and last <= end for first, last in run)
            if self.alias and named and ran and self.statement_at(one) is not None:
                found[one.lineno] = node
        return found

    def _unscoped(self, node: ast.With) -> Iterator[_Edit]:
        """The edits that take the statement of a scope out of it."""
        (one,) = node.body
        yield _Edit(self.starts[node.lineno - 1], 1, 0, "", self.starts[one.lineno - 1])
        for line in range(one.lineno, (one.end_lineno or 0) + 1):
            text = self.lines[line - 1]
            blank = len(text) - len(text.lstrip())
            first, last = (self.starts[line - 1] + min(n.col_offset, blank) for n in (node, one))
            yield _Edit(first, 1, 1, "", last)

    def _in_scope(self, first: int, sh: str) -> Iterator[_Edit]:
        node = next(n for n in ast.walk(self.tree) if isinstance(n, ast.stmt) and n.lineno == first)
        before = self.lines[first - 1][: node.col_offset].decode()
        for line in range(first, (node.end_lineno or 0) + 1):
            head = f"{before}with {sh}.implicit_comm():\n" * (line == first)
            indent = "\t" if before.endswith("\t") else "    "
            yield _Edit(self.starts[line - 1], 1, -len(self.content) - 1, head + indent, 0)

    def edited(self, edits: Edits, plan: Plan) -> bytes:
        """The file with reshards around expressions, and the types and step after the function."""
        sh, scopes = self.alias or self._free_alias(), self._scopes()
        text_edits: list[_Edit] = []
        for k, texts in edits.reshards.items():
            start, end = self.span(self._marker.exprs[k])
            text_edits.append(_Edit(start, 1, -end, f"{sh}.reshard(" * len(texts), start))
            text_edits.append(_Edit(end, 0, -start, "".join(f", {text})" for text in texts), end))
        wrapped = {self.span(self._marker.exprs[k]) for k in edits.reshards}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr) and (inner := self.resharded(node)) is not None:
                (start, end), (first, last) = self.span(node), self.span(inner)
                if self._marker.reshards.get((start, end)) not in self._run:
                    continue  # in another function
                parentheses = (first, last) not in wrapped and not isinstance(inner, (*_ATOMS, ast.Constant))
                text_edits += [
                    _Edit(start, 1, -end, "(" * parentheses, first),
                    _Edit(last, 0, -start, ")" * parentheses, end),
                ]
        text_edits += [
            *self._types_and_step(sh, plan),
            *(edit for first in edits.scopes.keys() - scopes.keys() for edit in self._in_scope(first, sh)),
            *(edit for first in scopes.keys() - edits.scopes.keys() for edit in self._unscoped(scopes[first])),
        ]
        if not self.alias:
            text_edits.append(self._import(sh))
        data, out, copied = b"\n".join(self.lines), b"", 0
        for edit in sorted(text_edits):
            out += data[copied : max(edit.at, copied)] + edit.text.encode()
            copied = max(copied, edit.at, edit.end)
        text = (out + data[copied:]).decode()
        return text.replace("\n", self.newline).encode(self.encoding)

    def _end_of_line(self, line: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1])

    def _import(self, sh: str) -> _Edit:
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
            return _Edit(self._end_of_line(after), 1, 0, f"\n{statement}", 0)
        comments = 0  # such as the encoding
        while self.lines[comments].startswith(b"#"):
            comments += 1
        return _Edit(self.starts[comments], 1, 0, f"{statement}\n\n", 0)

    def types_of(self, arguments: tuple[Any, ...]) -> str:
        """The expression of the arguments, with types as strings."""
        return pprint.pformat(Literals(self.path, self._globals).literal(arguments), width=100, sort_dicts=False)

    def _types_and_step(self, sh: str, plan: Plan) -> Iterator[_Edit]:
        """The types of the arguments and the step, which replace those of an earlier patch."""
        if (head := self.patched) is not None:
            last = max(
                (n.end_lineno or 0 for n in self.tree.body if self._named(n) & {self.types, self.step}), default=head
            )
            before = next(i for i in range(head - 1, 0, -1) if self.lines[i - 1].strip())
            yield _Edit(self._end_of_line(before), 2, 0, "", self._end_of_line(last))
        argnums = plan.problem.argnums
        which = "" if argnums == (0,) else f", {argnums[0] if len(argnums) == 1 else argnums}"
        step = f"{sh}.train_step({sh}.lift({self.name}){which})" if argnums else f"{sh}.lift({self.name})"
        mesh = ", ".join(f"{a}={n}" for a, n in plan.problem.mesh.shape.items())
        block = f"""


{self.comment}on {mesh}.
def {self.types}():
    return {textwrap.indent(self.types_of(plan.arguments), " " * 11).lstrip()}


{self.step} = {step}"""
        yield _Edit(self._end_of_line(self.top.end_lineno or 0), 1, 0, block, 0)

    @staticmethod
    def _named(node: ast.stmt) -> set[str]:
        """The names that a statement defines."""
        if isinstance(node, ast.FunctionDef):
            return {node.name}
        return {t.id for t in node.targets if isinstance(t, ast.Name)} if isinstance(node, ast.Assign) else set()
