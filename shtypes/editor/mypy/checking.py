"""State shared by the hooks: the evaluator of types, the scopes around a line, and checks of communication in them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Final

from mypy.nodes import Context, Decorator, FuncItem, SymbolTableNode, TypeInfo, Var
from mypy.plugin import (
    AttributeContext,
    CheckerPluginInterface,
    FunctionContext,
    FunctionSigContext,
    MethodContext,
    MethodSigContext,
)
from mypy.types import CallableType, Instance, TupleType, Type, TypedDictType, get_proper_type

from shtypes.context import settings
from shtypes.context.settings import current_settings
from shtypes.editor.config import Config
from shtypes.editor.mypy.leniency import Leniency
from shtypes.editor.mypy.regions import NO_SCOPES, EnclosingScopes, Regions
from shtypes.editor.mypy.report import RuntimeCall, fail, renamed, written_name
from shtypes.editor.mypy.texts import QUIET, has_mark, is_array, is_recursive, mentions_array, texts_in
from shtypes.editor.text_evaluator import TextEvaluator, Undetermined, names_of
from shtypes.scopes.scope_rules import NoComm
from shtypes.signatures.matching import pattern

_SENDS: Final = re.compile(r"; each device would send \d+ B|^each device would send \d+ B$")
AnyContext = FunctionContext | MethodContext | AttributeContext


class Checking:
    """The state that the hooks of one run of mypy share."""

    def __init__(self, config: Config, lookup: Callable[[str], SymbolTableNode | None]) -> None:
        self.evaluator, self.lookup = TextEvaluator(config), lookup
        self.regions = Regions()
        self.leniency = Leniency(self.evaluator)
        self._string: Instance | None = None

    def enclosing_scopes(self, api: CheckerPluginInterface, where: Context) -> EnclosingScopes:
        """The scopes around a call."""
        self.leniency.watch(api.msg.errors)
        return self.regions.enclosing_scopes(getattr(api, "tree", None), where.line)

    def scope(self, scopes: EnclosingScopes = NO_SCOPES) -> contextlib.AbstractContextManager[None]:
        """Sets a line's policy, without scopes that are open where mypy runs."""
        scope_settings = settings.Settings(scopes.policy or self.evaluator.config.policy)
        return contextlib.nullcontext() if current_settings() == scope_settings else settings.scope(scope_settings)

    def instance(self, fullname: str, args: Sequence[Type]) -> Instance | None:
        """The type of a class of shtypes, which the file need not import."""
        symbol = self.lookup(fullname)
        return Instance(symbol.node, args) if symbol is not None and isinstance(symbol.node, TypeInfo) else None

    def string(self, api: CheckerPluginInterface) -> Instance:
        """The class of strings."""
        if self._string is None:
            self._string = api.named_generic_type("builtins.str", [])
        return self._string

    def forget(self, path: str) -> None:
        """Resets the state of a file that was read again."""
        self.regions.forget(path)
        self._string = None

    def knows_policy(self, scopes: EnclosingScopes) -> bool:
        """Whether a line's replicated state is determined: by the project's policy, or a configured mesh."""
        config = self.evaluator.config
        return scopes.policy in (None, config.policy) or bool(config.mesh)

    def check_comm(self, context: AnyContext, run: RuntimeCall, scopes: EnclosingScopes) -> None:
        """Reports communication in a call that an enclosing scope forbids."""
        with contextlib.suppress(Undetermined):
            error = run.again(self.evaluator, scopes=scopes.rules)
            if error is not None:
                notes = [why] if (why := _SENDS.sub("", error.why)) else []
                notes += [f"the scope is that of line {scopes.lines[-1]}"]
                notes += [f"try: {renamed(h, run)}" for h in error.hints[:1]]
                fail(context.api, context.context, error.what, notes)


# bound dim names


def names_of_class(info: TypeInfo) -> set[str]:
    """The dim names in the types of a class's attributes."""
    names: set[str] = set()
    for owner in info.mro:
        if owner.fullname.startswith(("builtins.", "typing.", "shtypes.")):
            continue
        for symbol in owner.names.values():
            node = symbol.node
            t = node.type if isinstance(node, Var) else None
            if isinstance(node, Decorator) and node.var.is_property and isinstance(node.func.type, CallableType):
                t = node.func.type.ret_type
            if t is not None:
                names |= names_in(t)
    return names


def names_of_classes(t: Type) -> set[str]:
    """The dim names of arrays in an argument's classes, which are bound."""
    proper = get_proper_type(t)
    if is_array(proper) or is_recursive(t):
        return set()
    if isinstance(proper, Instance):
        return names_of_class(proper.type).union(*map(names_of_classes, proper.args))
    if isinstance(proper, TypedDictType):
        return set().union(*map(names_in, proper.items.values()))
    if isinstance(proper, TupleType):
        return names_in(proper) if proper.partial_fallback.type.is_named_tuple else set()
    return set()


def names_in(t: Type) -> set[str]:
    """The dim names in a type."""
    return {name for text in texts_in(t) for name in names_of(pattern(text))}


def names_around(api: CheckerPluginInterface) -> set[str]:
    """The dim names in the signatures of enclosing functions and their classes."""
    names: set[str] = set()
    for item in getattr(getattr(api, "scope", None), "stack", ()):
        if isinstance(item, TypeInfo):
            names |= names_of_class(item)
        elif isinstance(item, FuncItem) and isinstance(item.type, CallableType):
            for t in item.type.arg_types:
                names |= names_in(t)
    return names


# functions that run in `no_comm`


#: The classes of functions that `sh.jit` and others return.
_JITTED: Final = frozenset(("Function", "JitFunction"))


def check_quiet(scopes: EnclosingScopes, context: FunctionSigContext | MethodSigContext, called: CallableType) -> None:
    """Reports a call, in a scope without communication, of a function of arrays that does not forbid it itself."""
    rules = [rule for rule in scopes.rules if isinstance(rule, NoComm)]
    of_quiet = isinstance(context, MethodSigContext) and has_mark(context.type, QUIET)
    if not rules or of_quiet or has_mark(called, QUIET) or not any(map(mentions_array, called.arg_types)):
        return
    name = _named(called, context.context)
    what = f"`{rules[-1]}` cannot vouch for `{name}`, which takes arrays and is not `no_comm` itself"
    notes = [f"the scope is that of line {scopes.lines[-1]}", f"try: @sh.no_comm on `{name}`"]
    fail(context.api, context.context, what, notes)


def _named(called: CallableType, where: Context) -> str:
    """The name of a called function: a method with its class, or as written."""
    method, _, owner = (called.name or "").partition(" of ")
    if owner and owner.split("[")[0] not in _JITTED:
        return f"{owner}.{method}"
    return written_name(getattr(where, "callee", None)) or called.name or "the function"
