"""Functions of functions: `grad`, `value_and_grad`, `lift`, and functions that run in `no_comm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy.nodes import Decorator
from mypy.plugin import AttributeContext, FunctionContext, MethodContext
from mypy.plugins.functools import partial_new_callback
from mypy.types import (
    AnyType,
    CallableType,
    ExtraAttrs,
    Instance,
    Parameters,
    TupleType,
    Type,
    get_proper_type,
)

from shtypes.editor.mypy.calls import has_texts
from shtypes.editor.mypy.checking import Checking
from shtypes.editor.mypy.regions import forbids
from shtypes.editor.mypy.texts import (
    OTHER_FIELDS,
    QUIET,
    has_mark,
    is_function_of_arrays,
    map_arrays,
    unknown,
    with_mark,
    without_text,
    without_texts_of_functions,
)

_NO_COMM: Final = "shtypes.scopes.comm.no_comm"
#: Transformations that preserve the function's signature.
KEEP: Final = frozenset(
    ("shtypes.programs.jit.jit", "shtypes.autodiff.checkpoint.checkpoint", "shtypes.signatures.typed.typed")
)
_PARTIAL: Final = "functools.partial"
#: Methods that look up functions in tables.
_ITEMS: Final = frozenset(
    (
        *(f"builtins.{c}.__getitem__" for c in ("dict", "list", "tuple")),
        "typing.Mapping.__getitem__",
        "typing.Sequence.__getitem__",
        "builtins.dict.get",
        "typing.Mapping.get",
    )
)
_FUNCTION: Final = "shtypes.context.function.Function"
#: Decorators that change a function's parameter and result types.
_DECORATOR: Final = "shtypes.context.function.Decorator.__call__"
_LIFT: Final = "shtypes.lifting.lift.Lift.__call__"
_SCOPES: Final = frozenset(f"shtypes.{name}.__call__" for name in ("scopes.comm.CommScope", "context.scope.Scope"))


class Transformations:
    """The hooks for functions that take functions."""

    def __init__(self, checking: Checking) -> None:
        self.checking = checking

    def function(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        """The hook for a function; None if it is not a transformation."""
        if fullname == _PARTIAL:
            return self.partial
        if fullname == _NO_COMM:
            return self.quiet
        return self.same_signature if fullname in KEEP else None

    def method(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """The hook for a method; None if it is not a transformation."""
        if fullname == _LIFT:
            return self.lift
        if fullname == _DECORATOR:
            return self.unknown
        if fullname in _ITEMS:
            return self.item
        if fullname == "builtins.float.__rpow__":
            return self.power
        return self.decorated if fullname in _SCOPES else None

    def same_signature(self, context: FunctionContext) -> Type:
        """``sh.jit`` and others: their results run in `no_comm` if the function does."""
        transformed = get_proper_type(context.default_return_type)
        function = get_proper_type(context.arg_types[0][0]) if context.arg_types and context.arg_types[0] else None
        if isinstance(transformed, Instance) and isinstance(function, CallableType) and has_mark(function, QUIET):
            return with_mark(transformed, QUIET)
        return transformed

    def unknown(self, context: FunctionContext | MethodContext) -> Type:
        """Removes strings that mypy infers wrongly: for results of loops, derivatives and mapped functions."""
        default = get_proper_type(context.default_return_type)
        if isinstance(default, Instance) and default.type.get("__call__") is not None and default.args:
            return default.copy_modified(args=[_without_texts(a) for a in default.args])
        return unknown(default)

    def item(self, context: MethodContext) -> Type:
        """A function from a list or mapping."""
        return without_texts_of_functions(context.default_return_type)

    def power(self, context: MethodContext) -> Type:
        """``x.shape[-1] ** 0.5``, which is Any for mypy, since a negative number has a complex root."""
        is_any = isinstance(get_proper_type(context.default_return_type), AnyType)
        return context.type if is_any else context.default_return_type

    def partial(self, context: FunctionContext) -> Type:
        """A partial call: mypy's type, without the dim names of the function."""
        default = partial_new_callback(context)
        proper = get_proper_type(default)
        attrs = proper.extra_attrs if isinstance(proper, Instance) else None
        if (
            not isinstance(proper, Instance)
            or attrs is None
            or not any(map(is_function_of_arrays, attrs.attrs.values()))
        ):
            return default
        changed = proper.copy_modified(args=[map_arrays(a, without_text) for a in proper.args])
        parts = {name: without_texts_of_functions(t) for name, t in attrs.attrs.items()}
        changed.extra_attrs = ExtraAttrs(parts, attrs.immutable, attrs.mod_name)
        return changed

    def lift(self, context: MethodContext) -> Type:
        """A lifted function, with its written signature."""
        function = get_proper_type(context.arg_types[0][0]) if context.arg_types and context.arg_types[0] else None
        if not isinstance(function, CallableType) or not has_texts(function):
            return context.default_return_type
        parameters = Parameters(function.arg_types, function.arg_kinds, function.arg_names)
        lifted = self.checking.instance(_FUNCTION, [parameters, function.ret_type])
        return context.default_return_type if lifted is None else lifted

    def quiet(self, context: FunctionContext) -> Type:
        """``@no_comm``: marks the function."""
        return with_mark(context.default_return_type, QUIET)

    def decorated(self, context: MethodContext) -> Type:
        """``@no_comm(...)``, or another scope, as a decorator."""
        where = context.context
        quiet = isinstance(where, Decorator) and forbids(where.original_decorators)
        return with_mark(context.default_return_type, QUIET) if quiet else context.default_return_type

    def field(self, context: AttributeContext) -> Type:
        """A field of an instance, which for a gradient and in loops differs from the class."""
        others = has_mark(context.type, OTHER_FIELDS) and not context.is_lvalue
        return unknown(context.default_attr_type) if others else context.default_attr_type


def of_unknown(function: Instance, like: Instance | None = None) -> Instance:
    """A function with untyped gradients; a value beside them is the loss, with its type in ``like``."""
    result, default = get_proper_type(function.args[1]), get_proper_type((like or function).args[1])
    if isinstance(result, TupleType) and isinstance(default, TupleType) and len(result.items) == 2:
        changed: Type = result.copy_modified(items=[default.items[0], unknown(result.items[1])])
    else:
        changed = unknown(result)
    return function.copy_modified(args=[function.args[0], changed])


def _without_texts(t: Type) -> Type:
    """Parameters or a result of a function, without strings."""
    proper = get_proper_type(t)
    if isinstance(proper, Parameters):
        return proper.copy_modified(arg_types=[map_arrays(a, without_text) for a in proper.arg_types])
    return unknown(proper)
