"""Aliases: ``Weights = Annotated[Array, "f32[8@dp]"]``.

Of an assignment mypy stores the type and drops what is beside it, before any hook runs. So, as soon as a file has
been read, the expression is written with a name that the hook knows in place of `Annotated`. It is one of a builtin
class, which every file has, and which has no parameters: of one that has, mypy would read the text as a type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mypy import nodes

#: Replaces `Annotated` in an alias.
STAND_IN: Final = "BufferError"
#: The prefix of a type as a string, so that mypy looks for no type variables in it.
MARK: Final = ": "
#: `Annotated` in `typing` and `typing_extensions`, and its replacement.
ANNOTATED: Final = frozenset(("typing.Annotated", "typing_extensions.Annotated", f"builtins.{STAND_IN}"))
_TYPING: Final = ("typing", "typing_extensions")


def keep_texts(file: nodes.MypyFile, constants: Mapping[str, Constant]) -> None:
    """Rewrites the aliases of a file so that mypy keeps their strings, which may be computed from its constants."""
    _keep(file.defs, names_of_annotated(file), constants)


def names_of_annotated(file: nodes.MypyFile) -> set[str]:
    """The names of `Annotated` in a file."""
    names: set[str] = set()
    for line in file.imports:
        if isinstance(line, nodes.ImportFrom) and line.id in _TYPING:
            names |= {alias or name for name, alias in line.names if name == "Annotated"}
        elif isinstance(line, nodes.Import):
            names |= {f"{alias or name}.Annotated" for name, alias in line.ids if name in _TYPING}
    return names


def _keep(statements: list[nodes.Statement], names: set[str], constants: Mapping[str, Constant]) -> None:
    for statement in statements:
        if isinstance(statement, nodes.Decorator):
            statement = statement.func
        if isinstance(statement, nodes.ClassDef):
            _keep(statement.defs.body, names, constants)
        elif isinstance(statement, nodes.FuncDef):
            _keep(statement.body.body, names, constants)
        elif isinstance(statement, nodes.IfStmt):
            for block in statement.body:
                _keep(block.body, names, constants)
        elif isinstance(statement, nodes.AssignmentStmt) and isinstance(
            statement.rvalue, (nodes.IndexExpr, nodes.OpExpr)
        ):
            statement.rvalue = _with_texts(statement.rvalue, names, constants)
        elif isinstance(statement, nodes.TypeAliasStmt):  # mypy stores its value as the body of a function
            for line in statement.value.body.body:
                if isinstance(line, nodes.ReturnStmt) and line.expr is not None:
                    line.expr = _with_texts(line.expr, names, constants)


def _with_texts(expression: nodes.Expression, names: set[str], constants: Mapping[str, Constant]) -> nodes.Expression:
    """An expression in which each ``Annotated`` keeps its string: itself, in tuples and callables, in unions."""
    match expression:
        case nodes.IndexExpr():
            alias = _marked(expression, names, constants)
            if alias is not None:
                return alias
            expression.index = _with_texts(expression.index, names, constants)
        case nodes.TupleExpr() | nodes.ListExpr():
            expression.items = [_with_texts(item, names, constants) for item in expression.items]
        case nodes.OpExpr(op="|"):
            expression.left, expression.right = (
                _with_texts(side, names, constants) for side in (expression.left, expression.right)
            )
    return expression


def _marked(expression: nodes.IndexExpr, names: set[str], constants: Mapping[str, Constant]) -> nodes.IndexExpr | None:
    if (
        _written(expression.base) not in names
        or not isinstance(expression.index, nodes.TupleExpr)
        or len(expression.index.items) < 2
    ):
        return None
    array, text = expression.index.items[0], constant_of(expression.index.items[1], constants)
    if _written(array).rpartition(".")[2] != "Array" or not isinstance(text, str):
        return None
    name, marked = nodes.NameExpr(STAND_IN), nodes.StrExpr(MARK + text)
    parts = nodes.TupleExpr([array, marked])
    alias = nodes.IndexExpr(name, parts)
    for node in (name, marked, parts, alias):
        node.set_line(expression)
    return alias


def _written(expression: nodes.Expression) -> str:
    if isinstance(expression, nodes.NameExpr):
        return expression.name
    return f"{_written(expression.expr)}.{expression.name}" if isinstance(expression, nodes.MemberExpr) else ""


Constant = int | str


def constants_of(file: nodes.MypyFile) -> dict[str, Constant]:
    """The numbers and strings that a file's top level assigns to names, each once."""
    constants: dict[str, Constant] = {}
    twice: set[str] = set()
    for statement in file.defs:
        if not isinstance(statement, nodes.AssignmentStmt):
            continue
        for target in statement.lvalues:
            for name, value in _pairs(target, statement.rvalue):
                if name in constants:
                    twice.add(name)
                value_of = constant_of(value, constants)
                if value_of is not None:
                    constants[name] = value_of
    return {name: constant for name, constant in constants.items() if name not in twice}


def _pairs(target: nodes.Expression, value: nodes.Expression) -> list[tuple[str, nodes.Expression]]:
    if isinstance(target, nodes.NameExpr):
        return [(target.name, value)]
    if (
        isinstance(target, nodes.TupleExpr)
        and isinstance(value, nodes.TupleExpr)
        and len(target.items) == len(value.items)
    ):
        return [p for t, v in zip(target.items, value.items, strict=True) for p in _pairs(t, v)]
    return []


def constant_of(expression: nodes.Expression, names: Mapping[str, Constant]) -> Constant | None:
    """The value of a constant number or string expression, or None."""
    match expression:
        case nodes.IntExpr() | nodes.StrExpr():
            return expression.value
        case nodes.NameExpr():
            return names.get(expression.name)
        case nodes.OpExpr(op=op, left=left, right=right):
            return _computed(op, constant_of(left, names), constant_of(right, names))
        case nodes.CallExpr(
            callee=nodes.MemberExpr(expr=nodes.StrExpr(value=""), name="join"), args=[nodes.ListExpr(items=items)]
        ):
            parts = [constant_of(item, names) for item in items]  # mypy's form of an f-string
            return None if None in parts else "".join(map(str, parts))
        case nodes.CallExpr(
            callee=nodes.MemberExpr(expr=nodes.StrExpr(value="{:{}}"), name="format"),
            args=[value, nodes.StrExpr(value="")],
        ):
            return constant_of(value, names)
    return None


def _computed(op: str, a: Constant | None, b: Constant | None) -> Constant | None:
    """The result of an operator on two numbers, or on two strings."""
    if isinstance(a, str) and isinstance(b, str):
        return a + b if op == "+" else None
    if not isinstance(a, int) or not isinstance(b, int):
        return None
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b if b else None
    return None
