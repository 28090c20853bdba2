"""Aliases: ``Weights = Annotated[Array, "f32[8@dp]"]``.

Of an assignment mypy stores the type and drops what is beside it, before any hook runs. So, as soon as a file has
been read, the expression is written with a name that the hook knows in place of `Annotated`. It is one of a builtin
class, which every file has, and which has no parameters: of one that has, mypy would read the text as a type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mypy.nodes import (
    AssignmentStmt,
    CallExpr,
    ClassDef,
    Decorator,
    Expression,
    FuncDef,
    IfStmt,
    Import,
    ImportFrom,
    IndexExpr,
    IntExpr,
    ListExpr,
    MemberExpr,
    MypyFile,
    NameExpr,
    OpExpr,
    ReturnStmt,
    Statement,
    StrExpr,
    TupleExpr,
    TypeAliasStmt,
)

#: Replaces `Annotated` in an alias.
STAND_IN: Final = "BufferError"
#: The prefix of a type as a string, so that mypy looks for no type variables in it.
MARK: Final = ": "
#: `Annotated` in `typing` and `typing_extensions`, and its replacement.
ANNOTATED: Final = frozenset(("typing.Annotated", "typing_extensions.Annotated", f"builtins.{STAND_IN}"))
_TYPING: Final = ("typing", "typing_extensions")


def keep_texts(file: MypyFile, constants: Mapping[str, Constant]) -> None:
    """Rewrites the aliases of a file so that mypy keeps their strings, which may be computed from its constants."""
    _keep(file.defs, names_of_annotated(file), constants)


def names_of_annotated(file: MypyFile) -> set[str]:
    """The names of `Annotated` in a file."""
    names: set[str] = set()
    for line in file.imports:
        if isinstance(line, ImportFrom) and line.id in _TYPING:
            names |= {alias or name for name, alias in line.names if name == "Annotated"}
        elif isinstance(line, Import):
            names |= {f"{alias or name}.Annotated" for name, alias in line.ids if name in _TYPING}
    return names


def _keep(statements: list[Statement], names: set[str], constants: Mapping[str, Constant]) -> None:
    for statement in statements:
        if isinstance(statement, Decorator):
            statement = statement.func
        if isinstance(statement, ClassDef):
            _keep(statement.defs.body, names, constants)
        elif isinstance(statement, FuncDef):
            _keep(statement.body.body, names, constants)
        elif isinstance(statement, IfStmt):
            for block in statement.body:
                _keep(block.body, names, constants)
        elif isinstance(statement, AssignmentStmt) and isinstance(statement.rvalue, (IndexExpr, OpExpr)):
            statement.rvalue = _with_texts(statement.rvalue, names, constants)
        elif isinstance(statement, TypeAliasStmt):  # mypy stores its value as the body of a function
            for line in statement.value.body.body:
                if isinstance(line, ReturnStmt) and line.expr is not None:
                    line.expr = _with_texts(line.expr, names, constants)


def _with_texts(expression: Expression, names: set[str], constants: Mapping[str, Constant]) -> Expression:
    """An expression in which each ``Annotated`` keeps its string: itself, in tuples and callables, in unions."""
    match expression:
        case IndexExpr():
            alias = _marked(expression, names, constants)
            if alias is not None:
                return alias
            expression.index = _with_texts(expression.index, names, constants)
        case TupleExpr() | ListExpr():
            expression.items = [_with_texts(item, names, constants) for item in expression.items]
        case OpExpr(op="|"):
            expression.left, expression.right = (
                _with_texts(side, names, constants) for side in (expression.left, expression.right)
            )
    return expression


def _marked(expression: IndexExpr, names: set[str], constants: Mapping[str, Constant]) -> IndexExpr | None:
    if (
        _written(expression.base) not in names
        or not isinstance(expression.index, TupleExpr)
        or len(expression.index.items) < 2
    ):
        return None
    array, text = expression.index.items[0], constant_of(expression.index.items[1], constants)
    if _written(array).rpartition(".")[2] != "Array" or not isinstance(text, str):
        return None
    name, marked = NameExpr(STAND_IN), StrExpr(MARK + text)
    parts = TupleExpr([array, marked])
    alias = IndexExpr(name, parts)
    for node in (name, marked, parts, alias):
        node.set_line(expression)
    return alias


def _written(expression: Expression) -> str:
    if isinstance(expression, NameExpr):
        return expression.name
    return f"{_written(expression.expr)}.{expression.name}" if isinstance(expression, MemberExpr) else ""


Constant = int | str


def constants_of(file: MypyFile) -> dict[str, Constant]:
    """The numbers and strings that a file's top level assigns to names, each once."""
    constants: dict[str, Constant] = {}
    twice: set[str] = set()
    for statement in file.defs:
        if not isinstance(statement, AssignmentStmt):
            continue
        for target in statement.lvalues:
            for name, value in _pairs(target, statement.rvalue):
                if name in constants:
                    twice.add(name)
                value_of = constant_of(value, constants)
                if value_of is not None:
                    constants[name] = value_of
    return {name: constant for name, constant in constants.items() if name not in twice}


def _pairs(target: Expression, value: Expression) -> list[tuple[str, Expression]]:
    if isinstance(target, NameExpr):
        return [(target.name, value)]
    if isinstance(target, TupleExpr) and isinstance(value, TupleExpr) and len(target.items) == len(value.items):
        return [p for t, v in zip(target.items, value.items, strict=True) for p in _pairs(t, v)]
    return []


def constant_of(expression: Expression, names: Mapping[str, Constant]) -> Constant | None:
    """The value of a constant number or string expression, or None."""
    match expression:
        case IntExpr() | StrExpr():
            return expression.value
        case NameExpr():
            return names.get(expression.name)
        case OpExpr(op=op, left=left, right=right):
            return _computed(op, constant_of(left, names), constant_of(right, names))
        case CallExpr(callee=MemberExpr(expr=StrExpr(value=""), name="join"), args=[ListExpr(items=items)]):
            parts = [constant_of(item, names) for item in items]  # mypy's form of an f-string
            return None if None in parts else "".join(map(str, parts))
        case CallExpr(callee=MemberExpr(expr=StrExpr(value="{:{}}"), name="format"), args=[value, StrExpr(value="")]):
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
