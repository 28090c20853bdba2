"""Converts the arguments of a call from mypy's view to runtime arguments: typed arrays, literals, pytrees."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

from mypy import nodes
from mypy.plugin import CheckerPluginInterface
from mypy.types import (
    CallableType,
    Instance,
    LiteralType,
    NoneType,
    ProperType,
    TupleType,
    Type,
    UnionType,
    get_proper_type,
)

from shtypes.editor import runtime
from shtypes.editor.mypy.texts import fields_of, is_array, is_known, text_of
from shtypes.editor.text_evaluator import TextEvaluator, Undetermined, axes_of, names_of
from shtypes.errors import ShardingTypeError
from shtypes.signatures.matching import pattern
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh

_NUMBER_TYPES: Final = {f"builtins.{kind}": kind for kind in ("bool", "int", "float", "complex")}
_CONSTANTS: Final = {"None": None, "True": True, "False": False}
#: Libraries whose names are evaluated by import: functions, dtypes and constants.
_LIBRARIES: Final = frozenset(("jax", "math", "ml_dtypes", "numpy", "shtypes"))
#: Modules with conventional short names.
_MODULES: Final = {"lax": "jax.lax"}
#: The dtype of `jax.random.key`.
KEY: Final = "key<fry>"
_OPERATORS: Final = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv}


class Value:
    """An argument of a call in mypy's view, with its parameter; the expression is None for the item of a tuple."""

    def __init__(
        self,
        expression: nodes.Expression | None,
        t: Type | None,
        evaluator: TextEvaluator,
        api: CheckerPluginInterface | None = None,
        parameter: str | None = None,
    ) -> None:
        self.expression, self.evaluator, self.api, self.parameter = expression, evaluator, api, parameter
        self.type: ProperType | None = None if t is None else get_proper_type(t)

    def operand(self, mesh: Mesh) -> ShType | None:
        """Its sharding type; None for a Python number."""
        text = None if self.type is None else text_of(self.type)
        if self.type is not None and text is not None and is_known(self.type):
            return self.evaluator.type_of(text, mesh)
        if self.type is None or _number_kind(self.type) is None:
            raise Undetermined
        return None

    @property
    def is_number(self) -> bool:
        """Whether it is a Python number, literal or not."""
        return self.type is not None and _number_kind(self.type) is not None

    def types(self) -> list[Type]:
        """The mypy types of it and of its parts: list items, fields, a function's parameters and result."""
        if isinstance(self.expression, nodes.ListExpr) and self.api is not None:
            return [v.type for v in self.items() if v.type is not None]
        if isinstance(self.type, CallableType):
            return [*self.type.arg_types, self.type.ret_type]
        return [] if self.type is None else [self.type, *fields_of(self.type).values()]

    def items(self) -> list[Value]:
        """The items of a tuple or of a list display."""
        if isinstance(self.type, TupleType):
            expressions: Sequence[nodes.Expression | None] = [None] * len(self.type.items)
            if isinstance(self.expression, (nodes.TupleExpr, nodes.ListExpr)) and len(self.expression.items) == len(
                expressions
            ):
                expressions = self.expression.items
            return [Value(e, t, self.evaluator, self.api) for e, t in zip(expressions, self.type.items, strict=True)]
        if isinstance(self.expression, (nodes.TupleExpr, nodes.ListExpr)) and self.api is not None:
            types = map(self.api.get_expression_type, self.expression.items)
            return [Value(e, t, self.evaluator, self.api) for e, t in zip(self.expression.items, types, strict=True)]
        raise Undetermined

    def literal(self) -> Any:
        """Its value, from a literal expression or a `Literal` type; raises `Undetermined` if there is none."""
        if self.expression is not None:
            try:
                return literal(self.expression, self._array, self.evaluator.number)
            except Undetermined:
                pass
        if self.type is None:
            raise Undetermined
        return _value_of_type(self.type, self.evaluator.number)

    def runtime_argument(self, reader: ArgumentReader) -> Any:
        """The runtime argument: a shape-only array, a literal, a pytree of these, or a function."""
        proper = self.type
        if self.parameter == "key" and (proper is None or not is_known(proper)):
            return reader.key()
        if proper is not None and is_array(proper):
            t = self.operand(reader.mesh)
            assert t is not None  # no array is a number
            return reader.operand(self.expression, t)
        try:
            return reader.literal(self.literal())
        except Undetermined:
            pass
        fields = {} if proper is None else fields_of(proper)
        if proper is not None and fields:
            parts = {n: Value(None, t, self.evaluator, self.api) for n, t in fields.items()}
            return runtime.Fields(proper, {n: part.runtime_leaf(reader) for n, part in parts.items()})
        if isinstance(proper, TupleType) or isinstance(self.expression, nodes.ListExpr):
            items = [item.runtime_argument(reader) for item in self.items()]
            return items if isinstance(self.expression, nodes.ListExpr) else tuple(items)
        if self.is_number and proper is not None:
            return runtime.unknown_number(_number_kind(proper) or "")
        return reader.function(self, reader.mesh)

    def runtime_leaf(self, reader: ArgumentReader) -> Any:
        """The runtime argument for a field: an opaque leaf if unknown."""
        try:
            return self.runtime_argument(reader)
        except Undetermined:
            return runtime.Fields(self.type, {})

    def _array(self, expression: nodes.Expression) -> tuple[str, ShType]:
        """The string and the sharding type of an array expression."""
        if self.api is None or not isinstance(expression, nodes.RefExpr):
            raise Undetermined
        proper = get_proper_type(self.api.get_expression_type(expression))
        text = text_of(proper)
        if text is None or not is_known(proper):
            raise Undetermined
        return text, self.evaluator.type_of(text, self.evaluator.mesh(axes_of(text)))


