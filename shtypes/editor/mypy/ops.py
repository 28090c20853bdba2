"""Hooks for the functions, operators, methods and properties of typed values: the runtime types them."""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from mypy import nodes
from mypy.operators import op_methods, reverse_op_method_set
from mypy.plugin import AttributeContext, FunctionContext, MethodContext
from mypy.typeops import make_simplified_union
from mypy.types import AnyType, CallableType, Instance, NoneType, TupleType, Type, TypeOfAny, UnionType, get_proper_type

from shtypes.editor import runtime
from shtypes.editor.mypy.checking import AnyContext, Checking
from shtypes.editor.mypy.memo import CachedAnswer, Memo, Texts
from shtypes.editor.mypy.regions import EnclosingScopes
from shtypes.editor.mypy.report import RuntimeCall, past_one_filter, refuse
from shtypes.editor.mypy.texts import (
    ARRAY,
    fields_of,
    is_array,
    mentions_array,
    texts_in,
    unknown,
    with_fields,
    with_text,
    without_text,
)
from shtypes.editor.mypy.values import Call, Value, union_combinations
from shtypes.editor.text_evaluator import TextEvaluator, Undetermined, axes_of
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh
from shtypes.types.notation.syntax import read_signature

_ANY: Final = AnyType(TypeOfAny.special_form)
#: The parameters that name mesh axes, or types.
_NAMING: Final = frozenset(("axes", "axis", "axis_name", "out", "over", "target", "type"))


