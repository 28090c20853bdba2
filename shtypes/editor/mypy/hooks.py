"""The hook for each name. Imports the types, so it is only imported for files that use shtypes."""

from __future__ import annotations

import functools
from collections.abc import Callable

from mypy.nodes import CallExpr, Decorator, FuncDef, OverloadedFuncDef, SymbolTableNode, TypeInfo, Var
from mypy.operators import op_methods
from mypy.plugin import (
    AnalyzeTypeContext,
    AttributeContext,
    FunctionContext,
    FunctionSigContext,
    MethodContext,
    MethodSigContext,
)
from mypy.types import CallableType, FunctionLike, Type, get_proper_type

from shtypes.editor import guards
from shtypes.editor.config import Config
from shtypes.editor.mypy.annotations import Annotations
from shtypes.editor.mypy.calls import CallHooks, has_texts
from shtypes.editor.mypy.checking import Checking
from shtypes.editor.mypy.ops import OpHooks
from shtypes.editor.mypy.regions import SCOPES
from shtypes.editor.mypy.texts import OF_ARRAYS, callback, is_function_of_arrays, mentions_array
from shtypes.editor.mypy.transformations import APPLIED, GRADS, Applied, Functions, Transformations, is_function

Lookup = Callable[[str], SymbolTableNode | None]


