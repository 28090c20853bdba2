"""Texts in mypy's types.

An array whose type is known is ``Array[Literal["f32[8@dp]"]]`` to mypy, one whose type is not ``Array[Any]``. The class
has no parameter without the plugin, which gives it one. What a signature leaves open, as in ``f32[*batch, h]``, is
``Array[Any]`` too, so that mypy lets every array through; that `Any` holds the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from mypy.expandtype import expand_type_by_instance
from mypy.nodes import COVARIANT, Var
from mypy.plugin import ClassDefContext
from mypy.typeops import bind_self
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    LiteralType,
    NoneType,
    ProperType,
    TupleType,
    Type,
    TypeAliasType,
    TypedDictType,
    TypeOfAny,
    TypeVarId,
    TypeVarType,
    UnionType,
    get_proper_type,
)

ARRAY: Final = "shtypes.core.array.Array"
#: What the full names of its methods begin with.
OF_ARRAYS: Final = (f"{ARRAY}.", "shtypes.core.array_methods.Methods.")


def give_parameter(context: ClassDefContext) -> None:
    """Gives the class of typed values a parameter, which is ``Any`` where it is left out."""
    if context.cls.type_vars:
        return
    info = context.cls.info
    anything = AnyType(TypeOfAny.special_form)
    top = context.api.named_type("builtins.object")
    context.cls.type_vars = [
        TypeVarType("Text", f"{ARRAY}.Text", TypeVarId(1, namespace=ARRAY), [], top, anything, COVARIANT)
    ]
    info.type_vars = []
    info.add_type_vars()


def is_array(t: Type) -> bool:
    """Whether a type is that of typed values."""
    found = get_proper_type(t)
    return isinstance(found, Instance) and found.type.fullname == ARRAY


def text_of(t: ProperType) -> str | None:
    """The text of an array's type, or of what a signature asks of one; None where there is none."""
    if not isinstance(t, Instance) or t.type.fullname != ARRAY or len(t.args) != 1:
        return None
    argument = get_proper_type(t.args[0])
    if isinstance(argument, LiteralType) and isinstance(argument.value, str):
        return argument.value
    return argument.missing_import_name if isinstance(argument, AnyType) else None


def is_known(t: ProperType) -> bool:
    """Whether a type is that of arrays whose type is known."""
    return isinstance(t, Instance) and bool(t.args) and isinstance(get_proper_type(t.args[0]), LiteralType)


def with_text(array: Instance, text: str, string: Instance) -> Instance:
    """The type of arrays of a known type."""
    return array.copy_modified(args=[LiteralType(text, string)])


def with_open_text(array: Instance, text: str) -> Instance:
    """The type of arrays of which a signature leaves something open."""
    return array.copy_modified(args=[AnyType(TypeOfAny.from_unimported_type, missing_import_name=text)])


def without_text(array: Instance) -> Instance:
    """The type of arrays whose type is not known."""
    return array.copy_modified(args=[AnyType(TypeOfAny.special_form)])


def is_endless(t: Type) -> bool:
    """Whether a type is an alias that holds itself."""
    return isinstance(t, TypeAliasType) and t.is_recursive


def mentions_array(t: Type, *, or_any: bool = False) -> bool:
    """Whether there are arrays in a type, or what may be arrays."""
    if is_endless(t):
        return False
    found = get_proper_type(t)
    if is_array(found) or (or_any and isinstance(found, AnyType)):
        return True
    return any(mentions_array(t, or_any=or_any) for t in _inner(found))


def _inner(t: ProperType) -> Sequence[Type]:
    """The types in a generic class, a union or a tuple."""
    if isinstance(t, Instance):
        return t.args
    return t.items if isinstance(t, (UnionType, TupleType)) else ()


def map_arrays(t: Type, change: Callable[[Instance], Type], *, fields: bool = False) -> Type:
    """A type with the types of arrays in it changed: in unions, tuples, typed dicts, and what is generic."""
    if is_endless(t):
        return t
    found = get_proper_type(t)
    if isinstance(found, Instance) and found.type.fullname == ARRAY:
        return change(found)
    made = _with_inner(t, lambda inner: map_arrays(inner, change, fields=fields))
    if fields and isinstance(found, (Instance, TupleType)):
        return _with_other_fields(made, found if isinstance(found, Instance) else found.partial_fallback)
    return made


