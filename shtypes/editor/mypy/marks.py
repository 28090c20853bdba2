"""Marks on mypy's types: attributes that an instance, or what a function or a tuple falls back on, has to mypy alone.

mypy keeps them where a type goes through variables, and in its cache.
"""

from __future__ import annotations

from typing import Final

from mypy.types import CallableType, Instance, NoneType, TupleType, Type, get_proper_type

#: Of functions, and what is made of them, that run in `no_comm`: mypy keeps no decorators of other files.
QUIET: Final = "__no_comm__"
#: Of instances whose fields are not what their class says.
OTHER_FIELDS: Final = "__other_fields__"


def has_mark(t: Type, mark: str) -> bool:
    """Whether a type has a mark."""
    holder = _holder(t)
    return holder is not None and holder.extra_attrs is not None and mark in holder.extra_attrs.attrs


def with_mark(t: Type, mark: str) -> Type:
    """A type with a mark; what can have none stays."""
    found, holder = get_proper_type(t), _holder(t)
    if holder is None or has_mark(t, mark):
        return t
    marked = holder.copy_with_extra_attr(mark, NoneType())
    return found.copy_modified(fallback=marked) if isinstance(found, (CallableType, TupleType)) else marked


def _holder(t: Type) -> Instance | None:
    found = get_proper_type(t)
    if isinstance(found, CallableType):
        return found.fallback
    if isinstance(found, TupleType):
        return found.partial_fallback
    return found if isinstance(found, Instance) else None
