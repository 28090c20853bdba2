"""Functions as arguments: what the runtime calls in the place of the user's, which says what mypy knows of them.

No code of the user's runs. A lambda is typed again with the types that the runtime gives it; a function with a
signature returns what the signature says. Either gives values of these types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from mypy.nodes import ARG_POS, Expression, LambdaExpr
from mypy.types import AnyType, CallableType, NoneType, TupleType, Type, TypeOfAny, get_proper_type

from shtypes.editor import runtime
from shtypes.editor.mypy.calls import Given, Matched, has_texts, is_local
from shtypes.editor.mypy.checking import AnyContext, Checking
from shtypes.editor.mypy.names import names_around
from shtypes.editor.mypy.report import shown
from shtypes.editor.mypy.texts import ARRAY, with_text
from shtypes.editor.mypy.values import Reading, Value, no_function
from shtypes.editor.space import Unknown
from shtypes.types.mesh import Mesh

_ANY: Final = AnyType(TypeOfAny.special_form)


def typed_lambda(context: AnyContext, function: Expression, given: Sequence[Type]) -> CallableType:
    """The type of a lambda that is given values of some types.

    Raises:
        Unknown: it is none, or does not take so many.
    """
    if not isinstance(function, LambdaExpr) or len(function.arguments) != len(given):
        raise Unknown
    kinds, names = [ARG_POS] * len(given), [None] * len(given)
    asked = CallableType(list(given), kinds, names, _ANY, context.api.named_generic_type("builtins.function", []))
    found = get_proper_type(context.api.get_expression_type(function, asked))
    if not isinstance(found, CallableType):
        raise Unknown
    return found


class Functions:
    """What makes functions for the runtime of the user's.

    Args:
        checking: What the hooks share.
    """

    def __init__(self, checking: Checking) -> None:
        self.checking = checking

    def of(self, context: AnyContext, given: Value, mesh: Mesh) -> Callable[..., Any]:
        """A function of values that have types, which returns values of the types that mypy knows.

        Raises:
            Unknown: it is no function of which anything is known.
        """
        function = given.expression
        if isinstance(function, LambdaExpr):
            return lambda *args: self._values(
                typed_lambda(context, function, self._typed(context, args)).ret_type, mesh
            )
        signature = get_proper_type(given.type) if given.type is not None else None
        if not isinstance(signature, CallableType) or not has_texts(signature):
            raise Unknown
        return lambda *args: self._values(self._called(context, given, signature, self._typed(context, args)), mesh)

    def _called(self, context: AnyContext, given: Value, signature: CallableType, types: Sequence[Type]) -> Type:
        """The type of the result of a function with a signature."""
        where = given.expression or context.context
        name = shown(given.expression) if given.expression is not None else None
        call = Given([[None]] * len(types), [[t] for t in types], signature.ret_type, name or "the function")
        fixed = frozenset(names_around(context.api)) if is_local(given.expression) else frozenset[str]()
        return Matched(self.checking, context.api, where, signature, call, fixed).result()

    def _typed(self, context: AnyContext, args: Sequence[Any]) -> list[Type]:
        return [self._type_of(context, x) for x in args]

    def _type_of(self, context: AnyContext, x: Any) -> Type:
        """The type of a value of the runtime, for mypy."""
        if x is None:
            return NoneType()
        if isinstance(x, (tuple, list)):
            fallback = context.api.named_generic_type("builtins.tuple", [_ANY])
            return TupleType([self._type_of(context, item) for item in x], fallback)
        array = self.checking.instance(ARRAY, [_ANY]) if runtime.is_value(x) else None
        return (
            _ANY
            if array is None
            else with_text(array, self.checking.space.text(x.type), self.checking.string(context.api))
        )

    def _values(self, t: Type, mesh: Mesh) -> Any:
        """Values of the runtime that have the types that mypy knows."""
        return Value(None, t, self.checking.space).python(Reading(self.checking.space, mesh, runtime.made, no_function))