class Call(NamedTuple):
    """A call as the program writes it."""

    name: str  # the key of the function for the cache
    function: Callable[[], Callable[..., Any] | None]  # the runtime's function; None until JAX is imported
    args: Sequence[Value]  # by position; for a method, the array first
    kwargs: Mapping[str, Value] = {}  # never changed
    naming: Sequence[Value] = ()  # the arguments that have mesh axes, or types
    axes: frozenset[str] = frozenset()  # mesh axes that are keywords: ``x=`` in ``sh.reshard(a, x="R")``

    @property
    def values(self) -> list[Value]:
        """All arguments."""
        return [*self.args, *self.kwargs.values()]

    def exchanged(self, swap: Mapping[int, Value]) -> Call:
        """The call with some arguments replaced, by their ids."""
        kwargs = {name: swap.get(id(v), v) for name, v in self.kwargs.items()}
        return self._replace(args=[swap.get(id(v), v) for v in self.args], kwargs=kwargs)


class ArgumentReader:
    """Converts the arguments of one call to runtime arguments; ``array`` and ``function`` make those from types.

    Records the arrays so far with their expressions (``operands``), the sizes of dim names in literal strings, and the
    ``numbers`` of the call.
    """

    def __init__(
        self,
        evaluator: TextEvaluator,
        mesh: Mesh,
        array: Callable[[ShType], Any],
        function: Callable[[Value, Mesh], Any],
    ) -> None:
        self.evaluator, self.mesh, self.array, self.function = evaluator, mesh, array, function
        self.operands: list[tuple[nodes.Expression | None, ShType]] = []
        self._variables: dict[tuple[nodes.SymbolNode | None, ShType], Any] = {}
        self.sizes: dict[str, int] = {}
        self.numbers: set[int] = set()

    def operand(self, expression: nodes.Expression | None, t: ShType) -> Any:
        """The array of an expression: of a variable that is given twice, the same one."""
        self.operands.append((expression, t))
        if not isinstance(expression, nodes.NameExpr):
            return self.array(t)
        key = expression.node, t
        if key not in self._variables:
            self._variables[key] = self.array(t)
        return self._variables[key]

    def literal(self, value: Any) -> Any:
        """A literal for the runtime; records the sizes of dim names in strings, and integers."""
        if type(value) is int:
            self.numbers.add(abs(value))
        if isinstance(value, slice):
            self.literal((value.start, value.stop, value.step))
        if type(value) in (tuple, list):
            return type(value)(map(self.literal, value))
        if isinstance(value, TextOfArray):
            return self.array(self.evaluator.type_of(value, self.mesh)).type
        if isinstance(value, str) and "[" in value:
            with contextlib.suppress(ShardingTypeError):
                self.sizes.update((name, self.evaluator.sizes.of(name)) for name in names_of(pattern(value)))
        return value

    def key(self) -> Any:
        """An unknown key: replicated, or varying along an axis."""
        states = [{}, *({axis: State.VARYING} for axis in self.mesh.axis_names)]
        keys = [{**dict.fromkeys(self.mesh.axis_names, State.REDUCED), **s} for s in states]
        return runtime.UnknownArgument(tuple([self.array(ShType(self.mesh, KEY, [], s)) for s in keys]))


def refuse_function(value: Value, mesh: Mesh) -> Any:
    """An `ArgumentReader.function` for calls that take no functions."""
    raise Undetermined


def _number_kind(t: ProperType) -> str | None:
    """``bool``, ``int``, ``float`` or ``complex``; None for a type that is not a Python number's."""
    base: ProperType = t.fallback if isinstance(t, LiteralType) else t
    return _NUMBER_TYPES.get(base.type.fullname) if isinstance(base, Instance) else None


class TextOfArray(str):
    """The string of an array's type that has no written string."""

    __slots__ = ()


#: Returns an array expression's string and type; raises `Undetermined` for other expressions.
Arrays = Callable[[nodes.Expression], tuple[str, ShType]]
#: Records an integer that is written, or computed from others; see `TextEvaluator.number`.
Numbers = Callable[..., int]


def _no_array(expression: nodes.Expression) -> tuple[str, ShType]:
    raise Undetermined


def _unrecorded(number: int, *of: int) -> int:
    return number