class OpHooks:
    """The hooks for ops."""

    def __init__(self, checking: Checking, function: Callable[[AnyContext, Value, Mesh], Any]) -> None:
        self.checking, self._function = checking, function
        self._memo = Memo(checking.evaluator)
        self._lists: dict[nodes.Context, list[Type]] = {}  # the items of lists that calls return

    def function(self, context: FunctionContext, fullname: str) -> Type:
        """A call of a function of the package."""
        return self.called(context, fullname, lambda: runtime.function(fullname))

    def builtin(self, context: FunctionContext, fullname: str) -> Type:
        """A call of a builtin that calls a method of the array: ``abs(x)``."""
        if not any(is_array(t) for types in context.arg_types for t in types):
            return context.default_return_type
        return self.called(context, fullname, lambda: getattr(builtins, fullname.rpartition(".")[2], None))

    def called(
        self,
        context: FunctionContext | MethodContext,
        name: str,
        function: Callable[[], Callable[..., Any] | None],
        first: Sequence[Value] = (),
    ) -> Type:
        """A call with the written arguments, after others."""
        if not mentions_array(context.default_return_type, or_any=True):
            return context.default_return_type
        call = self.written(context, name, function, first)
        default = context.default_return_type
        return unknown(default) if call is None else self.typed(call, context, default)

    def method(self, context: MethodContext, name: str) -> Type:
        """A call of an operator or a method of arrays."""
        expression, other_expression, is_right = _sides(context.context, name)
        receiver = Value(expression, context.type, self.checking.evaluator, context.api)
        call = self.written(context, f".{name}", lambda: _method(name), [receiver])
        if call is None:
            return context.default_return_type
        if other_expression is not None and len(call.args) > 1:
            other = Value(other_expression, context.arg_types[0][0], self.checking.evaluator, context.api)
            call = call._replace(args=[receiver, other])
        of_number = (
            is_right and len(call.args) > 1 and call.args[1].type is not None and not is_array(call.args[1].type)
        )
        with past_one_filter(context.api) if of_number else contextlib.nullcontext():
            return self.typed(call, context, context.default_return_type)

    def compared(self, context: MethodContext, name: str) -> Type:
        """``1 == x``, which the array handles; mypy also asks the number about ``x == 1``, which the array refuses."""
        (array,), evaluator = context.arg_types[0], self.checking.evaluator
        match context.context:
            case nodes.ComparisonExpr(operands=[left, right]) if is_array(array):
                of_array, of_number = (right, left) if context.args[0][0] is right else (left, right)
                sides = (of_array, array), (of_number, context.type)
                args = [Value(expression, t, evaluator, context.api) for expression, t in sides]
                with past_one_filter(context.api):
                    return self.typed(Call(f".{name}", lambda: _method(name), args), context, array)
        return context.default_return_type

    def attribute(self, context: AttributeContext, name: str) -> Type:
        """A property of arrays."""
        if not is_array(context.type) or not is_array(context.default_attr_type):
            return context.default_attr_type
        receiver = Value(getattr(context.context, "expr", None), context.type, self.checking.evaluator)
        call = Call(f".{name}", lambda: lambda x: getattr(x, name), [receiver])
        return self.typed(call, context, context.default_attr_type)

    def update(self, context: MethodContext, name: str) -> Type:
        """``x.at[key].add(values)``."""
        match context.context:
            case nodes.CallExpr(
                callee=nodes.MemberExpr(expr=nodes.IndexExpr(base=nodes.MemberExpr(expr=array, name=at), index=key))
            ):
                types = [context.api.get_expression_type(e) for e in (array, key)]
                first = [
                    Value(e, t, self.checking.evaluator, context.api) for e, t in zip((array, key), types, strict=True)
                ]
                return self.called(context, f".{at}.{name}", lambda: _update(at, name), first)
        return context.default_return_type

    def item(self, context: MethodContext) -> Type:
        """``sh.split(x, [3])[0]``: an item of an unnamed list."""
        match context.context:
            case nodes.IndexExpr(base=nodes.CallExpr() as call, index=index) if call in self._lists:
                items, place = self._lists[call], _static_or_none(Value(index, None, self.checking.evaluator))
                if type(place) is int and -len(items) <= place < len(items):
                    return items[place]
        return context.default_return_type

    def written(
        self,
        context: FunctionContext | MethodContext,
        name: str,
        function: Callable[[], Callable[..., Any] | None],
        first: Sequence[Value],
    ) -> Call | None:
        """A call as written; None if it unpacks a tuple or a mapping."""
        args, kwargs, naming, axes = list(first), dict[str, Value](), list[Value](), set[str]()
        formals = zip(
            context.callee_arg_names,
            context.args,
            context.arg_types,
            context.arg_kinds,
            context.arg_names,
            strict=False,
        )
        for formal, *actuals in formals:
            for expression, t, kind, keyword in zip(*actuals, strict=True):
                value = Value(expression, t, self.checking.evaluator, context.api, None if first else formal)
                if kind == nodes.ARG_NAMED and keyword is not None:
                    kwargs[keyword] = value
                elif kind == nodes.ARG_POS:
                    args.append(value)
                else:
                    return None
                if formal is None or {formal, keyword} & _NAMING:
                    naming.append(value)
                elif keyword is not None and keyword != formal:
                    axes.add(keyword)
        return Call(name, function, args, kwargs, naming, frozenset(axes))

    # typing

    def typed(self, call: Call, context: AnyContext, default: Type) -> Type:
        """The type of a call, or mypy's default if undetermined."""
        checking, where = self.checking, context.context
        self._lists.pop(where, None)
        scopes = checking.enclosing_scopes(context.api, where)
        if (scopes.unknown and not scopes.dims) or not checking.knows_policy(scopes):
            return unknown(default)
        unions = [v for v in call.values if isinstance(v.type, UnionType)]
        if not unions:
            with checking.scope(scopes):
                return self._one(call, context, default, scopes)
        try:
            combinations = union_combinations([v.type for v in unions if v.type is not None])
        except Undetermined:
            return unknown(default)
        results: list[Type] = []
        for chosen in combinations:
            swap = {id(v): Value(v.expression, t, v.evaluator, v.api) for v, t in zip(unions, chosen, strict=True)}
            with checking.scope(scopes):
                results.append(self._one(call.exchanged(swap), context, default, scopes))
            self._lists.pop(where, None)
        return results[0] if len(results) == 1 else make_simplified_union(results)

    def _one(self, call: Call, context: AnyContext, default: Type, scopes: EnclosingScopes) -> Type:
        evaluator = self.checking.evaluator
        question = (
            None
            if scopes.rules or scopes.forgiving or scopes.dims
            else self._memo.question(call.name, call.args, call.kwargs)
        )
        cached = None if question is None else self._memo.answer(question)
        if cached is not None:
            return unknown(default) if cached.texts is None else self._result(cached.texts, context, default)
        policy = scopes.policy or evaluator.config.policy
        run = RuntimeCall(call, self._axes(call), policy, functools.partial(self._function, context), scopes.dims)
        try:
            texts = _texts(run.result(evaluator), evaluator) or None
            if scopes.rules:
                self.checking.check_comm(context, run, scopes)
        except ShardingTypeError as error:
            if not scopes.forgiving:
                with contextlib.suppress(Undetermined):
                    refuse(context.api, error, run, context.context, evaluator)
            return unknown(default)
        except Undetermined:
            texts = None
        if question is not None:
            self._memo.keep(question, CachedAnswer(texts))
        pending = any(State.UNREDUCED in t.states for _, t in run.operands)
        if texts is None or (scopes.forgiving and pending):
            return unknown(default)  # a reduced type may be another overload
        return self._result(texts, context, default)

    def _axes(self, call: Call) -> set[str]:
        """The mesh axes that arguments mention, without a configured mesh."""
        if self.checking.evaluator.config.mesh:
            return set()
        axes = set(call.axes)
        for value in call.values:
            for t in value.types():
                for text in texts_in(t):
                    axes.update(axes_of(text))
            axes.update(_written_axes(value, names=value in call.naming))
        return axes

    def _result(self, texts: Texts, context: AnyContext, default: Type) -> Type:
        """The type of results from strings, or mypy's default if undetermined."""
        proper = get_proper_type(default)
        if isinstance(texts, bool) or texts is None:
            return NoneType() if texts is None and isinstance(proper, AnyType) else default
        if isinstance(texts, runtime.Function):
            number = context.api.named_generic_type("builtins.float", [])  # is broadcast
            takes = [UnionType([self._result(t, context, _ANY), number]) if t else _ANY for t in texts.arguments]
            result = self._result(texts.result, context, _ANY)
            function = context.api.named_generic_type("builtins.function", [])
            return CallableType(takes, [nodes.ARG_POS] * len(takes), [None] * len(takes), result, function)
        if isinstance(texts, runtime.Fields):
            if not isinstance(texts.cls, Type):
                return unknown(default)
            of_class = fields_of(get_proper_type(texts.cls))
            return with_fields(texts.cls, {n: self._result(t, context, of_class[n]) for n, t in texts.values.items()})
        if isinstance(texts, str):
            array: Type | None = proper
            if not (isinstance(array, Instance) and is_array(array)):
                array = self.checking.instance(ARRAY, [_ANY])
            if not isinstance(array, Instance):
                return default
            return with_text(array, texts, self.checking.string(context.api)) if texts else without_text(array)
        if isinstance(proper, TupleType):
            if len(proper.items) != len(texts):
                return unknown(default)
            items = [self._result(t, context, i) for t, i in zip(texts, proper.items, strict=True)]
            return TupleType(items, proper.partial_fallback)
        is_any = isinstance(proper, AnyType)
        if is_any and isinstance(texts, list):
            proper = context.api.named_generic_type("builtins.list", [_ANY])
        if not is_any and not (isinstance(proper, Instance) and proper.type.fullname in _CONTAINERS and proper.args):
            return unknown(default)
        like = proper.args[0] if isinstance(proper, Instance) else _ANY
        items = [self._result(t, context, like) for t in texts]
        if isinstance(texts, list) and isinstance(proper, Instance):
            return self._list(items, proper, context)
        return TupleType(items, context.api.named_generic_type("builtins.tuple", [like]))

    def _list(self, items: list[Type], default: Instance, context: AnyContext) -> Type:
        """A list, or an iterator, of items of some types."""
        if len(set(items)) == 1:
            return default.copy_modified(args=items[:1])
        if default.type.fullname != "builtins.list":
            return default
        if self.checking.regions.unpacks(getattr(context.api, "tree", None), context.context, len(items)):
            return TupleType(items, context.api.named_generic_type("builtins.tuple", list(default.args[:1])))
        if len(self._lists) > 1000:
            self._lists.clear()
        self._lists[context.context] = items
        return default


