"""Calls of what transformations make: ``sh.vmap(f)(x)``, ``sh.checkpoint(lambda x: ...)(x)``.

The runtime is asked for the whole of it, with functions in the place of the user's. mypy would type a lambda before it
knows what it will be given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from mypy.erasetype import erase_typevars
from mypy.nodes import CallExpr, Expression, LambdaExpr, RefExpr
from mypy.plugin import FunctionContext, FunctionSigContext, MethodContext
from mypy.typeops import get_type_vars
from mypy.types import AnyType, CallableType, FunctionLike, Instance, Type, TypeOfAny, get_proper_type

from shtypes.editor import runtime
from shtypes.editor.mypy.calls import has_texts
from shtypes.editor.mypy.functions import signature_of
from shtypes.editor.mypy.ops import OpHooks
from shtypes.editor.mypy.texts import unknown
from shtypes.editor.mypy.transformations import KEEP, of_unknown
from shtypes.editor.mypy.values import Value

#: How mypy knows the call of what a transformation makes.
APPLIED: Final = frozenset(("shtypes.context.function.Function.__call__", "shtypes.programs.jit.JitFunction.__call__"))
_ANY: Final = AnyType(TypeOfAny.special_form)
#: What takes gradients.
GRADS: Final = frozenset(("shtypes.autodiff.grad.grad", "shtypes.autodiff.grad.value_and_grad"))
#: Where a transformation is over the mesh, all of it: nothing is known of one that is not configured.
_OF_MESHES: Final = ("shtypes.autodiff.grad.", "shtypes.autodiff.jacobian.", "shtypes.local_mode.shard_map.")
#: What gives other types than a signature says, and is not known otherwise.
_ASKED: Final = ("shtypes.autodiff.jacobian.", "shtypes.control.")


def is_function(t: Type) -> bool:
    """Whether a type is that of what a transformation makes."""
    found = get_proper_type(t)
    return isinstance(found, Instance) and found.type.get("__call__") is not None


class Applied:
    """The hooks for calls of such functions."""

    def __init__(self, ops: OpHooks) -> None:
        self.ops, self.checking = ops, ops.checking

    def knows(self, fullname: str) -> bool:
        """Whether results of a transformation can be known: not of gradients that are pending on axes yet unknown."""
        config = self.checking.space.config
        if fullname.startswith(_OF_MESHES[:2]) and config.policy != "partial":
            return True
        return bool(config.mesh) or not fullname.startswith(_OF_MESHES)

    def signature(self, context: FunctionSigContext) -> FunctionLike:
        """Of a function that is given, mypy knows less than the runtime is told: it is not asked."""
        given = context.default_signature
        of_functions = [
            any(isinstance(e, LambdaExpr) or signature_of(e) is not None for e in expressions)
            for expressions in context.args
        ]
        if not any(of_functions) or is_function(given.ret_type):
            return given
        formals = list(zip(of_functions, given.arg_types, strict=True))
        told = {v.id for is_f, t in formals if not is_f for v in get_type_vars(t)}
        types = [_ANY if is_f else t for is_f, t in formals]
        ret_type = erase_typevars(given.ret_type, {v.id for v in given.variables} - told)
        variables = [v for v in given.variables if v.id in told]
        return given.copy_modified(arg_types=types, ret_type=ret_type, variables=variables)

    def made(self, context: FunctionContext, name: str) -> Type:
        """What takes gradients of a function with a signature: a function of the same arguments."""
        default = get_proper_type(context.default_return_type)
        call = self.ops.written(context, name, lambda: None, ())
        if not isinstance(default, Instance) or len(default.args) != 2 or call is None:
            return context.default_return_type
        given = call.args[0].type
        if not isinstance(given, CallableType) or not has_texts(given):
            return of_unknown(default)
        count = len(call.args)
        parameters = [Value(None, t, self.checking.space) for t in given.arg_types]
        call = call._replace(args=[*call.args, *parameters], function=lambda: _making(name, count))
        result = self.ops.typed(call, context, default.args[1])
        made = default.copy_modified(args=[default.args[0], result])
        return made if self.knows(name) else of_unknown(made, default)

    def result(self, context: MethodContext, otherwise: Callable[[MethodContext], Type]) -> Type:
        """What a function made of another one gives for some arguments."""
        found = _made(context.context)
        if found is None:
            return otherwise(context)
        name, function, options = found
        default = otherwise(context)  # which reports what does not fit a signature
        if not isinstance(function, LambdaExpr) and not name.startswith(_ASKED):
            return default
        around = self.checking.around(context.api, context.context)
        if (name not in KEEP and (around.forgiving or around.rules)) or not self.knows(name):
            return unknown(default)
        space = self.checking.space
        t = _ANY if isinstance(function, LambdaExpr) else context.api.get_expression_type(function)
        first = [Value(function, t, space, context.api)]
        first += [Value(e, None, space, context.api) for e in options.values()]
        call = self.ops.written(context, name, lambda: _calling(name, tuple(options)), first)
        return unknown(default) if call is None else self.ops.typed(call, context, unknown(default))


def _calling(name: str, options: tuple[str, ...]) -> Callable[..., Any]:
    """A transformation and the call of what it makes: one function of the function, the options and the arguments."""
    make = runtime.function(name)

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(options, args, strict=False))
        return make(function, **given)(*args[len(options) :], **kwargs)

    return call


def _making(name: str, count: int) -> Callable[..., Any]:
    """The same of options that follow the function, so many arguments together, or have names."""
    make = runtime.function(name)
    return lambda *args, **options: make(*args[:count], **options)(*args[count:])


def _made(where: object) -> tuple[str, Expression, Mapping[str, Expression]] | None:
    """The transformation, the function that it is given and its options, of a call of what it makes."""
    made = where.callee if isinstance(where, CallExpr) else None
    if not isinstance(made, CallExpr) or not isinstance(made.callee, RefExpr) or not made.args:
        return None
    first, *others = made.args
    name = made.callee.fullname
    known = isinstance(first, LambdaExpr) or signature_of(first) is not None
    if not known or not name.startswith("shtypes."):
        return None
    named = dict(zip(made.arg_names[1:], others, strict=True))
    return None if None in named else (name, first, {n: e for n, e in named.items() if n is not None})
