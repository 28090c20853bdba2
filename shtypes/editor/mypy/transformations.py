"""Functions of functions: `grad`, `value_and_grad`, `lift`, those that run in `no_comm`; and calls of their results.

Of ``sh.vmap(f)(x)`` and ``sh.checkpoint(lambda x: ...)(x)`` the runtime types the full expression, with stand-ins for
the user's functions, because mypy would type a lambda without the types of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mypy.erasetype import erase_typevars
from mypy.nodes import ARG_POS, CallExpr, Decorator, Expression, FuncDef, LambdaExpr, RefExpr, Var
from mypy.plugin import AttributeContext, FunctionContext, FunctionSigContext, MethodContext
from mypy.plugins.functools import partial_new_callback
from mypy.typeops import get_type_vars
from mypy.types import (
    AnyType,
    CallableType,
    ExtraAttrs,
    FunctionLike,
    Instance,
    NoneType,
    Parameters,
    TupleType,
    Type,
    TypeOfAny,
    get_proper_type,
)

from shtypes.editor import runtime
from shtypes.editor.mypy.calls import CallArguments, CallMatch, has_texts, is_local
from shtypes.editor.mypy.checking import AnyContext, Checking, names_around
from shtypes.editor.mypy.ops import OpHooks
from shtypes.editor.mypy.regions import forbids
from shtypes.editor.mypy.report import written_name
from shtypes.editor.mypy.texts import (
    ARRAY,
    OTHER_FIELDS,
    QUIET,
    has_mark,
    is_function_of_arrays,
    map_arrays,
    mentions_array,
    unknown,
    with_fields,
    with_mark,
    with_text,
    without_text,
    without_texts_of_functions,
)
from shtypes.editor.mypy.values import ArgumentReader, Value, refuse_function
from shtypes.editor.text_evaluator import Undetermined
from shtypes.types.mesh import Mesh

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
_LIFT: Final = "shtypes.lifting.register.Lift.__call__"
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


#: mypy's full name of a call of a transformed function.
APPLIED: Final = frozenset(("shtypes.context.function.Function.__call__", "shtypes.programs.jit.JitFunction.__call__"))
_ANY: Final = AnyType(TypeOfAny.special_form)
#: The transformations that return gradients.
GRADS: Final = frozenset(("shtypes.autodiff.grad.grad", "shtypes.autodiff.grad.value_and_grad"))
#: Transformations over all axes of the mesh: untyped without a configured mesh.
_OF_MESHES: Final = ("shtypes.autodiff.grad.", "shtypes.autodiff.jacobian.", "shtypes.local_mode.shard_map.")
#: Transformations whose results only the runtime types, because their signatures are inaccurate.
_ASKED: Final = ("shtypes.autodiff.jacobian.", "shtypes.control.")


def is_function(t: Type) -> bool:
    """Whether a type is that of a transformed function."""
    proper = get_proper_type(t)
    return isinstance(proper, Instance) and proper.type.get("__call__") is not None


class Applied:
    """The hooks for calls of transformed functions."""

    def __init__(self, ops: OpHooks) -> None:
        self.ops, self.checking = ops, ops.checking

    def knows(self, fullname: str) -> bool:
        """Whether results of a transformation can be typed; pending gradients need a configured mesh."""
        config = self.checking.evaluator.config
        if fullname.startswith(_OF_MESHES[:2]) and config.policy != "partial":
            return True
        return bool(config.mesh) or not fullname.startswith(_OF_MESHES)

    def signature(self, context: FunctionSigContext) -> FunctionLike:
        """The signature for mypy, with Any for functions that only the runtime types."""
        default = context.default_signature
        of_functions = [
            any(isinstance(e, LambdaExpr) or signature_of(e) is not None for e in expressions)
            for expressions in context.args
        ]
        if not any(of_functions) or is_function(default.ret_type):
            return default
        formals = list(zip(of_functions, default.arg_types, strict=True))
        typed = {v.id for is_f, t in formals if not is_f for v in get_type_vars(t)}
        types = [_ANY if is_f else t for is_f, t in formals]
        ret_type = erase_typevars(default.ret_type, {v.id for v in default.variables} - typed)
        variables = [v for v in default.variables if v.id in typed]
        return default.copy_modified(arg_types=types, ret_type=ret_type, variables=variables)

    def grad(self, context: FunctionContext, name: str) -> Type:
        """The type of `grad` of a function with a signature: a function with the same parameters."""
        default = get_proper_type(context.default_return_type)
        call = self.ops.written(context, name, lambda: None, ())
        if not isinstance(default, Instance) or len(default.args) != 2 or call is None:
            return context.default_return_type
        function = call.args[0].type
        if not isinstance(function, CallableType) or not has_texts(function):
            return of_unknown(default)
        count = len(call.args)
        parameters = [Value(None, t, self.checking.evaluator) for t in function.arg_types]
        call = call._replace(args=[*call.args, *parameters], function=lambda: _making(name, count))
        transformed = default.copy_modified(args=[default.args[0], self.ops.typed(call, context, default.args[1])])
        return transformed if self.knows(name) else of_unknown(transformed, default)

    def result(self, context: MethodContext, otherwise: Callable[[MethodContext], Type]) -> Type:
        """The type of a call of a transformed function."""
        application = _application(context.context)
        if application is None:
            return otherwise(context)
        name, function, options = application
        default = otherwise(context)  # reports arguments that do not fit
        if not isinstance(function, LambdaExpr) and not name.startswith(_ASKED):
            return default
        scopes = self.checking.enclosing_scopes(context.api, context.context)
        if (name not in KEEP and (scopes.forgiving or scopes.rules)) or not self.knows(name):
            return unknown(default)
        evaluator = self.checking.evaluator
        t = _ANY if isinstance(function, LambdaExpr) else context.api.get_expression_type(function)
        first = [Value(function, t, evaluator, context.api)]
        first += [Value(e, None, evaluator, context.api) for e in options.values()]
        call = self.ops.written(context, name, lambda: _calling(name, tuple(options)), first)
        return unknown(default) if call is None else self.ops.typed(call, context, unknown(default))


def _calling(name: str, options: tuple[str, ...]) -> Callable[..., Any]:
    """A transformation and the call of its result as one function of the function, options and arguments."""
    make = runtime.function(name)

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = dict(zip(options, args, strict=False))
        return make(function, **chosen)(*args[len(options) :], **kwargs)

    return call


def _making(name: str, count: int) -> Callable[..., Any]:
    """Like `_calling`, for ``count`` options after the function, or by keyword."""
    make = runtime.function(name)
    return lambda *args, **options: make(*args[:count], **options)(*args[count:])


def _application(where: object) -> tuple[str, Expression, Mapping[str, Expression]] | None:
    """The transformation, the transformed function and the options in a call of its result."""
    transformed = where.callee if isinstance(where, CallExpr) else None
    if not isinstance(transformed, CallExpr) or not isinstance(transformed.callee, RefExpr) or not transformed.args:
        return None
    first, *others = transformed.args
    name = transformed.callee.fullname
    typed = isinstance(first, LambdaExpr) or signature_of(first) is not None
    if not typed or not name.startswith("shtypes."):
        return None
    named = dict(zip(transformed.arg_names[1:], others, strict=True))
    return None if None in named else (name, first, {n: e for n, e in named.items() if n is not None})


def typed_lambda(context: AnyContext, function: Expression, types: Sequence[Type]) -> CallableType:
    """The type of a lambda called with values of these types."""
    if not isinstance(function, LambdaExpr) or len(function.arguments) != len(types):
        raise Undetermined
    kinds, names = [ARG_POS] * len(types), [None] * len(types)
    context_type = CallableType(
        list(types), kinds, names, _ANY, context.api.named_generic_type("builtins.function", [])
    )
    inferred = get_proper_type(context.api.get_expression_type(function, context_type))
    if not isinstance(inferred, CallableType):
        raise Undetermined
    return inferred


def signature_of(function: Expression) -> CallableType | None:
    """The signature of a function's name, if it has types as strings."""
    node = function.node if isinstance(function, RefExpr) else None
    if isinstance(node, Decorator):
        node = node.var
    t = node.type if isinstance(node, (FuncDef, Var)) else None
    proper = None if t is None else get_proper_type(t)
    return proper if isinstance(proper, CallableType) and has_texts(proper) else None


