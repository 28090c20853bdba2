"""Scopes around the lines of a file: ``with no_comm():``, functions with ``@no_comm``, and other scopes of shtypes.

A hook gets a call without its enclosing statements, so a file is walked once, when its first call is typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from mypy import nodes

from shtypes.editor.mypy.values import literal
from shtypes.editor.text_evaluator import Undetermined
from shtypes.scopes.scope_rules import NoComm, ScopeRule

_NO_COMM: Final = "shtypes.scopes.comm.no_comm"
_POLICY: Final = "shtypes.types.policy.policy"
#: Scopes that are called with functions.
SCOPES: Final = frozenset((_NO_COMM, "shtypes.scopes.comm.implicit_comm"))
#: Scopes in which a refusal by the rules may be wrong.
_FORGIVING: Final = frozenset(("shtypes.scopes.comm.implicit_comm", "shtypes.scopes.comm.finishing_scalars"))
_DIMS: Final = "shtypes.types.notation.dim_names.dims"
#: Scopes that change the meaning of types in unknown ways.
_CHANGING: Final = frozenset(("shtypes.types.notation.dim_names.dim_axes", _DIMS))


#: The statements that open scopes.
_OPENING: Final = (nodes.WithStmt, nodes.Decorator)


class Region(NamedTuple):
    """The lines of one scope."""

    first: int  # line
    last: int  # line
    rule: ScopeRule | None = None  # on communication
    policy: str | None = None
    forgiving: bool = False  # whether refusals may be wrong in it
    unknown: bool = False  # whether nothing is typed in it, but calls of ops where it has ``dims``
    dims: tuple[tuple[str, int], ...] = ()  # sizes of dim names


class EnclosingScopes(NamedTuple):
    """The scopes around a line, combined."""

    rules: tuple[ScopeRule, ...] = ()
    policy: str | None = None
    forgiving: bool = False
    unknown: bool = False
    lines: tuple[int, ...] = ()  # of the rules
    dims: tuple[tuple[str, int], ...] = ()  # sizes of dim names, if nothing else makes it unknown


NO_SCOPES: Final = EnclosingScopes()


class _Walked(NamedTuple):
    """What a walk over a file collects."""

    regions: list[Region]
    unpacked: dict[nodes.Context, int]  # the calls whose results are unpacked, with the number of targets


class Regions:
    """The regions and the unpacked calls of files, each walked once."""

    def __init__(self) -> None:
        self._of: dict[str, _Walked] = {}
        self._opening: dict[str, list[nodes.Statement]] = {}  # the statements that may open regions

    def forget(self, path: str) -> None:
        """Walks a file again: it has changed."""
        self._of.pop(path, None)
        self._opening.pop(path, None)

    def open(self, tree: nodes.MypyFile | None, call: nodes.CallExpr) -> None:
        """Records a call of a scope with a function, whose lambda is in the scope."""
        if tree is None or not any(isinstance(a, nodes.LambdaExpr) for a in call.args):
            return
        region = scope_of(call, call.line, _last(call))
        if region is not None and region not in (regions := self._walked(tree).regions):
            regions.append(region)

    def unpacks(self, tree: nodes.MypyFile | None, call: nodes.Context, count: int) -> bool:
        """Whether a call's list of ``count`` items is unpacked."""
        return tree is not None and self._walked(tree).unpacked.get(call) == count

    def policy_at(self, tree: nodes.MypyFile | None, line: int) -> str | None:
        """The policy that a scope sets around a line of a file whose names are being bound; None without one."""
        if tree is None:
            return None
        if tree.path not in self._opening:
            self._opening[tree.path] = [s for s in statements_in(tree.defs) if isinstance(s, _OPENING)]
        inside = (r for s in self._opening[tree.path] for r in _regions_of(s) if r.first <= line <= r.last)
        return next(reversed([r.policy for r in inside if r.policy is not None]), None)

    def _walked(self, tree: nodes.MypyFile) -> _Walked:
        if tree.path not in self._of:
            statements = list(statements_in(tree.defs))
            unpacked = dict(pair for s in statements for pair in _unpacked_calls(s))
            self._of[tree.path] = _Walked([r for s in statements for r in _regions_of(s)], unpacked)
        return self._of[tree.path]

    def enclosing_scopes(self, tree: nodes.MypyFile | None, line: int) -> EnclosingScopes:
        """The scopes around a line of a file."""
        if tree is None:
            return NO_SCOPES
        inside = [r for r in self._walked(tree).regions if r.first <= line <= r.last]
        if not inside:
            return NO_SCOPES
        ruled = [r for r in inside if r.rule is not None]
        policies = [r.policy for r in inside if r.policy is not None]
        return EnclosingScopes(
            tuple(r.rule for r in ruled if r.rule is not None),
            policies[-1] if policies else None,
            any(r.forgiving for r in inside),
            any(r.unknown for r in inside),
            tuple(r.first for r in ruled),
            tuple(pair for r in inside for pair in r.dims) if all(r.dims for r in inside if r.unknown) else (),
        )


