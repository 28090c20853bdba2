"""Functions as arguments: what the runtime calls in the place of the user's, which says what mypy knows of them.

No code of the user's runs. A lambda is typed again with the types that the runtime gives it; a function with a
signature returns what the signature says. Either gives values of these types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from mypy.nodes import ARG_POS, Decorator, Expression, FuncDef, LambdaExpr, RefExpr, Var
from mypy.plugin import AttributeContext
from mypy.types import AnyType, CallableType, NoneType, TupleType, Type, TypeOfAny, get_proper_type

from shtypes.editor import runtime
from shtypes.editor.mypy.calls import Given, Matched, has_texts, is_local
from shtypes.editor.mypy.checking import AnyContext, Checking
from shtypes.editor.mypy.names import names_around
from shtypes.editor.mypy.report import shown
from shtypes.editor.mypy.texts import ARRAY, mentions_array, with_fields, with_text
from shtypes.editor.mypy.values import Reading, Value, no_function
from shtypes.editor.space import Unknown
from shtypes.types.mesh import Mesh

_ANY: Final = AnyType(TypeOfAny.special_form)


def typed_lambda(context: AnyContext, function: Expression, given: Sequence[Type]) -> CallableType:
    """The type of a lambda that is given values of some types."""
    if not isinstance(function, LambdaExpr) or len(function.arguments) != len(given):
        raise Unknown
    kinds, names = [ARG_POS] * len(given), [None] * len(given)
    asked = CallableType(list(given), kinds, names, _ANY, context.api.named_generic_type("builtins.function", []))
    found = get_proper_type(context.api.get_expression_type(function, asked))
    if not isinstance(found, CallableType):
        raise Unknown
    return found


def signature_of(function: Expression) -> CallableType | None:
    """The signature of what is the name of a function with texts."""
    node = function.node if isinstance(function, RefExpr) else None
    if isinstance(node, Decorator):
        node = node.var
    t = node.type if isinstance(node, (FuncDef, Var)) else None
    found = None if t is None else get_proper_type(t)
    return found if isinstance(found, CallableType) and has_texts(found) else None


class Functions:
    """What makes functions for the runtime of the user's."""

    def __init__(self, checking: Checking) -> None:
        self.checking = checking

    def of(self, context: AnyContext, given: Value, mesh: Mesh) -> Callable[..., Any]:
        """A function of values that have types, which returns values of the types that mypy knows."""
        find = self._typing(context, given)
        if find is None:
            raise Unknown

        def made(types: Sequence[Any]) -> Callable[[], Any]:
            result = find([self._type_of(context, t) for t in types])
            return lambda: self._values(result, mesh)

        name = shown(given.expression) if given.expression is not None else None
        return runtime.function_of_types(made, name or "the function")

    def _typing(self, context: AnyContext, given: Value) -> Callable[[Sequence[Type]], Type] | None:
        """The type of a function's result, by those of its arguments."""
        function, signature = given.expression, get_proper_type(given.type) if given.type is not None else None
        if isinstance(function, LambdaExpr):
            return lambda types: typed_lambda(context, function, types).ret_type
        if function is None or not isinstance(signature, CallableType) or not has_texts(signature):
            return None
        known = signature_of(function) or signature
        return lambda types: self._called(context, function, known, types)

    def _called(
        self, context: AnyContext, function: Expression, signature: CallableType, types: Sequence[Type]
    ) -> Type:
        """The type of the result of a function with a signature; what does not fit is at the array that is given."""
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
        call = Given([[None]] * len(types), [[t] for t in types], signature.ret_type, shown(function) or "the function")
        fixed = frozenset(names_around(context.api)) if is_local(function) else frozenset[str]()
        return Matched(self.checking, context.api, where, signature, call, fixed).result()

    def _type_of(self, context: AnyContext, t: Any) -> Type:
        """A tree of types of the runtime, as a type of mypy."""
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
            _ANY if array is None else with_text(array, self.checking.space.text(t), self.checking.string(context.api))
        )

    def _values(self, t: Type, mesh: Mesh) -> Any:
        """Values of the runtime that have the types that mypy knows."""
        reading = Reading(self.checking.space, mesh, runtime.made, no_function)
        return runtime.with_values(Value(None, t, self.checking.space).python(reading))
