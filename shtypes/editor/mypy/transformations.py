"""Functions made of functions: `grad`, `value_and_grad`, `lift`, and functions that run in `no_comm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from mypy.nodes import Context, Decorator
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
from shtypes.editor.mypy.marks import OTHER_FIELDS, QUIET, has_mark, with_mark
from shtypes.editor.mypy.regions import forbids
from shtypes.editor.mypy.report import fail
from shtypes.editor.mypy.texts import (
    is_function_of_arrays,
    is_known,
    map_arrays,
    text_of,
    unknown,
    with_text,
    without_text,
    without_texts_of_functions,
)
from shtypes.editor.mypy.values import Value
from shtypes.editor.space import Unknown
from shtypes.errors import ShardingTypeError
from shtypes.rules.cotangent import seed_type
from shtypes.signatures.pattern import pattern

#: What takes gradients, and whether it gives the value beside them.
GRADS: Final = {"shtypes.autodiff.grad.grad": False, "shtypes.autodiff.grad.value_and_grad": True}
_NO_COMM: Final = "shtypes.scopes.comm.no_comm"
#: What makes functions that have the signature of the one that they are made of.
KEEP: Final = frozenset(
    ("shtypes.programs.jit.jit", "shtypes.autodiff.checkpoint.checkpoint", "shtypes.signatures.typed.typed")
)
_PARTIAL: Final = "functools.partial"
#: What takes functions out of tables.
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
#: What applies a decorator whose function takes and returns other types than what it is made of.
_DECORATOR: Final = "shtypes.context.function.Decorator.__call__"
_LIFT: Final = "shtypes.lifting.lift.Lift.__call__"
_SCOPES: Final = frozenset(f"shtypes.{name}.__call__" for name in ("scopes.comm.CommScope", "context.scope.Scope"))


class Transformations:
    """The hooks for what takes functions."""

    def __init__(self, checking: Checking) -> None:
        self.checking = checking

    def function(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        """The hook for a function; None if it is no transformation."""
        if fullname in GRADS:
            return self.grad
        if fullname == _PARTIAL:
            return self.partial
        if fullname == _NO_COMM:
            return self.quiet
        return self.kept if fullname in KEEP else None

    def method(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """The hook for a method; None if it is no transformation."""
        if fullname == _LIFT:
            return self.lift
        if fullname == _DECORATOR:
            return self.unknown
        if fullname in _ITEMS:
            return self.item
        if fullname == "builtins.float.__rpow__":
            return self.power
        return self.decorated if fullname in _SCOPES else None

    def kept(self, context: FunctionContext) -> Type:
        """``sh.jit`` and its kind: what they make of a function that runs in `no_comm` does so too."""
        made = get_proper_type(context.default_return_type)
        given = get_proper_type(context.arg_types[0][0]) if context.arg_types and context.arg_types[0] else None
        if isinstance(made, Instance) and isinstance(given, CallableType) and has_mark(given, QUIET):
            return with_mark(made, QUIET)
        return made

    def unknown(self, context: FunctionContext | MethodContext) -> Type:
        """What mypy finds by itself for results of loops, derivatives and mapped functions is not what they are."""
        default = get_proper_type(context.default_return_type)
        if isinstance(default, Instance) and default.type.get("__call__") is not None and default.args:
            return default.copy_modified(args=[_without_texts(a) for a in default.args])
        return unknown(default)

    def item(self, context: MethodContext) -> Type:
        """A function out of a list or mapping."""
        return without_texts_of_functions(context.default_return_type)

    def power(self, context: MethodContext) -> Type:
        """``x.shape[-1] ** 0.5``, which is anything to mypy, since a negative number has a complex root."""
        is_any = isinstance(get_proper_type(context.default_return_type), AnyType)
        return context.type if is_any else context.default_return_type

    def partial(self, context: FunctionContext) -> Type:
        """A part of a call: what mypy makes of it, but for the dim names of the function."""
        made = partial_new_callback(context)
        found = get_proper_type(made)
        attrs = found.extra_attrs if isinstance(found, Instance) else None
        if (
            not isinstance(found, Instance)
            or attrs is None
            or not any(map(is_function_of_arrays, attrs.attrs.values()))
        ):
            return made
        changed = found.copy_modified(args=[map_arrays(a, without_text) for a in found.args])
        kept = {name: without_texts_of_functions(t) for name, t in attrs.attrs.items()}
        changed.extra_attrs = ExtraAttrs(kept, attrs.immutable, attrs.mod_name)
        return changed

    def lift(self, context: MethodContext) -> Type:
        """A lifted function: it has the signature that it is written with."""
        given = get_proper_type(context.arg_types[0][0]) if context.arg_types and context.arg_types[0] else None
        if not isinstance(given, CallableType) or not has_texts(given):
            return context.default_return_type
        parameters = Parameters(given.arg_types, given.arg_kinds, given.arg_names)
        made = self.checking.instance(_FUNCTION, [parameters, given.ret_type])
        return context.default_return_type if made is None else made

    def quiet(self, context: FunctionContext) -> Type:
        """``@no_comm``: the function says so in its name."""
        return with_mark(context.default_return_type, QUIET)

    def decorated(self, context: MethodContext) -> Type:
        """``@no_comm(...)``, or another scope, as a decorator."""
        where = context.context
        quiet = isinstance(where, Decorator) and forbids(where.original_decorators)
        return with_mark(context.default_return_type, QUIET) if quiet else context.default_return_type

    def field(self, context: AttributeContext) -> Type:
        """A field of an instance: of a gradient, and of what loops take apart, it is not what the class says."""
        others = has_mark(context.type, OTHER_FIELDS) and not context.is_lvalue
        return unknown(context.default_attr_type) if others else context.default_attr_type

    def grad(self, context: FunctionContext) -> Type:
        """A gradient has the cotangent types of what it is taken by."""
        default = get_proper_type(context.default_return_type)
        given = get_proper_type(context.arg_types[0][0])
        if not isinstance(default, Instance) or len(default.args) != 2:
            return context.default_return_type
        if not isinstance(given, CallableType):
            return _of_unknown(default)
        options = {n: Value(e[0], t[0], self.checking.space) for n, e, t in self._options(context)}
        try:  # that of values and gradients gives a tuple
            both = isinstance(get_proper_type(default.args[1]), TupleType)
            result = self.gradients(context, context.args[0][0], given, options, both)
        except Unknown:
            return _of_unknown(default)
        return default.copy_modified(args=[default.args[0], result])

    def gradients(
        self,
        context: FunctionContext | MethodContext,
        where: Context,
        given: CallableType,
        options: Mapping[str, Value],
        both: bool,
    ) -> Type:
        """What `grad` of a function gives, or `value_and_grad`.

        Raises:
            Unknown: it is not known.
        """
        with self.checking.scope(self.checking.around(context.api, context.context)):
            has_aux = options["has_aux"].static() if "has_aux" in options else False
            argnums = options["argnums"].static() if "argnums" in options else 0
            loss = self._loss(given, has_aux)
            self._check_loss(context, where, loss)
            found = self._gradients(context, given, argnums)
        parts = [given.ret_type, found] if both else [found]
        if has_aux and not both:
            parts = [found, _second(given.ret_type)]
        return parts[0] if len(parts) == 1 else TupleType(parts, _tuple(context))

    @staticmethod
    def _options(context: FunctionContext) -> list[tuple[str, Any, Any]]:
        names = zip(context.callee_arg_names, context.args, context.arg_types, strict=False)
        return [(n, e, t) for n, e, t in names if n is not None and e]

    @staticmethod
    def _loss(given: CallableType, has_aux: bool) -> Type:
        returned = get_proper_type(given.ret_type)
        if not has_aux:
            return returned
        if isinstance(returned, TupleType) and returned.items:
            return returned.items[0]
        raise Unknown

    def _check_loss(self, context: FunctionContext | MethodContext, where: Context, loss: Type) -> None:
        """Reports a loss that has no gradient."""
        found, space = get_proper_type(loss), self.checking.space
        if isinstance(found, TupleType):
            fail(context.api, where, "a gradient needs a scalar loss, not a tuple", ["try: has_aux=True"])
            raise Unknown
        text = text_of(found)
        if text is None or not is_known(found):
            return
        try:
            seed_type(space.closed(text, space.mesh(pattern(text).axes)))
        except ShardingTypeError as error:
            fail(context.api, where, space.words(error)[0], [f"try: {h}" for h in error.hints[:1]])
            raise Unknown from None

    def _gradients(self, context: FunctionContext | MethodContext, given: CallableType, argnums: Any) -> Type:
        several = isinstance(argnums, (tuple, list))
        chosen = list(argnums) if several else [argnums]
        count = len(given.arg_types)
        if not all(type(n) is int and -count <= n < count for n in chosen):
            raise Unknown
        found = [map_arrays(given.arg_types[n], lambda a: self._cotangent(context, a), fields=True) for n in chosen]
        return TupleType(found, _tuple(context)) if several else found[0]

    def _cotangent(self, context: FunctionContext | MethodContext, array: Instance) -> Type:
        text, space = text_of(array), self.checking.space
        if text is None or not is_known(array):
            return without_text(array)
        if not space.config.mesh and space.config.policy == "partial":
            raise Unknown  # pending on every axis that the text does not name
        t = space.closed(text, space.mesh(pattern(text).axes))
        string = self.checking.string(context.api)
        return with_text(array, space.text(t.cotangent()), string) if t.differentiable else without_text(array)


def _of_unknown(function: Instance) -> Type:
    """A function of whose gradients nothing is known; the value beside them is the loss."""
    result = get_proper_type(function.args[1])
    if isinstance(result, TupleType) and len(result.items) == 2:
        changed: Type = result.copy_modified(items=[result.items[0], unknown(result.items[1])])
    else:
        changed = unknown(result)
    return function.copy_modified(args=[function.args[0], changed])


def _without_texts(t: Type) -> Type:
    """Parameters or a result of a function of which nothing is known."""
    found = get_proper_type(t)
    if isinstance(found, Parameters):
        return found.copy_modified(arg_types=[map_arrays(a, without_text) for a in found.arg_types])
    return unknown(found)


def _second(t: Type) -> Type:
    found = get_proper_type(t)
    if isinstance(found, TupleType) and len(found.items) == 2:
        return found.items[1]
    raise Unknown


def _tuple(context: FunctionContext | MethodContext) -> Instance:
    return context.api.named_generic_type("builtins.tuple", [context.default_return_type])