def scope_of(expression: nodes.Expression, first: int, last: int) -> Region | None:
    """The region of a scope that an expression opens, or None."""
    function, arguments = expression, list[nodes.Expression]()
    if isinstance(expression, nodes.CallExpr):
        function, arguments = expression.callee, expression.args
    if not isinstance(function, nodes.RefExpr):
        return None
    name = function.fullname
    if name in _FORGIVING:
        return Region(first, last, forgiving=True)
    if name in _CHANGING:
        return Region(first, last, unknown=True, dims=_sizes(expression) if name == _DIMS else ())
    if name not in (_NO_COMM, _POLICY):
        return None
    try:
        argument = literal(arguments[0]) if arguments and not isinstance(arguments[0], nodes.LambdaExpr) else None
    except Undetermined:
        return Region(first, last, unknown=True)
    if name == _POLICY:
        return Region(first, last, policy=argument)
    return Region(first, last, rule=NoComm("both" if argument is None else argument))


def _sizes(call: nodes.Expression) -> tuple[tuple[str, int], ...]:
    """The keywords of a call, if they are all of its arguments and integers; else none."""
    if not isinstance(call, nodes.CallExpr):
        return ()
    try:
        pairs = [(name, literal(value)) for name, value in zip(call.arg_names, call.args, strict=True)]
    except Undetermined:
        return ()
    sizes = tuple((name, size) for name, size in pairs if name is not None and type(size) is int)
    return sizes if len(sizes) == len(pairs) else ()


def forbids(decorators: list[nodes.Expression]) -> bool:
    """Whether any of these decorators forbids communication."""
    regions = (scope_of(d, 0, 0) for d in decorators)
    return any(r is not None and isinstance(r.rule, NoComm) and r.rule.direction == "both" for r in regions)


def statements_in(statements: Iterable[nodes.Statement]) -> Iterator[nodes.Statement]:
    """Statements, and those inside them."""
    for statement in statements:
        yield statement
        if isinstance(statement, nodes.OverloadedFuncDef):
            implementation = [] if statement.impl is None else [statement.impl]
            yield from statements_in([*statement.items, *implementation])
        for block in _blocks(statement):
            if block is not None:
                yield from statements_in(block.body)


def _regions_of(statement: nodes.Statement) -> Iterator[Region]:
    """The regions that a statement opens."""
    match statement:
        case nodes.WithStmt():
            regions = (scope_of(e, statement.line, _last(statement.body)) for e in statement.expr)
        case nodes.Decorator():
            last = _last(statement.func.body)
            regions = (scope_of(d, statement.func.line, last) for d in statement.original_decorators)
        case _:
            return
    yield from (r for r in regions if r is not None)


def _blocks(node: nodes.Statement) -> list[nodes.Block | None]:
    """The blocks of a statement."""
    match node:
        case nodes.WithStmt() | nodes.FuncDef():
            return [node.body]
        case nodes.Decorator():
            return [node.func.body]
        case nodes.Block():
            return [node]
        case nodes.ClassDef():
            return [node.defs]
        case nodes.IfStmt():
            return [*node.body, node.else_body]
        case nodes.MatchStmt():
            return list(node.bodies)
        case nodes.TryStmt():
            return [node.body, *node.handlers, node.else_body, node.finally_body]
        case nodes.ForStmt() | nodes.WhileStmt():
            return [node.body, node.else_body]
    return []


def _last(node: nodes.Node) -> int:
    """The last line of a statement or block."""
    end = getattr(node, "end_line", None)
    return end if isinstance(end, int) and end > 0 else node.line + 10**6


def _unpacked_calls(statement: nodes.Statement) -> Iterator[tuple[nodes.Context, int]]:
    """The call whose result a statement unpacks, with the number of targets."""
    if isinstance(statement, nodes.AssignmentStmt) and isinstance(statement.rvalue, nodes.CallExpr):
        counts = set(map(_count, statement.lvalues))
        if len(counts) == 1:
            yield statement.rvalue, counts.pop()


def _count(target: nodes.Expression) -> int:
    """The number of targets; 0 if it is variable."""
    if not isinstance(target, (nodes.TupleExpr, nodes.ListExpr)) or any(
        isinstance(i, nodes.StarExpr) for i in target.items
    ):
        return 0
    return len(target.items)