def _method(name: str) -> Callable[..., Any]:
    """A method of arrays as a function."""
    if name == "__iter__":
        return lambda x: [x[0]]

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        result = getattr(x, name)(*args, **kwargs)
        if result is NotImplemented:
            raise Undetermined
        return result

    return call


def _update(at: str, name: str) -> Callable[..., Any]:
    """A method of ``x.at[key]`` as a function of the array, the key and its arguments."""
    return lambda x, key, *args, **kwargs: getattr(getattr(x, at)[key], name)(*args, **kwargs)


def _texts(types: Any, evaluator: TextEvaluator) -> Texts:
    """The types of results as strings; empty for an unknown one."""
    if types is None or isinstance(types, (bool, str)):
        return types if types is None else False
    if isinstance(types, runtime.Fields):
        return types._replace(values={name: _texts(t, evaluator) for name, t in types.values.items()})
    if isinstance(types, runtime.Function):  # a gradient's type is over the whole mesh
        takes = tuple(_texts(t, evaluator) for t in types.arguments)
        return runtime.Function(takes, _texts(types.result, evaluator)) if evaluator.config.mesh else False
    if isinstance(types, ShType):
        try:
            return evaluator.text(types)
        except Undetermined:
            return ""
    of_items = [_texts(t, evaluator) for t in types]
    return of_items if isinstance(types, list) else tuple(of_items)