def _with_inner(t: Type, change: Callable[[Type], Type]) -> Type:
    """A generic class, a union, a tuple or a typed dict with the types in it changed; itself where none is."""
    found = get_proper_type(t)
    old = list(found.items.values()) if isinstance(found, TypedDictType) else _inner(found)
    new = [change(inner) for inner in old]
    if all(a is b for a, b in zip(new, old, strict=True)):
        return t
    match found:
        case Instance():
            return found.copy_modified(args=new)
        case UnionType():
            return UnionType.make_union(new, found.line, found.column)
        case TupleType():
            return found.copy_modified(items=new)
        case TypedDictType():
            return found.copy_modified(item_types=new)
    return t


def unknown(t: Type) -> Type:
    """A type of values of which nothing is known: neither of arrays nor of what classes have."""
    return map_arrays(t, without_text, fields=True)


def fields_of(t: ProperType) -> dict[str, Type]:
    """The fields of a user's class in which there are arrays, with their types; none where these are not known."""
    if isinstance(t, TupleType) and t.partial_fallback.type.is_named_tuple:
        return {str(i): item for i, item in enumerate(t.items)}
    if isinstance(t, TypedDictType):
        return dict(t.items)
    if not isinstance(t, Instance) or has_mark(t, OTHER_FIELDS):
        return {}
    if t.type.module_name.partition(".")[0] in _LIBRARIES:
        return {}
    nodes = {name: symbol.node for info in reversed(t.type.mro) for name, symbol in info.names.items()}
    fields = {n: v.type for n, v in nodes.items() if isinstance(v, Var) and not v.is_classvar and v.type is not None}
    expanded = {name: expand_type_by_instance(f, t) for name, f in fields.items() if f is not t}
    return {n: f for n, f in expanded.items() if mentions_array(f) or fields_of(get_proper_type(f))}


def with_fields(t: Type, types: Mapping[str, Type]) -> Type:
    """The class whose fields have some types: where these are not what it says, of some of which nothing is known."""
    found = get_proper_type(t)
    if types and isinstance(found, TypedDictType):
        return found.copy_modified(item_types=list(types.values()))
    if types and types == fields_of(found):
        return t
    if types and isinstance(found, TupleType):
        return _with_other_fields(found.copy_modified(items=list(types.values())), found.partial_fallback)
    return unknown(found)


#: Where classes are whose fields are no arrays.
_LIBRARIES: Final = frozenset(("builtins", "typing", "typing_extensions", "collections", "types", "shtypes"))


def _with_other_fields(t: Type, holder: Instance) -> Type:
    """A type of instances whose fields are not what their class says: those of a gradient are none of its primal."""
    return t if holder.type.module_name.partition(".")[0] in _LIBRARIES else with_mark(t, OTHER_FIELDS)


def is_function_of_arrays(t: Type) -> bool:
    """Whether a type is that of functions, in which there are arrays."""
    if is_endless(t):
        return False
    found = get_proper_type(t)
    if isinstance(found, UnionType):
        return any(map(is_function_of_arrays, found.items))
    return isinstance(found, CallableType) and any(
        mentions_array(a) or is_function_of_arrays(a) for a in (*found.arg_types, found.ret_type)
    )


def callback(t: Type) -> CallableType | None:
    """The signature of a protocol that is a function of arrays and nothing else; None of any other type."""
    found = get_proper_type(t)
    if not isinstance(found, Instance) or not found.type.is_protocol or found.type.protocol_members != ["__call__"]:
        return None
    method = found.type.get_method("__call__")
    signature = None if method is None or method.type is None else get_proper_type(method.type)
    if not isinstance(signature, CallableType) or not is_function_of_arrays(signature):
        return None
    return bind_self(expand_type_by_instance(signature, found))


def without_texts_of_functions(t: Type) -> Type:
    """A type in which functions take and return arrays of which nothing is known.

    The dim names of one that is passed or returned are its own: they mean nothing around it.
    """
    if is_endless(t):
        return t
    found = get_proper_type(t)
    if isinstance(found, CallableType):
        args = [without_texts_of_functions(map_arrays(a, without_text)) for a in found.arg_types]
        result = without_texts_of_functions(map_arrays(found.ret_type, without_text))
        same = result is found.ret_type and all(a is b for a, b in zip(args, found.arg_types, strict=True))
        return t if same else found.copy_modified(arg_types=args, ret_type=result)
    return t if is_array(found) else _with_inner(t, without_texts_of_functions)


def texts_in(t: Type) -> Iterator[str]:
    """The texts in a type."""
    if is_endless(t):
        return
    found = get_proper_type(t)
    text = text_of(found)
    if text is not None:
        yield text
    elif not is_array(found):
        for inner in _inner(found):
            yield from texts_in(inner)


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
