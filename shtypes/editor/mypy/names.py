"""Dim names that have a meaning where a line stands: those of classes, and of the functions around it."""

from __future__ import annotations

from mypy.nodes import Decorator, FuncItem, TypeInfo, Var
from mypy.plugin import CheckerPluginInterface
from mypy.types import CallableType, Instance, TupleType, Type, TypedDictType, get_proper_type

from shtypes.editor.mypy.texts import is_array, is_endless, texts_in
from shtypes.editor.space import names_of
from shtypes.signatures.pattern import pattern


def names_of_class(info: TypeInfo) -> set[str]:
    """The dim names in the types of a class's attributes."""
    found: set[str] = set()
    for owner in info.mro:
        if owner.fullname.startswith(("builtins.", "typing.", "shtypes.")):
            continue
        for symbol in owner.names.values():
            node = symbol.node
            t = node.type if isinstance(node, Var) else None
            if isinstance(node, Decorator) and node.var.is_property and isinstance(node.func.type, CallableType):
                t = node.func.type.ret_type
            if t is not None:
                found |= names_in(t)
    return found


def names_of_classes(t: Type) -> set[str]:
    """The dim names of arrays inside an argument, in its classes: they mean the same wherever these are."""
    found = get_proper_type(t)
    if is_array(found) or is_endless(t):
        return set()
    if isinstance(found, Instance):
        return names_of_class(found.type).union(*map(names_of_classes, found.args))
    if isinstance(found, TypedDictType):
        return set().union(*map(names_in, found.items.values()))
    if isinstance(found, TupleType):
        return names_in(found) if found.partial_fallback.type.is_named_tuple else set()
    return set()


def names_in(t: Type) -> set[str]:
    """The dim names in a type."""
    return {name for text in texts_in(t) for name in names_of(pattern(text))}


def names_around(api: CheckerPluginInterface) -> set[str]:
    """The dim names in the signatures of the functions around a line, and of their classes."""
    found: set[str] = set()
    for item in getattr(getattr(api, "scope", None), "stack", ()):
        if isinstance(item, TypeInfo):
            found |= names_of_class(item)
        elif isinstance(item, FuncItem) and isinstance(item.type, CallableType):
            for t in item.type.arg_types:
                found |= names_in(t)
    return found
