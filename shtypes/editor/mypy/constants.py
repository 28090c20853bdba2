"""Texts that a module gives names: ``X = f"f32[batch={BATCH}@dp]"``, of numbers and texts that are constants too."""

from __future__ import annotations

from collections.abc import Mapping

from mypy.nodes import (
    AssignmentStmt,
    CallExpr,
    Expression,
    IntExpr,
    ListExpr,
    MemberExpr,
    MypyFile,
    NameExpr,
    OpExpr,
    StrExpr,
    TupleExpr,
)

Constant = int | str


def constants_of(file: MypyFile) -> dict[str, Constant]:
    """The numbers and texts that the top level of a file gives names, each once."""
    found: dict[str, Constant] = {}
    twice: set[str] = set()
    for statement in file.defs:
        if not isinstance(statement, AssignmentStmt):
            continue
        for target in statement.lvalues:
            for name, value in _pairs(target, statement.rvalue):
                if name in found:
                    twice.add(name)
                constant = constant_of(value, found)
                if constant is not None:
                    found[name] = constant
    return {name: constant for name, constant in found.items() if name not in twice}


def _pairs(target: Expression, value: Expression) -> list[tuple[str, Expression]]:
    if isinstance(target, NameExpr):
        return [(target.name, value)]
    if isinstance(target, TupleExpr) and isinstance(value, TupleExpr) and len(target.items) == len(value.items):
        return [p for t, v in zip(target.items, value.items, strict=True) for p in _pairs(t, v)]
    return []


def constant_of(expression: Expression, known: Mapping[str, Constant]) -> Constant | None:
    """The number or text that an expression of constants is; None of any other."""
    match expression:
        case IntExpr() | StrExpr():
            return expression.value
        case NameExpr():
            return known.get(expression.name)
        case OpExpr(op=op, left=left, right=right):
            return _computed(op, constant_of(left, known), constant_of(right, known))
        case CallExpr(callee=MemberExpr(expr=StrExpr(value=""), name="join"), args=[ListExpr(items=items)]):
            parts = [constant_of(item, known) for item in items]  # how mypy reads an f-string
            return None if None in parts else "".join(map(str, parts))
        case CallExpr(callee=MemberExpr(expr=StrExpr(value="{:{}}"), name="format"), args=[value, StrExpr(value="")]):
            return constant_of(value, known)
    return None


def _computed(op: str, a: Constant | None, b: Constant | None) -> Constant | None:
    """What an operator makes of two numbers, or of two texts."""
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
