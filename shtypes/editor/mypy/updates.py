"""Hooks for ``x.at[key].add(values)`` and its kind, and for ``x.at[key].apply(f)``: read, given to ``f``, set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mypy.nodes import CallExpr, Expression, IndexExpr, LambdaExpr, MemberExpr, RefExpr
from mypy.plugin import MethodContext
from mypy.types import Type, get_proper_type

from shtypes.editor.mypy.applied import typed_lambda
from shtypes.editor.mypy.ops import FUNCTIONS, OpHooks
from shtypes.editor.mypy.texts import is_known, unknown
from shtypes.editor.mypy.values import Value
from shtypes.editor.ops import PARAMETERS
from shtypes.editor.space import Unknown
from shtypes.ops.table import OPS

Given = Mapping[str, Sequence[Value]]


class Updates:
    """The hooks for methods of ``x.at[key]``."""

    def __init__(self, ops: OpHooks) -> None:
        self.ops, self.space = ops, ops.checking.space

    def changed(self, context: MethodContext, how: str) -> Type:
        """``x.at[key].add(values)``."""
        given, _ = self.ops.given(context)
        part = self._part(context)
        if part is None:
            return context.default_return_type
        options = {n: v for n, v in given.items() if n not in ("x", "key", "values")}
        keywords = {n: v[0] for n, v in options.items() if v}
        return self._typed(f"at.{how}", {**given, **part}, keywords, context)

    def applied(self, context: MethodContext) -> Type:
        """``x.at[key].apply(f)``, without options, where the key says which elements are meant."""
        given, _ = self.ops.given(context)
        part = self._part(context)
        if part is None or [n for n, values in given.items() if values] != ["func"]:
            return context.default_return_type
        try:
            part["key"][0].static()  # an array in it may name an element twice
            found = self._made(context, given["func"][0].expression, self._typed("at.get", part, {}, context))
        except Unknown:
            return unknown(context.default_return_type)
        return self._typed("at.set", {**part, "values": [Value(None, found, self.space)]}, {}, context)

    def _made(self, context: MethodContext, function: Expression | None, got: Type) -> Type:
        """What a function makes of the part: a lambda, or an op of one operand that acts on each element."""
        found = got
        if not is_known(get_proper_type(got)):
            raise Unknown
        if isinstance(function, LambdaExpr):
            found = typed_lambda(context, function, [got]).ret_type
        else:
            op = FUNCTIONS.get(function.fullname, "") if isinstance(function, RefExpr) else ""
            if op not in PARAMETERS or len([n for n in OPS[op].operands.split(", ") if n not in ("", "/")]) != 1:
                raise Unknown
            found = self._typed(op, {PARAMETERS[op][0]: [Value(None, got, self.space)]}, {}, context)
        if not is_known(get_proper_type(found)):
            raise Unknown
        return found

    def _part(self, context: MethodContext) -> dict[str, list[Value]] | None:
        """The array and the key."""
        match context.context:
            case CallExpr(callee=MemberExpr(expr=IndexExpr(base=MemberExpr(expr=array), index=key))):
                types = [context.api.get_expression_type(e) for e in (array, key)]
                return {"x": [Value(array, types[0], self.space)], "key": [Value(key, types[1], self.space)]}
        return None

    def _typed(self, op: str, given: Given, keywords: Mapping[str, Value], context: MethodContext) -> Type:
        return self.ops.typed(op, given, keywords, None, context, context.default_return_type)