#: Containers of several results of one type.
_CONTAINERS: Final = frozenset(("builtins.list", "builtins.tuple", "typing.Iterator", "typing.Sequence"))


def _static_or_none(value: Value) -> object:
    try:
        return value.literal()
    except Undetermined:
        return None


def _written_axes(value: Value, *, names: bool) -> Iterator[str]:
    """The mesh axes in a string argument: a type, or, if possible, an axis."""
    static = _static_or_none(value)
    for text in static if isinstance(static, (tuple, list)) else (static,):
        if not isinstance(text, str):
            continue
        if text.isidentifier() or "[" not in text:
            if names and text.isidentifier():
                yield text
            continue
        try:
            syntax = read_signature(text)
        except ShardingTypeError:
            continue
        yield from (a.text for d in syntax.dims or () for a in d.axes)
        yield from (a.text for _, axes in syntax.states for a in axes)


#: The operators by their methods.
_OPERATOR_OF_METHOD: Final = {method: written for written, method in op_methods.items()}


def _sides(where: nodes.Context, name: str) -> tuple[nodes.Expression | None, nodes.Expression | None, bool]:
    """The array's expression in an operator or method call, the other operand's, and whether that is left."""
    match where:
        case nodes.OpExpr():
            reflected = name in reverse_op_method_set
            return (where.right, where.left, True) if reflected else (where.left, where.right, False)
        case nodes.ComparisonExpr() if len(where.operands) == 2:
            left, right = where.operands
            reflected = _OPERATOR_OF_METHOD.get(name, where.operators[0]) != where.operators[0]
            return (right, left, True) if reflected else (left, right, False)
        case nodes.IndexExpr():
            return where.base, where.index, False
        case nodes.UnaryExpr():
            return where.expr, None, False
        case nodes.CallExpr(callee=nodes.MemberExpr() as member):
            return member.expr, None, False
    return None, None, False
