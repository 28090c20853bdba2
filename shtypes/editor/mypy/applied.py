"""Calls of transformed functions: ``sh.vmap(f)(x)``, ``sh.checkpoint(lambda x: ...)(x)``.

The runtime types the full expression, with stand-ins for the user's functions, because mypy would type a lambda without
the types of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mypy.erasetype import erase_typevars
from mypy.nodes import ARG_POS, CallExpr, Decorator, Expression, FuncDef, LambdaExpr, RefExpr, Var
from mypy.plugin import AttributeContext, FunctionContext, FunctionSigContext, MethodContext
from mypy.typeops import get_type_vars
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    NoneType,
    TupleType,
    Type,
    TypeOfAny,
    get_proper_type,
)

from shtypes.editor import runtime
from shtypes.editor.mypy.calls import CallArguments, CallMatch, has_texts, is_local
from shtypes.editor.mypy.checking import AnyContext, Checking, names_around
from shtypes.editor.mypy.ops import OpHooks
from shtypes.editor.mypy.report import written_name
from shtypes.editor.mypy.texts import ARRAY, mentions_array, unknown, with_fields, with_text
from shtypes.editor.mypy.transformations import KEEP, of_unknown
from shtypes.editor.mypy.values import ArgumentReader, Value, refuse_function
from shtypes.editor.text_evaluator import Undetermined
from shtypes.types.mesh import Mesh

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
        result = self.ops.typed(call, context, default.args[1])
        transformed = default.copy_modified(args=[default.args[0], result])
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
        around = self.checking.around(context.api, context.context)
        if (name not in KEEP and (around.forgiving or around.rules)) or not self.knows(name):
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

        name = written_name(argument.expression) if argument.expression is not None else None
        return runtime.function_of_types(typed_call, name or "the function")

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
        arrays = (
            (
                e
                for expressions, ts in zip(context.args, context.arg_types, strict=True)
                for e, t in zip(expressions, ts, strict=True)
                if mentions_array(t)
            )
            if not isinstance(context, AttributeContext)
            else iter(())
        )
        where = next(arrays, function)
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
