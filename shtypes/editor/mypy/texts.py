"""Types as strings in mypy's types.

An array whose type the plugin derives is ``Array[Literal["f32[8@dp]"]]`` for mypy, any other ``Array[Any]``; it adds
the type parameter to the class. A pattern, such as ``f32[*batch, h]``, is ``Array[Any]`` too, so that mypy accepts
every array; that `Any` holds the string.
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
#: The prefixes of its methods' full names.
OF_ARRAYS: Final = (f"{ARRAY}.", "shtypes.core.array_methods.Methods.")


def give_parameter(context: ClassDefContext) -> None:
    """Adds a type parameter to the class of typed values, with the default ``Any``."""
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
    """Whether a type is that of arrays."""
    proper = get_proper_type(t)
    return isinstance(proper, Instance) and proper.type.fullname == ARRAY


def text_of(t: ProperType) -> str | None:
    """The string of an array's type or pattern, or None."""
    if not isinstance(t, Instance) or t.type.fullname != ARRAY or len(t.args) != 1:
        return None
    argument = get_proper_type(t.args[0])
    if isinstance(argument, LiteralType) and isinstance(argument.value, str):
        return argument.value
    return argument.missing_import_name if isinstance(argument, AnyType) else None


def is_known(t: ProperType) -> bool:
    """Whether a type is that of arrays with a literal string."""
    return isinstance(t, Instance) and bool(t.args) and isinstance(get_proper_type(t.args[0]), LiteralType)


def with_text(array: Instance, text: str, string: Instance) -> Instance:
    """The type of arrays with a string."""
    return array.copy_modified(args=[LiteralType(text, string)])


def with_open_text(array: Instance, text: str) -> Instance:
    """The type of arrays with a pattern."""
    return array.copy_modified(args=[AnyType(TypeOfAny.from_unimported_type, missing_import_name=text)])


def without_text(array: Instance) -> Instance:
    """The type of arrays without a string."""
    return array.copy_modified(args=[AnyType(TypeOfAny.special_form)])


def is_recursive(t: Type) -> bool:
    """Whether a type is a recursive alias."""
    return isinstance(t, TypeAliasType) and t.is_recursive


def mentions_array(t: Type, *, or_any: bool = False) -> bool:
    """Whether a type contains arrays, or may."""
    if is_recursive(t):
        return False
    proper = get_proper_type(t)
    if is_array(proper) or (or_any and isinstance(proper, AnyType)):
        return True
    return any(mentions_array(t, or_any=or_any) for t in _inner(proper))


def _inner(t: ProperType) -> Sequence[Type]:
    """The types in a generic class, a union or a tuple."""
    if isinstance(t, Instance):
        return t.args
    return t.items if isinstance(t, (UnionType, TupleType)) else ()


def map_arrays(t: Type, change: Callable[[Instance], Type], *, fields: bool = False) -> Type:
    """A type with its array types changed: in unions, tuples, typed dicts, and generic classes."""
    if is_recursive(t):
        return t
    proper = get_proper_type(t)
    if isinstance(proper, Instance) and proper.type.fullname == ARRAY:
        return change(proper)
    mapped = _with_inner(t, lambda inner: map_arrays(inner, change, fields=fields))
    if fields and isinstance(proper, (Instance, TupleType)):
        return _with_other_fields(mapped, proper if isinstance(proper, Instance) else proper.partial_fallback)
    return mapped


def _with_inner(t: Type, change: Callable[[Type], Type]) -> Type:
    """A generic class, union, tuple or typed dict with its inner types changed; itself if unchanged."""
    proper = get_proper_type(t)
    old = list(proper.items.values()) if isinstance(proper, TypedDictType) else _inner(proper)
    new = [change(inner) for inner in old]
    if all(a is b for a, b in zip(new, old, strict=True)):
        return t
    match proper:
        case Instance():
            return proper.copy_modified(args=new)
        case UnionType():
            return UnionType.make_union(new, proper.line, proper.column)
        case TupleType():
            return proper.copy_modified(items=new)
        case TypedDictType():
            return proper.copy_modified(item_types=new)
    return t


def unknown(t: Type) -> Type:
    """A type without strings, in its arrays and in the fields of its classes."""
    return map_arrays(t, without_text, fields=True)


