"""A plan written into the source of the function that it is of: reshards around expressions, types beside it.

Which expression a reshard belongs around is not guessed: the function is traced once more from a copy of its source in
which each expression marks the values that it gives, and the marks say which expression an operand comes from. What is
written is traced before it replaces the file, and sends what the plan does.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import inspect
import io
import itertools
import os
import pprint
import re
import shutil
import sys
import tempfile
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name

from shtypes.analysis.check import check
from shtypes.core.meshes import use_mesh
from shtypes.errors import ShardingTypeError, short
from shtypes.solver.apply import Taken, Written, taken
from shtypes.solver.plan import Plan
from shtypes.solver.program import Function, Op, Operand, Program, Value, is_value
from shtypes.traced.equations import SourceLine
from shtypes.types import ShType
from shtypes.types.target import target_text

_MARK: Final = "__shtypes_mark__"
_MARKED: Final = "shtypes."
#: Expressions that give values; of others only what is in them does.
_GIVE: Final = (
    *(ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.IfExp, ast.Name, ast.NamedExpr),
    *(ast.Subscript, ast.UnaryOp),
)
#: What needs no parentheses where it stands for a call.
_ATOMS: Final = (ast.Attribute, ast.Call, ast.Name, ast.Subscript)


class Patch(NamedTuple):
    """A file, and what it becomes.

    Attributes:
        path: The file.
        before: Its bytes.
        after: Those with the plan in them.
        encoding: How they are text.
    """

    path: Path
    before: bytes
    after: bytes
    encoding: str

    @property
    def diff(self) -> str:
        """The unified diff."""
        old, new = (data.decode(self.encoding).splitlines(keepends=True) for data in (self.before, self.after))
        lines = difflib.unified_diff(old, new, f"a/{self.path.name}", f"b/{self.path.name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self) -> None:
        """Replaces the file at once, with its permissions.

        Raises:
            ShardingTypeError: it changed since it was read.
        """
        path = self.path.resolve()  # a link stays one
        if path.read_bytes() != self.before:
            raise ShardingTypeError(f"`{path.name}` changed while its plan was looked for", hints=["ask again"])
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self.after)
                file.flush()
                os.fsync(file.fileno())
            shutil.copymode(path, name)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def patched(f: Callable[..., Any], plan: Plan) -> Patch:
    """The file of a function with a plan in it: its reshards, the types of its arguments, and a step in them.

    Beside ``loss`` it gets ``loss_types``, which returns the arguments' types, and ``loss_step``, which is
    ``sh.train_step(sh.lift(loss))`` (``loss_typed``, without a backward pass). Calls of `sh.reshard` to a text, which
    the search leaves out, give way to those of the plan, and what an earlier patch wrote beside gives way to its like.

    Raises:
        ShardingTypeError: something of the plan cannot be written there; each is named, with the reason.
    """
    source = _Source(f, "step" if plan.problem.argnums else "typed")
    shapes = jax.tree.map(_struct, plan.arguments, is_leaf=lambda x: isinstance(x, ShType))
    marked = Function(source.marked(), shapes, plan.problem.argnums, plan.problem.mesh)
    reasons = []
    for free in (False, True):  # most reshards that send nothing are what the rules do anyway
        edits = _edits(plan, marked, source, free=free)
        after = source.edited(edits, plan)
        wrong = edits.refused or _differs(source, after, plan)
        if not wrong:
            return Patch(source.path, source.bytes, after, source.encoding)
        wrong = [*edits.scopes.values(), *wrong]
        reasons.append(wrong)
    raise ShardingTypeError(
        f"the plan cannot be written into `{source.path.name}`",
        why="\n".join(dict.fromkeys(min(reasons, key=len))),
        hints=[f'sh.apply({source.name}, "plan.json"), which needs no edit'],
    )


def _differs(source: _Source, after: bytes, plan: Plan) -> list[str]:
    """Whether a patched file does something else than the plan, and what."""
    space, goal = source.loaded(after), plan.ledger.total
    try:
        with use_mesh(plan.problem.mesh):
            sent = check(space[source.step], *space[source.types]()).ledger.total
    except ShardingTypeError as error:
        return [f"it would not type: {error.what} ({error.where})"]
    same = (sent.bytes, sent.launches) == (goal.bytes, goal.launches)
    return [] if same else [f"it would send {sent.bytes} B on each device, and the plan sends {goal.bytes} B"]


def _struct(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, ShType) else x


def _literal(x: Any) -> Any:
    """Arguments with the texts of types, as what Python prints as a literal."""
    if isinstance(x, ShType):
        return str(x)
    if type(x) is dict and all(isinstance(k, (str, int)) for k in x):
        return {k: _literal(v) for k, v in x.items()}
    if type(x) in (list, tuple):
        return type(x)(map(_literal, x))
    if x is None or isinstance(x, (bool, int, float, complex, str)):
        return x
    what = f"the arguments have a `{type(x).__name__}` in them, which no literal of Python says"
    raise ShardingTypeError("the plan cannot be written into its file", why=what)


# which expression a reshard is around


class _Marks:
    """The marks of a program that was traced from a marked source."""

    def __init__(self, program: Program) -> None:
        self.ops = {op.id for op in program.ops if self._is_mark(op)}
        self.of = {v.id: op for op in program.ops if op.id in self.ops for v in op.results}

    @staticmethod
    def _is_mark(op: Op) -> bool:
        return op.name == "name" and str(op.eqn.params["name"]).startswith(_MARKED)

    def chain(self, x: Operand) -> list[tuple[int, int]]:
        """The expressions that give a value, the one where it is used first; and how often each runs."""
        found = []
        while isinstance(x, Value) and x.id in self.of:
            op = self.of[x.id]
            found.append((int(op.eqn.params["name"].removeprefix(_MARKED)), op.times))
            x = op.operands[0]
        return found


class _Planned:
    """A value that a line takes, the expressions that give it (the last one first), and what it is brought to."""

    def __init__(self, use: Taken, chain: list[tuple[int, int]], places: Mapping[str, Written]) -> None:
        written = places.get(use.place, Written())
        second = places.get(f"second.{use.value.id}", Written()) if written.second else Written()
        self.use, self.chain = use, chain
        self.types = [w.to for w in (second, written) if w.to is not None]
        self.early = second.to is not None  # whether the first of them is made where the value is

    @property
    def texts(self) -> list[str]:
        """The targets of reshards, in turn; sizes are as they come."""
        return [re.sub(r"(?<=[\[,])\d+", "_", target_text(t)).replace(",_", ", _") for t in self.types]


class _Edits(NamedTuple):
    """What is written into a file."""

    reshards: dict[int, list[str]]  # by expression, the targets of reshards around it
    scopes: dict[int, str]  # the first lines of statements in which operations communicate themselves, and which do
    refused: list[str]  # why something else cannot be written


def _edits(plan: Plan, marked: Program, source: _Source, *, free: bool) -> _Edits:
    """What is written into a file.

    Reshards that send nothing are left out unless ``free``, and where no expression is.
    """
    program, marks, edits = plan.problem.program, _Marks(marked), _Edits({}, {}, [])
    uses = _uses(program)
    others = [u for u in _uses(marked) if u.place.partition(".")[0] not in map(str, marks.ops)]
    if [(u.op, u.value.shape) for u in uses] != [(u.op, u.value.shape) for u in others]:
        return edits._replace(refused=["its program is another one when its expressions are looked at one by one"])
    places = plan.decisions.places
    kept = {p: w if free or p not in plan.free else dataclasses.replace(w, to=None) for p, w in places.items()}
    planned = [_Planned(u, marks.chain(o.value), kept) for u, o in zip(uses, others, strict=True)]
    _move_out(planned, program)
    times = _times(program)
    through: dict[int, list[_Planned]] = {}
    for p in planned:
        for k, _ in p.chain:
            through.setdefault(k, []).append(p)
    inside = [
        (op.place, f"{op.place} <- {op.name}: it communicates itself")
        for op in program.ops
        if op.id in plan.decisions.joined
    ]
    done: set[int] = set()
    for p in planned:
        if not p.types or id(p) in done:
            continue
        if not p.chain:
            if p.use.place not in plan.free:
                inside.append((p.use.line, f"{_at(p.use)}: no expression of a line gives it"))
            continue
        # Once, before a loop, if that is what the plan has; and where all that comes through is brought there alike.
        most = times[p.use.value.id] if p.early else times[p.use.place]
        sites = [k for k, often in p.chain if often <= most]
        alike = (k for k in sites if all(q.texts == p.texts and id(q) not in done for q in through[k]))
        if (site := next(alike, None)) is None:
            several = source.text(p.chain[0][0])
            edits.refused.append(
                f"{_at(p.use)}: `{several}` stands for several values, which the plan has in several types"
            )
            continue
        edits.reshards[site] = p.texts
        done.update(map(id, through[site]))
    for line, reason in inside:
        first = source.statement(line)
        if first is None:
            edits.refused.append(reason)
        else:
            edits.scopes[first] = reason
    return edits


def _at(use: Taken) -> str:
    return f"{use.line} <- {use.name} in {use.op}" if use.line.file else f"{use.name} in {use.op}"


def _move_out(planned: Sequence[_Planned], program: Program) -> None:
    """Moves reshards inside of what is called, such as before the division of a mean, to where an expression is.

    They go over operations that have one operand and leave its dims, or permute them; what was meant stays the same.
    """
    made_by = {v.id: op for op in program.ops for v in op.results}
    ops = {str(op.id): op for op in program.ops}
    uses: dict[int, list[_Planned]] = {}
    of_op: dict[int, _Planned] = {}
    for p in planned:
        uses.setdefault(p.use.value.id, []).append(p)
        if (op := ops.get(p.use.place.partition(".")[0])) is not None:
            of_op[op.id] = p

    def op_of(p: _Planned) -> Op | None:
        return ops.get(p.use.place.partition(".")[0])

    def after(p: _Planned, types: list[ShType]) -> list[tuple[_Planned, list[ShType]]]:
        """The uses of what is made of a value, to be brought to these types; none where that is not the same."""
        op, found = op_of(p), list[tuple[_Planned, list[ShType]]]()
        order = None if op is None else _permutation(op)
        for q in uses.get(op.results[0].id, []) if op is not None and order is not None else []:
            moved = [*(_permuted(t, order or ()) for t in types), *([] if q.chain else q.types)]
            more = [(q, moved)] if q.chain else [*after(q, moved), (q, [])]
            if len(more) == 1 and not q.chain:
                return []
            found += more
        return found

    def before(p: _Planned) -> _Planned | None:
        """The use that makes a value which all take alike."""
        op = made_by.get(p.use.value.id)
        alike = all(q.texts == p.texts for q in uses[p.use.value.id])
        return of_op.get(op.id) if op is not None and alike and _permutation(op) is not None else None

    for p in planned:
        if not p.types or p.chain:
            continue
        if moved := after(p, p.types):
            for q, types in moved:
                q.types = [*types, *q.types] if q.chain else []
            p.types = []
        elif (first := before(p)) is not None and first.chain:
            order = _permutation(made_by[p.use.value.id]) or ()
            inverse = sorted(range(len(order)), key=order.__getitem__)
            first.types = [*first.types, *(_permuted(t, inverse) for t in p.types)]
            for q in uses[p.use.value.id]:
                q.types = []


def _permutation(op: Op) -> Sequence[int] | None:
    """How an operation of one operand permutes its dims; None where it does anything else with them."""
    values = [x for x in op.operands if is_value(x)]
    if len(values) != 1 or len(op.results) != 1 or values[0].dtype != op.results[0].dtype:
        return None
    if op.name == "transpose":
        order: Sequence[int] = op.eqn.params["permutation"]
        return order
    return range(len(values[0].shape)) if values[0].shape == op.results[0].shape else None


def _permuted(t: ShType, order: Sequence[int]) -> ShType:
    return t.replace(dims=tuple(t.dims[i] for i in order))


def _uses(program: Program) -> list[Taken]:
    """What lines take, and the results."""
    outputs = [(i, v) for i, v in enumerate(program.outputs) if is_value(v)]
    return [*taken(program), *(Taken(f"result.{i}", SourceLine(), v.name, "result", v) for i, v in outputs)]


def _times(program: Program) -> dict[str | int, int]:
    """How often each place of a program, and what makes each value, runs."""
    found: dict[str | int, int] = {v.id: 1 for v in program.inputs}
    for op in program.ops:
        found.update((v.id, op.times) for v in op.results)
        found.update((f"{op.id}.{i}", op.times) for i in range(len(op.operands)))
    for loop in program.loops:
        inside = loop.times * loop.scan.length
        found.update((v.id, inside) for v in loop.inputs)
        found.update((v.id, loop.times) for v in loop.results)
    for t in taken(program):  # of loops: as often as the value is there
        found.setdefault(t.place, found[t.value.id])
    found.update((f"result.{i}", 1) for i in range(len(program.outputs)))
    return found


# the source


def _mark(k: int, x: Any) -> Any:
    """The value of an expression, which says so in a trace."""
    return checkpoint_name(x, f"{_MARKED}{k}") if isinstance(x, jax.core.Tracer) else x


class _Marker(ast.NodeTransformer):
    """Marks the expressions of functions."""

    def __init__(self, source: _Source) -> None:
        self.source, self.inside = source, 0
        self.found: list[ast.expr] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and (inner := self.source.resharded(node)) is not None:
            return self.visit(inner)
        if isinstance(node, (ast.JoinedStr, ast.pattern)):
            return node
        new = super().visit(node)
        given = isinstance(node, _GIVE) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if not self.inside or not given:
            return new
        self.found.append(node)  # type: ignore[arg-type]
        call = ast.Call(ast.Name(_MARK, ast.Load()), [ast.Constant(len(self.found) - 1), new], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def _visit_body(self, node: Any) -> Any:
        """A function: what it runs, and not its decorators, defaults and annotations."""
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


class _Source:
    """The file of a function."""

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
        self.text_ = text.replace("\r\n", "\n")
        if self.text_.replace("\n", self.newline) != text:
            raise ShardingTypeError(f"`{self.path.name}` cannot be edited", why="its lines end in different ways")
        self.lines = [line.encode() for line in self.text_.split("\n")]
        self.starts = [0, *itertools.accumulate(len(line) + 1 for line in self.lines)]
        self.tree = ast.parse(self.text_)
        self.top = next((n for n in self.tree.body if self._defines(n)), None)
        if self.top is None:
            raise ShardingTypeError(f"`{self.path.name}` does not define `{self.name}` where it can be edited")
        self.alias = self._alias()
        comment = f"# Types of `{self.name}` by `shtypes suggest --patch`: "
        #: The line from which on an earlier patch wrote beside the function; None without one.
        self.patched = next((i for i, line in enumerate(self.lines, 1) if line.decode().startswith(comment)), None)
        self.comment = comment
        taken = {self.types, self.step}.intersection(*([self._globals] if self.patched is None else [()]))
        if taken:
            raise ShardingTypeError(
                f"the plan cannot be written into `{self.path.name}`", why=f"`{min(taken)}` is there already"
            )
        self._marker = _Marker(self)
        self._marked = self._marker.visit(ast.parse(self.text_))

    def _defines(self, node: ast.stmt) -> bool:
        return isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == self.name.partition(".")[0]

    def _alias(self) -> str:
        """What this library is called in the file; empty where it is not imported."""
        imports = [a for n in self.tree.body if isinstance(n, ast.Import) for a in n.names if a.name == "shtypes"]
        return next((a.asname or a.name for a in imports), "")

    def resharded(self, node: ast.expr) -> ast.expr | None:
        """What a call `sh.reshard(x, "...")` is around; None for other expressions."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
            return None
        named = node.func.attr == "reshard" and ast.unparse(node.func.value) == self.alias
        said = len(node.args) == 2 and isinstance(node.args[1], ast.Constant) and isinstance(node.args[1].value, str)
        return node.args[0] if named and said else None

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends, in bytes."""
        at: Any = node
        return self.starts[at.lineno - 1] + at.col_offset, self.starts[at.end_lineno - 1] + at.end_col_offset

    def text(self, k: int) -> str:
        """The text of an expression."""
        start, end = self.span(self._marker.found[k])
        return short(" ".join(b"\n".join(self.lines)[start:end].decode().split()), 60)

    def loaded(self, code: Any) -> dict[str, Any]:
        """What the file defines with other code in it."""
        dunders = ("__name__", "__file__", "__package__", "__spec__", "__loader__")
        space = {name: self._globals[name] for name in dunders if name in self._globals} | {_MARK: _mark}
        before = list(sys.path)
        sys.path.insert(0, str(self.path.parent))  # as for a script: its neighbours can be imported
        try:
            exec(compile(code, str(self.path), "exec", dont_inherit=True), space)
        finally:
            sys.path[:] = before
        return space

    def marked(self) -> Callable[..., Any]:
        """The function with its expressions marked."""
        space = self.loaded(self._marked)
        first, *rest = self.name.split(".")
        f: Callable[..., Any] = functools.reduce(getattr, rest, space[first])
        return f

    def statement(self, line: SourceLine) -> int | None:
        """The first line of the statement that a line is in, where it can stand in a scope of its own."""
        if not line.file or Path(line.file).resolve() != self.path.resolve():
            return None
        of_line = [
            n for n in ast.walk(self.tree) if isinstance(n, ast.stmt) and n.lineno <= line.line <= (n.end_lineno or 0)
        ]
        node = max(of_line, key=lambda n: n.lineno, default=None)
        if not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)):
            return None
        (start, end), texts = (
            self.span(node),
            [n for n in ast.walk(node) if isinstance(n, (ast.Constant, ast.JoinedStr))],
        )
        before, after = self.starts[node.lineno - 1], self._end_of_line(node.end_lineno or 0)
        rest = b"\n".join(self.lines)
        alone = not rest[before:start].strip() and not rest[end:after].partition(b"#")[0].strip()
        return node.lineno if alone and all(n.lineno == n.end_lineno for n in texts) else None

    def _in_scope(self, first: int, sh: str) -> Iterator[tuple[int, int, int, str, int]]:
        node = next(n for n in ast.walk(self.tree) if isinstance(n, ast.stmt) and n.lineno == first)
        for line in range(first, (node.end_lineno or 0) + 1):
            head = f"{' ' * node.col_offset}with {sh}.implicit_comm():\n" * (line == first)
            yield self.starts[line - 1], 1, -len(self.text_) - 1, head + "    ", 0

    def edited(self, edits: _Edits, plan: Plan) -> bytes:
        """The file with reshards around expressions, and the types and the step beside the function."""
        sh = self.alias or "sh"
        # Where (inner ones close first and open last), what is put there, and up to where the text is left out.
        pieces: list[tuple[int, int, int, str, int]] = []
        for k, texts in edits.reshards.items():
            start, end = self.span(self._marker.found[k])
            pieces.append((start, 1, -end, f"{sh}.reshard(" * len(texts), start))
            pieces.append((end, 0, -start, "".join(f', "{text}")' for text in texts), end))
        wrapped = {self.span(self._marker.found[k]) for k in edits.reshards}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr) and (inner := self.resharded(node)) is not None:
                (start, end), (first, last) = self.span(node), self.span(inner)
                loose = (first, last) not in wrapped and not isinstance(inner, (*_ATOMS, ast.Constant))
                pieces += [(start, 1, -end, "(" * loose, first), (last, 0, -start, ")" * loose, end)]
        pieces += [*self._beside(sh, plan), *(piece for first in edits.scopes for piece in self._in_scope(first, sh))]
        if not self.alias:
            pieces.append(self._import())
        data, out, now = b"\n".join(self.lines), b"", 0
        for at, _, _, put, cut in sorted(pieces):
            out += data[now : max(at, now)] + put.encode()
            now = max(now, at, cut)
        text = (out + data[now:]).decode()
        return text.replace("\n", self.newline).encode(self.encoding)

    def _end_of_line(self, line: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1])

    def _import(self) -> tuple[int, int, int, str, int]:
        """Where this library is imported: after the first imports, or before all else but the docstring."""
        after = 0
        for node in self.tree.body:
            docstring = (
                isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node is self.tree.body[0]
            )
            if not isinstance(node, (ast.Import, ast.ImportFrom)) and not docstring:
                break
            after = node.end_lineno or 0
        if after:
            return self._end_of_line(after), 1, 0, "\nimport shtypes as sh", 0
        comments = 0  # such as the encoding
        while self.lines[comments].startswith(b"#"):
            comments += 1
        return self.starts[comments], 1, 0, "import shtypes as sh\n\n", 0

    def _beside(self, sh: str, plan: Plan) -> Iterator[tuple[int, int, int, str, int]]:
        """The types of the arguments and the step, in the place of those that were written before."""
        if (head := self.patched) is not None:
            last = max(
                (n.end_lineno or 0 for n in self.tree.body if self._named(n) & {self.types, self.step}), default=head
            )
            before = next(i for i in range(head - 1, 0, -1) if self.lines[i - 1].strip())
            yield self._end_of_line(before), 2, 0, "", self._end_of_line(last)
        argnums = plan.problem.argnums
        which = "" if argnums == (0,) else f", {argnums[0] if len(argnums) == 1 else argnums}"
        step = f"{sh}.train_step({sh}.lift({self.name}){which})" if argnums else f"{sh}.lift({self.name})"
        types = pprint.pformat(_literal(plan.arguments), width=100, sort_dicts=False)
        mesh = ", ".join(f"{a}={n}" for a, n in plan.problem.mesh.shape.items())
        block = f"""


{self.comment}on {mesh}.
def {self.types}():
    return {textwrap.indent(types, " " * 11).lstrip()}


{self.step} = {step}"""
        yield self._end_of_line(self.top.end_lineno or 0), 1, 0, block, 0

    @staticmethod
    def _named(node: ast.stmt) -> set[str]:
        """The names that a statement defines."""
        if isinstance(node, ast.FunctionDef):
            return {node.name}
        return {t.id for t in node.targets if isinstance(t, ast.Name)} if isinstance(node, ast.Assign) else set()