def literal(expression: nodes.Expression, arrays: Arrays = _no_array, number: Numbers = _unrecorded) -> Any:
    """Evaluates literals and ``Final`` names, with ``x.shape``, ``x.ndim``, ``x.type`` and ``x.dtype`` of arrays."""
    match expression:
        case nodes.IntExpr():
            return number(expression.value)
        case nodes.StrExpr() | nodes.FloatExpr() | nodes.ComplexExpr():
            return expression.value
        case nodes.NameExpr() if expression.name in _CONSTANTS:
            return _CONSTANTS[expression.name]
        case nodes.MemberExpr() if expression.name in _ARRAY_ATTRIBUTES:
            return _ARRAY_ATTRIBUTES[expression.name](*arrays(expression.expr))
        case nodes.NameExpr() | nodes.MemberExpr():
            value = _named_value(expression)
            return number(value) if type(value) is int else value
        case nodes.UnaryExpr(op="-"):
            operand = literal(expression.expr, arrays, number)
            if isinstance(operand, (int, float, complex)):
                return -operand
        case nodes.OpExpr() if expression.op in _OPERATORS:
            left, right = (literal(side, arrays, number) for side in (expression.left, expression.right))
            if type(left) is int and type(right) is int and (right or expression.op != "//"):
                return number(_OPERATORS[expression.op](left, right), left, right)
        case nodes.TupleExpr() | nodes.ListExpr():
            items = _items(expression.items, arrays, number)
            return list(items) if isinstance(expression, nodes.ListExpr) else tuple(items)
        case nodes.DictExpr():
            return {_key(key): literal(value, arrays, number) for key, value in expression.items}
        case nodes.EllipsisExpr():
            return Ellipsis
        case nodes.SliceExpr():
            parts = (expression.begin_index, expression.end_index, expression.stride)
            return slice(*(None if part is None else literal(part, arrays, number) for part in parts))
        case nodes.IndexExpr(base=nodes.MemberExpr(name="shape")):
            return _item(literal(expression.base, arrays), literal(expression.index, arrays, number))
    raise Undetermined


#: Attributes of an array, from its string and type.
_ARRAY_ATTRIBUTES: Final[dict[str, Callable[[str, ShType], Any]]] = {
    "shape": lambda text, t: t.shape,
    "ndim": lambda text, t: t.ndim,
    "type": lambda text, t: TextOfArray(text),
    "dtype": lambda text, t: t.dtype_name,
}


def _items(expressions: Iterable[nodes.Expression], arrays: Arrays, number: Numbers) -> Iterator[Any]:
    for item in expressions:
        if isinstance(item, nodes.StarExpr):
            yield from literal(item.expr, arrays, number)
        else:
            yield literal(item, arrays, number)


def _key(expression: nodes.Expression | None) -> str:
    """The key of an entry of a dict, a string; None is an entry that unpacks another dict."""
    if isinstance(expression, nodes.StrExpr):
        return expression.value
    raise Undetermined


def _item(shape: Sequence[int], index: Any) -> Any:
    if isinstance(index, slice) or (type(index) is int and -len(shape) <= index < len(shape)):
        return shape[index]
    raise Undetermined


def _named_value(expression: nodes.NameExpr | nodes.MemberExpr) -> Any:
    """The value of a ``Final`` name, or the object of JAX, numpy or this package; mypy may not follow their imports."""
    if isinstance(expression.node, nodes.Var) and expression.node.final_value is not None:
        return expression.node.final_value
    path: list[str] = []
    inner: nodes.Expression = expression
    while isinstance(inner, nodes.MemberExpr):
        path.insert(0, inner.name)
        inner = inner.expr
    names, node = expression.fullname, inner.node if isinstance(inner, nodes.NameExpr) else None
    if isinstance(node, nodes.Var) and node.is_suppressed_import and node.name in (*_LIBRARIES, *_MODULES):
        names = ".".join((_MODULES.get(node.name, node.name), *path))  # mypy's name is that in the file
    if names.partition(".")[0] not in _LIBRARIES:
        raise Undetermined
    value = runtime.library_value(names)
    if value is None or isinstance(value, ModuleType):
        raise Undetermined
    return value


def _value_of_type(t: ProperType, number: Numbers) -> Any:
    """The value of a type with a single one: a literal, a ``Final`` name, None, a tuple of these."""
    match t:
        case NoneType():
            return None
        case LiteralType():
            return number(t.value) if type(t.value) is int else t.value
        case Instance() if t.last_known_value is not None:
            return _value_of_type(t.last_known_value, number)
        case TupleType():
            return tuple(_value_of_type(get_proper_type(item), number) for item in t.items)
    raise Undetermined


#: The maximum number of combinations of union members for which a call is typed.
_MOST_COMBINATIONS: Final = 16


def union_combinations(types: Iterable[Type]) -> list[tuple[Type, ...]]:
    """All combinations of types in which each union is replaced by one of its members."""
    alternatives: list[list[Type]] = []
    for t in types:
        proper = get_proper_type(t)
        alternatives.append(list(proper.items) if isinstance(proper, UnionType) else [t])
    count = 1
    for each in alternatives:
        count *= len(each)
    if count > _MOST_COMBINATIONS:
        raise Undetermined
    return list(itertools.product(*alternatives))