def fields_of(t: ProperType) -> dict[str, Type]:
    """The fields of a user's class that have arrays, with their types; empty if mypy has not inferred these."""
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
    """The class with these types of its fields; without strings if the fields do not match."""
    proper = get_proper_type(t)
    if types and isinstance(proper, TypedDictType):
        return proper.copy_modified(item_types=list(types.values()))
    if types and types == fields_of(proper):
        return t
    if types and isinstance(proper, TupleType):
        return _with_other_fields(proper.copy_modified(items=list(types.values())), proper.partial_fallback)
    return unknown(proper)


#: Packages of classes without array fields.
_LIBRARIES: Final = frozenset(("builtins", "typing", "typing_extensions", "collections", "types", "shtypes"))


def _with_other_fields(t: Type, holder: Instance) -> Type:
    """A type of instances whose fields differ from their class's, such as those of a gradient."""
    return t if holder.type.module_name.partition(".")[0] in _LIBRARIES else with_mark(t, OTHER_FIELDS)


def is_function_of_arrays(t: Type) -> bool:
    """Whether a type is that of functions of arrays."""
    if is_recursive(t):
        return False
    proper = get_proper_type(t)
    if isinstance(proper, UnionType):
        return any(map(is_function_of_arrays, proper.items))
    return isinstance(proper, CallableType) and any(
        mentions_array(a) or is_function_of_arrays(a) for a in (*proper.arg_types, proper.ret_type)
    )


def callback(t: Type) -> CallableType | None:
    """The signature of a protocol that is only a function of arrays, or None."""
    proper = get_proper_type(t)
    if not isinstance(proper, Instance) or not proper.type.is_protocol or proper.type.protocol_members != ["__call__"]:
        return None
    method = proper.type.get_method("__call__")
    signature = None if method is None or method.type is None else get_proper_type(method.type)
    if not isinstance(signature, CallableType) or not is_function_of_arrays(signature):
        return None
    return bind_self(expand_type_by_instance(signature, proper))


def without_texts_of_functions(t: Type) -> Type:
    """A type in which functions take and return arrays without strings.

    The dim names of a passed or returned function are local to it.
    """
    if is_recursive(t):
        return t
    proper = get_proper_type(t)
    if isinstance(proper, CallableType):
        args = [without_texts_of_functions(map_arrays(a, without_text)) for a in proper.arg_types]
        result = without_texts_of_functions(map_arrays(proper.ret_type, without_text))
        same = result is proper.ret_type and all(a is b for a, b in zip(args, proper.arg_types, strict=True))
        return t if same else proper.copy_modified(arg_types=args, ret_type=result)
    return t if is_array(proper) else _with_inner(t, without_texts_of_functions)


def texts_in(t: Type) -> Iterator[str]:
    """The strings in a type."""
    if is_recursive(t):
        return
    proper = get_proper_type(t)
    text = text_of(proper)
    if text is not None:
        yield text
    elif not is_array(proper):
        for inner in _inner(proper):
            yield from texts_in(inner)


#: A mark on functions, and their transforms, that run in `no_comm`, because mypy stores no decorators of other files.
QUIET: Final = "__no_comm__"
#: A mark on instances whose fields differ from their class's.
OTHER_FIELDS: Final = "__other_fields__"


def has_mark(t: Type, mark: str) -> bool:
    """Whether a type has a mark."""
    holder = _holder(t)
    return holder is not None and holder.extra_attrs is not None and mark in holder.extra_attrs.attrs


def with_mark(t: Type, mark: str) -> Type:
    """A type with a mark, if it can have one."""
    proper, holder = get_proper_type(t), _holder(t)
    if holder is None or has_mark(t, mark):
        return t
    marked = holder.copy_with_extra_attr(mark, NoneType())
    return proper.copy_modified(fallback=marked) if isinstance(proper, (CallableType, TupleType)) else marked


def _holder(t: Type) -> Instance | None:
    proper = get_proper_type(t)
    if isinstance(proper, CallableType):
        return proper.fallback
    if isinstance(proper, TupleType):
        return proper.partial_fallback
    return proper if isinstance(proper, Instance) else None
