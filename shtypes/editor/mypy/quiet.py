"""Functions that run in `no_comm`, and calls of others where communication is forbidden."""

from __future__ import annotations

from typing import Final

from mypy.nodes import Context, Expression
from mypy.plugin import FunctionSigContext, MethodSigContext
from mypy.types import CallableType

from shtypes.editor.mypy.marks import QUIET, has_mark
from shtypes.editor.mypy.regions import Around
from shtypes.editor.mypy.report import fail, shown
from shtypes.editor.mypy.texts import mentions_array
from shtypes.scopes.comm import NoComm

#: What `sh.jit` and others make of functions.
_OWN: Final = frozenset(("Function", "JitFunction"))


def check_quiet(around: Around, context: FunctionSigContext | MethodSigContext, called: CallableType) -> None:
    """Reports a call, where communication is forbidden, of a function of arrays that does not forbid it itself."""
    rules = [rule for rule in around.rules if isinstance(rule, NoComm)]
    of_quiet = isinstance(context, MethodSigContext) and has_mark(context.type, QUIET)
    if not rules or of_quiet or has_mark(called, QUIET) or not any(map(mentions_array, called.arg_types)):
        return
    name = _named(called, context.context)
    what = f"`{rules[-1]}` cannot vouch for `{name}`, which takes arrays and is not `no_comm` itself"
    notes = [f"the scope is that of line {around.lines[-1]}", f"try: @sh.no_comm on `{name}`"]
    fail(context.api, context.context, what, notes)


def _named(called: CallableType, where: Context) -> str:
    """The function of a call, as it can be found: a method with its class, or what is written."""
    method, _, owner = (called.name or "").partition(" of ")
    if owner and owner.split("[")[0] not in _OWN:
        return f"{owner}.{method}"
    callee = getattr(where, "callee", None)
    written = shown(callee) if isinstance(callee, Expression) else None
    return written or called.name or "the function"