class Functions:
    """Makes stand-ins for the user's functions for the runtime."""

    def __init__(self, checking: Checking) -> None:
        self.checking = checking

    def of(self, context: AnyContext, argument: Value, mesh: Mesh) -> Callable[..., Any]:
        """A function of typed values that returns values of the types that mypy infers."""
        find = self._typing(context, argument)
        if find is None:
            raise Undetermined

        def typed_call(types: Sequence[Any]) -> Callable[[], Any]:
            result = find([self._type_of(context, t) for t in types])
            return lambda: self._values(result, mesh)

        return runtime.function_of_types(typed_call, written_name(argument.expression) or "the function")

    def _typing(self, context: AnyContext, value: Value) -> Callable[[Sequence[Type]], Type] | None:
        """A function from argument types to the result type."""
        function, signature = value.expression, get_proper_type(value.type) if value.type is not None else None
        if isinstance(function, LambdaExpr):
            return lambda types: typed_lambda(context, function, types).ret_type
        if function is None or not isinstance(signature, CallableType) or not has_texts(signature):
            return None
        callee = signature_of(function) or signature
        return lambda types: self._called(context, function, callee, types)

    def _called(
        self, context: AnyContext, function: Expression, signature: CallableType, types: Sequence[Type]
    ) -> Type:
        """The result type of a function with a signature; reports errors at the array argument."""
        written = () if isinstance(context, AttributeContext) else zip(context.args, context.arg_types, strict=True)
        arguments = (pair for expressions, ts in written for pair in zip(expressions, ts, strict=True))
        where = next((expression for expression, t in arguments if mentions_array(t)), function)
        call = CallArguments(
            [[None]] * len(types), [[t] for t in types], signature.ret_type, written_name(function) or "the function"
        )
        fixed = frozenset(names_around(context.api)) if is_local(function) else frozenset[str]()
        return CallMatch(self.checking, context.api, where, signature, call, fixed).result()

    def _type_of(self, context: AnyContext, t: Any) -> Type:
        """A pytree of the runtime's types as a mypy type."""
        if t is None:
            return NoneType()
        if isinstance(t, (tuple, list)) and not isinstance(t, runtime.Fields):
            fallback = context.api.named_generic_type("builtins.tuple", [_ANY])
            return TupleType([self._type_of(context, item) for item in t], fallback)
        if isinstance(t, runtime.Fields) and isinstance(t.cls, Type):
            return with_fields(t.cls, {name: self._type_of(context, f) for name, f in t.values.items()})
        if isinstance(t, str):
            return context.api.named_generic_type(f"builtins.{t}", [])
        array = self.checking.instance(ARRAY, [_ANY]) if t else None
        return (
            _ANY
            if array is None
            else with_text(array, self.checking.evaluator.text(t), self.checking.string(context.api))
        )

    def _values(self, t: Type, mesh: Mesh) -> Any:
        """Runtime values of mypy's types."""
        reader = ArgumentReader(self.checking.evaluator, mesh, runtime.value_in_trace, refuse_function)
        return runtime.with_first_candidates(Value(None, t, self.checking.evaluator).runtime_argument(reader))
