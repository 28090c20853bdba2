"""What mypy's expressions and types say of a value: the type of an array, a number, or the value itself."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from mypy.nodes import (
    ComplexExpr,
    EllipsisExpr,
    Expression,
    FloatExpr,
    IndexExpr,
    IntExpr,
    ListExpr,
    MemberExpr,
    NameExpr,
    OpExpr,
    RefExpr,
    SliceExpr,
    StarExpr,
    StrExpr,
    TupleExpr,
    UnaryExpr,
    Var,
)
from mypy.plugin import CheckerPluginInterface
from mypy.types import Instance, LiteralType, NoneType, ProperType, TupleType, Type, UnionType, get_proper_type

from shtypes.editor.call import Number, Operand
from shtypes.editor.mypy.texts import ARRAY, is_known, text_of
from shtypes.editor.space import Space, Unknown, axes_of
from shtypes.types import ShType
from shtypes.types.dtypes import LONG
from shtypes.types.mesh import Mesh

_NUMBERS: Final = {f"builtins.{kind}": kind for kind in ("bool", "int", "float", "complex")}
_NAMES: Final = {"None": None, "True": True, "False": False}
_INFINITIES: Final = frozenset(("jax.numpy.inf", "math.inf", "numpy.inf"))
_DTYPES: Final = {**{name: name for name in LONG.values()}, "bool_": "bool"}
_OPERATORS: Final = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv}


class Value:
    """An argument: its expression, where there is one, and its type."""

    def __init__(
        self, expression: Expression | None, t: Type | None, space: Space, api: CheckerPluginInterface | None = None
    ) -> None:
        self.expression, self.space, self.api = expression, space, api
        self.type: ProperType | None = None if t is None else get_proper_type(t)

    def operand(self, mesh: Mesh) -> Operand:
        """The type of the array, or the number."""
        found = self.type
        if found is None:
            raise Unknown
        text = text_of(found)
        if text is not None and is_known(found):
            return self.space.closed(text, mesh)
        kind = _number(found)
        if kind is None:
            raise Unknown
        try:
            return Number(kind, self.static())
        except Unknown:
            return Number(kind)

    def operands(self, mesh: Mesh) -> list[Operand]:
        """The items of a tuple, or of a list that is written out."""
        return [item.operand(mesh) for item in self.items()]

    def types(self) -> list[Type]:
        """The types that it is made of."""
        if isinstance(self.expression, ListExpr) and self.api is not None:
            return [v.type for v in self.items() if v.type is not None]
        return [] if self.type is None else [self.type]

    def items(self) -> list[Value]:
        """The items of a tuple, or of a list that is written out."""
        if isinstance(self.type, TupleType):
            expressions: Sequence[Expression | None] = [None] * len(self.type.items)
            if isinstance(self.expression, (TupleExpr, ListExpr)) and len(self.expression.items) == len(expressions):
                expressions = self.expression.items
            return [Value(e, t, self.space, self.api) for e, t in zip(expressions, self.type.items, strict=True)]
        if isinstance(self.expression, ListExpr) and self.api is not None:
            types = map(self.api.get_expression_type, self.expression.items)
            return [Value(e, t, self.space, self.api) for e, t in zip(self.expression.items, types, strict=True)]
        raise Unknown

    def static(self) -> Any:
        """The value, where it is written out or mypy knows it."""
        if self.expression is not None:
            try:
                return literal(self.expression, self._array)
            except Unknown:
                pass
        if self.type is None:
            raise Unknown
        return _value(self.type)

    def _array(self, expression: Expression) -> tuple[str, ShType]:
        """The type of an array that an expression names, and its text."""
        if self.api is None or not isinstance(expression, RefExpr):
            raise Unknown
        found = get_proper_type(self.api.get_expression_type(expression))
        text = text_of(found)
        if text is None or not is_known(found):
            raise Unknown
        return text, self.space.closed(text, self.space.mesh(axes_of(text)))

    def function(self) -> str:
        """The name of the function of JAX or of this library that it is."""
        found = self.expression
        if not isinstance(found, (NameExpr, MemberExpr)) or not (
            _is_of_jax(found) or found.fullname.startswith("shtypes.")
        ):
            raise Unknown
        return found.name

    def entries(self) -> list[Any]:
        """The parts of an index: those that are written out, and values in place of arrays."""
        if isinstance(self.expression, TupleExpr):
            types: Sequence[Type | None] = [None] * len(self.expression.items)
            if isinstance(self.type, TupleType) and len(self.type.items) == len(types):
                types = self.type.items
            return [_part(Value(e, t, self.space)) for e, t in zip(self.expression.items, types, strict=True)]
        return [_part(self)]


def _part(value: Value) -> Any:
    if value.type is not None and isinstance(value.type, Instance) and value.type.type.fullname == ARRAY:
        return value
    try:
        found = value.static()
    except Unknown:
        return value
    if found is None or found is Ellipsis or isinstance(found, slice) or type(found) is int:
        return found
    raise Unknown


def _number(t: ProperType) -> str | None:
    """The kind of a Python number."""
    found: ProperType = t.fallback if isinstance(t, LiteralType) else t
    return _NUMBERS.get(found.type.fullname) if isinstance(found, Instance) else None


#: What says of an expression that it is an array, of what text and type.
Arrays = Callable[[Expression], tuple[str, ShType]]


def _no_array(expression: Expression) -> tuple[str, ShType]:
    raise Unknown


def literal(expression: Expression, arrays: Arrays = _no_array) -> Any:
    """The value of an expression that is written out, or that the type of an array says.

    Raises:
        Unknown: it is not.
    """
    match expression:
        case IntExpr() | StrExpr() | FloatExpr() | ComplexExpr():
            return expression.value
        case NameExpr() if expression.name in _NAMES:
            return _NAMES[expression.name]
        case NameExpr() | MemberExpr() if expression.name in _DTYPES and _is_dtype(expression.fullname):
            return _DTYPES[expression.name]
        case NameExpr() | MemberExpr() if expression.fullname in _INFINITIES:
            return math.inf
        case MemberExpr() if expression.name in _OF_ARRAYS:
            return _OF_ARRAYS[expression.name](*arrays(expression.expr))
        case UnaryExpr(op="-"):
            found = literal(expression.expr, arrays)
            if isinstance(found, (int, float, complex)):
                return -found
        case OpExpr() if expression.op in _OPERATORS:
            left, right = literal(expression.left, arrays), literal(expression.right, arrays)
            if type(left) is int and type(right) is int and (right or expression.op != "//"):
                return _OPERATORS[expression.op](left, right)
        case TupleExpr():
            return tuple(_items(expression.items, arrays))
        case ListExpr():
            return list(_items(expression.items, arrays))
        case EllipsisExpr():
            return Ellipsis
        case SliceExpr():
            parts = (expression.begin_index, expression.end_index, expression.stride)
            return slice(*(None if part is None else literal(part, arrays) for part in parts))
        case IndexExpr(base=MemberExpr(name="shape")):
            return _item(literal(expression.base, arrays), literal(expression.index, arrays))
    raise Unknown


#: What attributes of an array are, by its text and type.
_OF_ARRAYS: Final[dict[str, Callable[[str, ShType], Any]]] = {
    "shape": lambda text, t: t.shape,
    "ndim": lambda text, t: t.ndim,
    "type": lambda text, t: text,
    "dtype": lambda text, t: t.dtype_name,
}


def _items(expressions: Iterable[Expression], arrays: Arrays) -> Iterator[Any]:
    for item in expressions:
        if isinstance(item, StarExpr):
            yield from literal(item.expr, arrays)
        else:
            yield literal(item, arrays)


def _item(shape: Sequence[int], index: Any) -> Any:
    if isinstance(index, slice) or (type(index) is int and -len(shape) <= index < len(shape)):
        return shape[index]
    raise Unknown


def _is_of_jax(expression: RefExpr) -> bool:
    """Whether something is JAX's, whose files mypy may skip."""
    if expression.fullname.startswith("jax."):
        return True
    found: Expression = expression
    while isinstance(found, MemberExpr):
        found = found.expr
    node = found.node if isinstance(found, NameExpr) else None
    return isinstance(node, Var) and node.is_suppressed_import and node.name in ("jax", "lax")


def _is_dtype(fullname: str) -> bool:
    return fullname.partition(".")[0] in ("jax", "numpy", "shtypes", "ml_dtypes")


def _value(t: ProperType) -> Any:
    """The value that a type says: of a literal, of a final name, of a tuple of such."""
    match t:
        case NoneType():
            return None
        case LiteralType():
            return t.value
        case Instance() if t.last_known_value is not None:
            return t.last_known_value.value
        case TupleType():
            return tuple(_value(get_proper_type(item)) for item in t.items)
    raise Unknown


#: Of how many combinations of members of unions a call is typed.
_MOST_MEMBERS: Final = 16


def members(types: Iterable[Type]) -> list[tuple[Type, ...]]:
    """What some types may be together, a member of each union.

    Raises:
        Unknown: they are too many.
    """
    several: list[list[Type]] = []
    for t in types:
        found = get_proper_type(t)
        several.append(list(found.items) if isinstance(found, UnionType) else [t])
    count = 1
    for each in several:
        count *= len(each)
    if count > _MOST_MEMBERS:
        raise Unknown
    return list(itertools.product(*several))
