"""Hooks for the functions, operators, methods and properties of typed values: their calls are typed by the rules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mypy.nodes import CallExpr, ComparisonExpr, Context, Expression, IndexExpr, MemberExpr, OpExpr, UnaryExpr
from mypy.plugin import AttributeContext, FunctionContext, MethodContext
from mypy.typeops import make_simplified_union
from mypy.types import AnyType, Instance, TupleType, Type, TypeOfAny, UnionType, get_proper_type

from shtypes.editor.call import Call
from shtypes.editor.mypy.checking import Checking
from shtypes.editor.mypy.memo import Known, Memo, Texts
from shtypes.editor.mypy.regions import Around
from shtypes.editor.mypy.report import past_one_filter, refuse
from shtypes.editor.mypy.texts import ARRAY, is_array, texts_in, unknown, with_text, without_text
from shtypes.editor.mypy.values import Value, members
from shtypes.editor.ops import PARAMETERS, TYPINGS, Result
from shtypes.editor.ops.moves import OPTIONS
from shtypes.editor.space import Space, Unknown, axes_of
from shtypes.errors import ShardingTypeError
from shtypes.ops.of_arrays import BINARY, COMPARISONS, METHODS, PROPERTIES, UNARY
from shtypes.ops.table import OPS
from shtypes.types import ShType
from shtypes.types.notation.syntax import read_signature

#: The parameters that name mesh axes, or types.
_NAMING: Final = frozenset(("axes", "axis", "axis_name", "out", "over", "target", "type"))
_NAMED: Final = {(row.module, row.attr): op for op, row in OPS.items() if op in TYPINGS}


def _same(op: str) -> str:
    """The op that has a typing and is the same function."""
    return op if op in TYPINGS else _NAMED.get((OPS[op].module, OPS[op].attr), op)


#: The op of each function, by the full name that mypy knows it by.
FUNCTIONS: Final[Mapping[str, str]] = {
    **{f"{OPS[op].module}.{OPS[op].attr}": op for op in OPS if op in TYPINGS},
    **{f"shtypes.{'namespaces.' if OPS[op].space else ''}{op}": _same(op) for op in OPS if _same(op) in TYPINGS},
    "builtins.abs": "abs",
    "shtypes.primitives.conversions.array": "array",
    "shtypes.autodiff.checkpoint.checkpoint_name": "checkpoint_name",
}


def _operators() -> Iterator[tuple[str, tuple[str, bool]]]:
    for names in (BINARY, COMPARISONS):
        for name, op in names.items():
            yield f"__{name}__", (op, False)
            if names is BINARY:
                yield f"__r{name}__", (op, True)


#: The op of each operator of two operands, and whether these are exchanged.
_OPERATORS: Final = dict(_operators())
_METHODS: Final[Mapping[str, str]] = {
    **{name: _same(name) for name in METHODS},
    **{f"__{name}__": op for name, op in UNARY.items()},
    "dot": "dot",
    "flatten": "ravel",
    "__getitem__": "getitem",
    "__iter__": "iter",
}


def _parameters(op: str) -> tuple[str, str]:
    """The parameters of an op of two operands."""
    names = [n for n in OPS[op].operands.split(", ") if n not in ("", "/")] or ["a" if op == "matmul" else "x"]
    first = names[0]
    return (first, names[1]) if len(names) == 2 else (first, "b" if op == "matmul" else "y")


class OpHooks:
    """The hooks for ops."""

    def __init__(self, checking: Checking) -> None:
        self.checking = checking
        self._memo = Memo(checking.space.forms)
        self._lists: dict[Context, list[Type]] = {}  # what the items are of lists that calls make

    def function(self, context: FunctionContext, op: str) -> Type:
        """A call of a function."""
        given, keywords = self.given(context, op)
        return self.typed(op, given, keywords, None, context, context.default_return_type)

    def method(self, context: MethodContext, name: str) -> Type:
        """A call of an operator or a method of arrays."""
        expression, beside, is_right = _sides(context.context, name)
        receiver = Value(expression, context.type, self.checking.space)
        if name in _OPERATORS:
            op, exchanged = _OPERATORS[name]
            if op not in TYPINGS or not context.args or not context.args[0]:
                return context.default_return_type
            other = Value(beside or context.args[0][0], context.arg_types[0][0], self.checking.space, context.api)
            left, right = (other, receiver) if exchanged else (receiver, other)
            first, second = _parameters(op)
            given: dict[str, list[Value]] = {first: [left], second: [right]}
            of_number = is_right and other.type is not None and not is_array(other.type)
            with past_one_filter(context.api) if of_number else contextlib.nullcontext():
                return self.typed(op, given, {}, None, context, context.default_return_type)
        if name == "transpose":
            return self._transposed(context, receiver)
        op = _METHODS.get(name, "")
        if op not in TYPINGS:
            return context.default_return_type
        given, keywords = self.given(context)
        if name == "__getitem__":
            given = {"key": [v for values in given.values() for v in values]}
        return self.typed(op, given, keywords, receiver, context, context.default_return_type)

    def attribute(self, context: AttributeContext, name: str) -> Type:
        """A property of arrays."""
        op = PROPERTIES.get(name, "")
        if op not in TYPINGS or not is_array(context.type):
            return context.default_attr_type
        expression = getattr(context.context, "expr", None)
        receiver = Value(expression, context.type, self.checking.space)
        return self.typed(op, {}, {}, receiver, context, context.default_attr_type)

    def item(self, context: MethodContext) -> Type:
        """``sh.split(x, [3])[0]``: an item of a list that nothing else sees."""
        match context.context:
            case IndexExpr(base=CallExpr() as made, index=index) if made in self._lists:
                items, place = self._lists[made], _static_or_none(Value(index, None, self.checking.space))
                if type(place) is int and -len(items) <= place < len(items):
                    return items[place]
        return context.default_return_type

    def _transposed(self, context: MethodContext, receiver: Value) -> Type:
        """``x.transpose(1, 0)`` and ``x.transpose((1, 0))``."""
        given, _ = self.given(context)
        axes = given.get("axes", [])
        if len(axes) > 1 or (axes and type(_static_or_none(axes[0])) is int):
            axes = [_Tuple(axes, self.checking.space)]
        return self.typed("transpose", {"axes": axes}, {}, receiver, context, context.default_return_type)

    def given(
        self, context: FunctionContext | MethodContext, op: str = ""
    ) -> tuple[dict[str, list[Value]], dict[str, Value]]:
        """The arguments by parameter, and those that ``**kwargs`` takes by their names."""
        given: dict[str, list[Value]] = {}
        keywords: dict[str, Value] = {}
        space, known = self.checking.space, PARAMETERS.get(op, ())
        formals = zip(context.callee_arg_names, context.args, context.arg_types, context.arg_names, strict=False)
        for i, (name, expressions, types, names) in enumerate(formals):
            values = [Value(e, t, space, context.api) for e, t in zip(expressions, types, strict=False)]
            named = {n: v for n, v in zip(names, values, strict=False) if n is not None and n != name}
            given[name or (known[i] if i < len(known) else f"#{i}")] = values
            keywords |= named
        return given, keywords

    # typing

    def typed(
        self,
        op: str,
        given: Mapping[str, Sequence[Value]],
        keywords: Mapping[str, Value],
        receiver: Value | None,
        context: FunctionContext | MethodContext | AttributeContext,
        default: Type,
    ) -> Type:
        """The type of a call; that without the plugin where nothing is known."""
        checking, where = self.checking, context.context
        self._lists.pop(where, None)
        around = checking.around(context.api, where)
        if around.unknown or not checking.knows_policy(around):
            return unknown(default)
        everything = [v for values in given.values() for v in values] + ([] if receiver is None else [receiver])
        unions = [v for v in everything if isinstance(v.type, UnionType)]
        if not unions:
            with checking.scope(around):
                return self._one(op, given, keywords, receiver, context, default, around)
        try:
            combinations = members([v.type for v in unions if v.type is not None])
        except Unknown:
            return unknown(default)
        results: list[Type] = []
        for chosen in combinations:
            swap = {id(v): Value(v.expression, t, v.space, v.api) for v, t in zip(unions, chosen, strict=True)}
            now = {name: [swap.get(id(v), v) for v in values] for name, values in given.items()}
            first = receiver if receiver is None else swap.get(id(receiver), receiver)
            with checking.scope(around):
                results.append(self._one(op, now, keywords, first, context, default, around))
            self._lists.pop(where, None)
        return results[0] if len(results) == 1 else make_simplified_union(results)

    def _one(
        self,
        op: str,
        given: Mapping[str, Sequence[Value]],
        keywords: Mapping[str, Value],
        receiver: Value | None,
        context: FunctionContext | MethodContext | AttributeContext,
        default: Type,
        around: Around,
    ) -> Type:
        checking = self.checking
        question = None if keywords else self._memo.question(op, given, receiver)
        known = None if question is None else self._memo.answer(question)
        if known is not None and not (known.pending and around.forgiving) and not (known.moves and around.rules):
            return self._result(known.texts, context, default)
        every = [v for values in given.values() for v in values] + ([] if receiver is None else [receiver])
        mesh = checking.space.mesh(self._axes(op, given, every, keywords))
        call = Call(op, given, mesh, checking.space, keywords, receiver)
        try:
            found = _texts(TYPINGS[op](call), checking.space)
        except ShardingTypeError as error:
            if not around.forgiving:
                with contextlib.suppress(Unknown):
                    refuse(context.api, error, call, context.context, checking.space)
            return unknown(default)
        except Unknown:
            found = None
        if question is not None:
            self._memo.keep(question, Known(found, bool(call.moves), call.has_pending()))
        if found is None or (around.forgiving and call.has_pending()):
            return unknown(default)  # what was reduced before may be taken in its place
        checking.judge_moves(context.api, call, context.context, around)
        return self._result(found, context, default)

    def _axes(
        self, op: str, given: Mapping[str, Sequence[Value]], values: Sequence[Value], keywords: Mapping[str, Value]
    ) -> set[str]:
        """The mesh axes that arguments name, where no mesh is configured."""
        if self.checking.space.config.mesh:
            return set()
        found = set(keywords) - set(OPTIONS) if op == "reshard" else set()
        for value in values:
            for t in value.types():
                for text in texts_in(t):
                    found.update(axes_of(text))
        for name in _NAMING & set(given):
            for value in given[name]:
                found.update(_written_axes(value))
        if op != "reshard":
            for name in _NAMING & set(keywords):
                found.update(_written_axes(keywords[name]))
        return found

    def _result(self, texts: Texts, context: FunctionContext | MethodContext | AttributeContext, default: Type) -> Type:
        """The type of results that have some texts; that without the plugin where nothing is known of them."""
        proper, string = get_proper_type(default), self.checking.string(context.api)

        def one(text: str, like: Type) -> Type:
            array: Type | None = get_proper_type(like)
            if not (isinstance(array, Instance) and is_array(array)):
                array = self.checking.instance(ARRAY, [AnyType(TypeOfAny.special_form)])
            if not isinstance(array, Instance):
                return like
            return with_text(array, text, string) if text else without_text(array)

        if isinstance(texts, str):
            return one(texts, default)
        if isinstance(texts, tuple) and isinstance(proper, TupleType) and len(proper.items) == len(texts):
            return TupleType([one(t, i) for t, i in zip(texts, proper.items, strict=True)], proper.partial_fallback)
        if isinstance(texts, tuple) and isinstance(proper, Instance) and proper.type.fullname == "builtins.tuple":
            return TupleType([one(t, a) for t in texts for a in proper.args[:1]], proper)
        if isinstance(texts, list) and isinstance(proper, Instance) and proper.type.fullname in _SEVERAL:
            items = [one(t, a) for t in texts for a in proper.args[:1]]
            if len(set(items)) == 1:
                return proper.copy_modified(args=items[:1])
            if proper.type.fullname != "builtins.list":
                return default
            if self.checking.parts.of(getattr(context.api, "tree", None), context.context, len(items)):
                return TupleType(items, context.api.named_generic_type("builtins.tuple", list(proper.args[:1])))
            if len(self._lists) > 1000:
                self._lists.clear()
            self._lists[context.context] = items
            return default
        return unknown(default)


def _texts(found: Result, space: Space) -> Texts:
    """The texts of results; empty where a type has none."""
    if isinstance(found, ShType):
        return _text(found, space)
    texts = [_text(t, space) for t in found]
    return texts if isinstance(found, list) else tuple(texts)


def _text(t: ShType, space: Space) -> str:
    try:
        return space.text(t)
    except Unknown:
        return ""


#: What holds several results of one type.
_SEVERAL: Final = frozenset(("builtins.list", "builtins.tuple", "typing.Iterator"))


class _Tuple(Value):
    """Arguments as the tuple that they make."""

    def __init__(self, values: Sequence[Value], space: object) -> None:
        self.values = values
        super().__init__(None, None, values[0].space)

    def static(self) -> object:
        return tuple(v.static() for v in self.values)


def _static_or_none(value: Value) -> object:
    try:
        return value.static()
    except Unknown:
        return None


def _written_axes(value: Value) -> Iterator[str]:
    """The mesh axes that a text among the arguments names: itself an axis, or a type."""
    found = _static_or_none(value)
    for text in found if isinstance(found, (tuple, list)) else (found,):
        if not isinstance(text, str):
            continue
        if text.isidentifier():
            yield text
            continue
        try:
            syntax = read_signature(text)
        except ShardingTypeError:
            continue
        yield from (a.text for d in syntax.dims or () for a in d.axes)
        yield from (a.text for _, axes in syntax.states for a in axes)


#: How comparisons are written.
_WRITTEN: Final = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}


def _sides(where: Context, name: str) -> tuple[Expression | None, Expression | None, bool]:
    """The expression of the array whose operator or method is called, the other operand's, and whether that is left."""
    match where:
        case OpExpr():
            reflected = name in _OPERATORS and _OPERATORS[name][1]
            return (where.right, where.left, True) if reflected else (where.left, where.right, False)
        case ComparisonExpr() if len(where.operands) == 2:
            left, right = where.operands
            reflected = _WRITTEN.get(name, where.operators[0]) != where.operators[0]
            return (right, left, True) if reflected else (left, right, False)
        case IndexExpr():
            return where.base, where.index, False
        case UnaryExpr():
            return where.expr, None, False
        case CallExpr(callee=MemberExpr() as member):
            return member.expr, None, False
    return None, None, False