class Hooks:
    """The hooks of one run."""

    def __init__(self, config: Config, lookup: Lookup) -> None:
        self.lookup = lookup
        self.checking = Checking(config, lookup)
        self.annotations = Annotations(self.checking)
        self.ops = OpHooks(self.checking, Functions(self.checking).of)
        self.calls = CallHooks(self.checking)
        self.transformations = Transformations(self.checking)
        self.applied = Applied(self.ops)
        self._field = guards.attribute(self.transformations.field)

    def annotation(self, context: AnalyzeTypeContext) -> Type:
        """The type of an annotation."""
        with guards.guarding():
            return self.annotations.read(context)
        return context.api.analyze_type(context.type.args[0])

    def function(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        """The hook for results of calls."""
        if self._is_users(fullname):
            return guards.result(self.calls.result)
        if fullname in GRADS:
            return guards.result(functools.partial(self.applied.grad, name=fullname))
        transformation = self.transformations.function(fullname)
        if transformation is not None:
            return guards.result(transformation)
        if is_op(fullname):
            return guards.result(functools.partial(self._op_result, fullname=fullname))
        if fullname.startswith("builtins."):
            return guards.result(functools.partial(self.ops.builtin, fullname=fullname))
        return guards.result(self.transformations.unknown) if fullname.startswith("shtypes.") else None

    def _op_result(self, context: FunctionContext, fullname: str) -> Type:
        """The result type of a function of the package that is not a transformation."""
        if is_function(context.default_return_type) or not self.applied.knows(fullname):
            return self.transformations.unknown(context)
        return self.ops.function(context, fullname)

    def function_signature(self, fullname: str) -> Callable[[FunctionSigContext], FunctionLike] | None:
        """The hook for signatures."""
        if fullname in SCOPES:
            return guards.signature(self._opened)
        if self._is_users(fullname):
            return guards.signature(self.calls.signature)
        return guards.signature(self.applied.signature) if fullname.startswith(_OF_FUNCTIONS) else None

    def _opened(self, context: FunctionSigContext) -> FunctionLike:
        if isinstance(context.context, CallExpr):
            self.checking.regions.open(getattr(context.api, "tree", None), context.context)
        return context.default_signature

    def method(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """The hook for results of operators and methods."""
        if fullname.startswith(OF_ARRAYS):
            return guards.result(functools.partial(self.ops.method, name=fullname.rpartition(".")[2]))
        if fullname.startswith(_UPDATES):
            return guards.result(functools.partial(self.ops.update, name=fullname.removeprefix(_UPDATES)))
        if fullname == "builtins.list.__getitem__":
            return guards.result(self.ops.item)
        if fullname in _COMPARED:
            return guards.result(functools.partial(self.ops.compared, name=fullname.rpartition(".")[2]))
        transformation = self.transformations.method(fullname)
        if transformation is not None:
            return guards.result(transformation)
        if not self._has_users_method(fullname):
            return None
        if fullname in APPLIED:
            return guards.result(functools.partial(self.applied.result, otherwise=self.calls.result))
        return guards.result(self.calls.result)

    def method_signature(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        """The hook for signatures of methods."""
        if fullname.startswith(OF_ARRAYS) or not self._has_users_method(fullname):
            return None
        return guards.signature(self.calls.signature)

    def attribute(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """The hook for properties of arrays, and attributes of users' classes."""
        if not fullname.startswith(OF_ARRAYS):
            return None if fullname.startswith(_OTHERS) else self._field
        return guards.attribute(functools.partial(self.ops.attribute, name=fullname.rpartition(".")[2]))

    def _is_users(self, fullname: str) -> bool:
        """Whether a name is a user's function with types as strings, or a local one."""
        if fullname.startswith(_OTHERS):
            return False
        if "." not in fullname:
            return True
        symbol = self.lookup(fullname)
        if fullname.startswith("shtypes."):
            return symbol is not None and isinstance(symbol.node, FuncDef) and _has_texts(symbol.node)
        return symbol is not None and _may_take_arrays(symbol.node)

    def _has_users_method(self, fullname: str) -> bool:
        if fullname.startswith(_OTHERS):
            return False
        if fullname.startswith("shtypes."):
            return fullname.endswith(".__call__")
        owner, _, name = fullname.rpartition(".")
        owner_symbol = self.lookup(owner)
        if owner_symbol is None or not isinstance(owner_symbol.node, TypeInfo):
            return True
        method = owner_symbol.node.get(name)
        return method is None or _may_take_arrays(method.node)


_UPDATES = "shtypes.ops.indexing.Updates."
#: Comparisons of numbers, which accept anything.
_COMPARED = {f"builtins.{t}.{op_methods[op]}" for t in ("bool", "int", "float", "complex") for op in ("==", "!=")}
#: Modules whose functions the runtime types, and the functions in them that take functions.
_OF_FUNCTIONS = ("shtypes.autodiff.grad.", "shtypes.control.")
_OPS = tuple(f"shtypes.{room}." for room in ("dispatch", "local_mode", "namespaces", "numerics", "ops", "primitives"))
_NAMED = ("shtypes.autodiff.checkpoint.checkpoint_name", *_OF_FUNCTIONS)


def is_op(fullname: str) -> bool:
    """Whether the runtime types the results of a function."""
    is_own = fullname.startswith("shtypes.") and fullname.count(".") == 1
    return is_own or fullname.startswith((*_OPS, *_NAMED))


_OTHERS = ("builtins.", "typing.", "jax.")


def _may_take_arrays(node: object) -> bool:
    """Whether a function may take arrays, by its type."""
    if isinstance(node, Decorator):
        node = node.var
    if isinstance(node, TypeInfo):
        init = node.get("__init__") or node.get("__new__")
        return init is not None and _may_take_arrays(init.node)
    if isinstance(node, OverloadedFuncDef):
        return any(map(_may_take_arrays, node.items))
    t = node.type if isinstance(node, (FuncDef, Var)) else None
    proper = None if t is None else get_proper_type(t)
    return not isinstance(proper, CallableType) or _mentions(proper)


def _has_texts(node: FuncDef) -> bool:
    """Whether a function of shtypes is one of its examples."""
    return isinstance(node.type, CallableType) and has_texts(node.type)


def _mentions(t: CallableType) -> bool:
    return (
        any(map(mentions_array, t.arg_types))
        or is_function_of_arrays(t.ret_type)
        or any(map(is_function_of_arrays, t.arg_types))
        or any(map(callback, t.arg_types))
    )
