"""Errors: in the words of the runtime, at the operand that is at fault, with the cheapest fix."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mypy.errorcodes import ErrorCode
from mypy.nodes import Context, Expression, MemberExpr, NameExpr
from mypy.plugin import CheckerPluginInterface

from shtypes.editor.call import Call, Refused
from shtypes.editor.fixes import cheapest
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Space, Unknown
from shtypes.errors import ShardingTypeError
from shtypes.rules.suggest_fixes import called_names
from shtypes.types import ShType

CODE: Final = ErrorCode("sharding", "Sharding types that do not fit", "shtypes")

_WORDS: Final = re.compile(r"\b(lhs|rhs|operand \d+)\b")
_SIZE: Final = re.compile(r"size `?(\d+)")


@contextlib.contextmanager
def past_one_filter(api: CheckerPluginInterface) -> Iterator[None]:
    """Has errors pass the innermost filter of mypy.

    Of ``1 / x`` mypy tries what the number has and then what the array has, and reports the first error only: that a
    number does not divide by an array.
    """
    watchers = getattr(api.msg.errors, "_watchers", None)
    if not watchers:
        yield
        return
    innermost = watchers.pop()
    try:
        yield
    finally:
        watchers.append(innermost)


def fail(api: CheckerPluginInterface, where: Context, what: str, notes: Sequence[str] = ()) -> None:
    """Reports an error and what belongs to it."""
    api.fail(what, where, code=CODE)
    for note in notes:
        api.msg.note(note, where, code=CODE)


def refuse(api: CheckerPluginInterface, error: ShardingTypeError, call: Call, context: Context, space: Space) -> None:
    """Reports what a rule, or what reads arguments, refuses of a call.

    Raises:
        Unknown: for other sizes it might be right.
    """
    if _may_fit(error, call):
        raise Unknown
    words = space.words(error)
    refused = call.refused
    where, notes = context, words[1:]
    if refused is not None:
        where = _operand(error, call, refused) or context
        notes.append(f"in {refused.name}({', '.join(str(space.named(t)) for t in refused.types)})")
        fix = cheapest(refused, _called(call, refused), space)
        if fix is not None:
            notes.append(f"fix: {fix}")
    hints = [f"try: {hint}" for hint in error.hints[:1]] if not any(n.startswith("fix: ") for n in notes) else []
    fail(api, where, words[0], [*notes, *hints])


def _may_fit(error: ShardingTypeError, call: Call) -> bool:
    """Whether an error is of sizes of which one is written and another has a name: they may be equal."""
    if error.axes:
        return False
    sizes = [int(n) for n in _SIZE.findall(error.what)]
    named = [stands_for_a_name(n) for n in sizes]
    if any(named) and not all(named):
        return True
    types = [t for _, t in call.read if isinstance(t, ShType)]
    of_name: dict[str, int] = {}
    return any(of_name.setdefault(d.name, d.size) != d.size for t in types for d in t.dims if d.name)


def _expressions(call: Call) -> list[tuple[Any, ShType]]:
    """The operands that are arrays, with the expressions that they have."""
    return [(getattr(a, "expression", None), t) for a, t in call.read if isinstance(t, ShType)]


def _operand(error: ShardingTypeError, call: Call, refused: Refused) -> Expression | None:
    """The expression of the operand that an error speaks of, if it is one."""
    count = len(refused.types)
    found = {("lhs", "rhs").index(w) if w in ("lhs", "rhs") else int(w.split()[1]) for w in _WORDS.findall(error.what)}
    if count == 1:
        found = {0}
    if len(found) != 1:
        return None
    (index,) = found
    if index >= count:
        return None
    return _expression_of(call, refused, index)


def _expression_of(call: Call, refused: Refused, index: int) -> Expression | None:
    arrays = _expressions(call)
    if index < len(arrays) and arrays[index][1] == refused.types[index]:
        expression = arrays[index][0]
    else:
        expression = next((e for e, t in arrays if t == refused.types[index]), None)
    return expression if isinstance(expression, Expression) else None


def _called(call: Call, refused: Refused) -> list[str]:
    """What the operands are called in the code of a fix: by the names that they have."""
    names = list(called_names(refused.types)) if len(refused.types) > 1 else ["..."]
    for i in range(len(names)):
        expression = _expression_of(call, refused, i)
        names[i] = (expression and shown(expression)) or names[i]
    return names


def called(call: Call, t: ShType) -> str:
    """What the operand of a type is called."""
    expression = next((e for e, found in _expressions(call) if found == t), None)
    return (isinstance(expression, Expression) and shown(expression)) or "..."


def shown(expression: Expression) -> str | None:
    """A name, or attributes of one, as it is written."""
    if isinstance(expression, NameExpr):
        return expression.name
    if isinstance(expression, MemberExpr):
        inner = shown(expression.expr)
        return None if inner is None else f"{inner}.{expression.name}"
    return None
