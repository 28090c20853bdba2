"""What mypy's expressions and types say of a value: the type of an array, a number, or the value itself."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
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
from shtypes.editor.space import Space, Unknown, axes_of, names_of
from shtypes.errors import ShardingTypeError
from shtypes.signatures.pattern import pattern
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh

_NUMBERS: Final = {f"builtins.{kind}": kind for kind in ("bool", "int", "float", "complex")}
_NAMES: Final = {"None": None, "True": True, "False": False}
#: Of what libraries names stand for the values that they have.
_LIBRARIES: Final = frozenset(("jax", "math", "ml_dtypes", "numpy", "shtypes"))
#: Modules that files import from JAX.
_MODULES: Final = {"lax": "jax.lax"}
#: The dtype of keys.
KEY: Final = "key<fry>"
_OPERATORS: Final = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv}


class Value:
    """An argument: its expression, where there is one, its type, and the parameter of a function that it is for."""

    def __init__(
        self,
        expression: Expression | None,
        t: Type | None,
        space: Space,
        api: CheckerPluginInterface | None = None,
        parameter: str | None = None,
    ) -> None:
        self.expression, self.space, self.api, self.parameter = expression, space, api, parameter
        self.type: ProperType | None = None if t is None else get_proper_type(t)

    def operand(self, mesh: Mesh) -> ShType | None:
        """The type of the array; None where it is a number."""
        text = None if self.type is None else text_of(self.type)
        if self.type is not None and text is not None and is_known(self.type):
            return self.space.closed(text, mesh)
        if self.type is None or _number(self.type) is None:
            raise Unknown
        return None

    @property
    def is_number(self) -> bool:
        """Whether it is a Python number."""
        return self.type is not None and _number(self.type) is not None

    def types(self) -> list[Type]:
        """The types that it is made of."""
        if isinstance(self.expression, ListExpr) and self.api is not None:
            return [v.type for v in self.items() if v.type is not None]
        if isinstance(self.type, CallableType):
            return [*self.type.arg_types, self.type.ret_type]
        return [] if self.type is None else [self.type, *fields_of(self.type).values()]

    def items(self) -> list[Value]:
        """The items of a tuple, or of a list that is written out."""
        if isinstance(self.type, TupleType):
            expressions: Sequence[Expression | None] = [None] * len(self.type.items)
            if isinstance(self.expression, (TupleExpr, ListExpr)) and len(self.expression.items) == len(expressions):
                expressions = self.expression.items
            return [Value(e, t, self.space, self.api) for e, t in zip(expressions, self.type.items, strict=True)]
        if isinstance(self.expression, (TupleExpr, ListExpr)) and self.api is not None:
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

    def python(self, reading: Reading) -> Any:
        """It as an argument of the runtime: an array that has only a type, a number, a value, a tuple or a list."""
        found = self.type
        if self.parameter == "key" and (found is None or not is_known(found)):
            return reading.key()
        if found is not None and is_array(found):
            t = self.operand(reading.mesh)
            assert t is not None  # no array is a number
            reading.operands.append((self.expression, t))
            return reading.array(t)
        try:
            return reading.static(self.static())
        except Unknown:
            pass
        fields = {} if found is None else fields_of(found)
        if found is not None and fields:
            parts = {n: Value(None, t, self.space, self.api) for n, t in fields.items()}
            return runtime.Fields(found, {n: part.part_of_a_tree(reading) for n, part in parts.items()})
        if isinstance(found, TupleType) or isinstance(self.expression, ListExpr):
            items = [item.python(reading) for item in self.items()]
            return items if isinstance(self.expression, ListExpr) else tuple(items)
        if self.is_number and found is not None:
            return runtime.unwritten_number(_number(found) or "")
        return reading.function(self, reading.mesh)

    def part_of_a_tree(self, reading: Reading) -> Any:
        """The same; what is not known has no values, and comes out as it goes in."""
        try:
            return self.python(reading)
        except Unknown:
            return runtime.Fields(self.type, {})

    def _array(self, expression: Expression) -> tuple[str, ShType]:
        """The type of an array that an expression names, and its text."""
        if self.api is None or not isinstance(expression, RefExpr):
            raise Unknown
        found = get_proper_type(self.api.get_expression_type(expression))
        text = text_of(found)
        if text is None or not is_known(found):
            raise Unknown
        return text, self.space.closed(text, self.space.mesh(axes_of(text)))


class Reading:
    """How a call's arguments become values of the runtime.

    Attributes:
        operands: The arrays that were read, with the expressions that they have.
        sizes: The sizes of the dim names in the texts that were read.
    """

    def __init__(
        self,
        space: Space,
        mesh: Mesh,
        array: Callable[[ShType], Any],
        function: Callable[[Value, Mesh], Any],
    ) -> None:
        self.space, self.mesh, self.array, self.function = space, mesh, array, function
        self.operands: list[tuple[Expression | None, ShType]] = []
        self.sizes: dict[str, int] = {}

    def static(self, found: Any) -> Any:
        """An argument that is written out; what its sizes are, and the sizes of its names, is noted."""
        if isinstance(found, str) and "[" in found:
            with contextlib.suppress(ShardingTypeError):
                self.sizes.update((name, self.space.sizes.of(name)) for name in names_of(pattern(found)))
        elif type(found) is int:
            self.space.sizes.add_written(found)
        elif isinstance(found, (tuple, list)):
            for item in found:
                self.static(item)
        return found

    def key(self) -> Any:
        """A key of which nothing is known: one for all devices, or for each device along an axis one of its own."""
        states = [{}, *({axis: State.VARYING} for axis in self.mesh.axis_names)]
        keys = [{**dict.fromkeys(self.mesh.axis_names, State.REDUCED), **s} for s in states]
        return runtime.Unwritten(tuple([self.array(ShType(self.mesh, KEY, [], s)) for s in keys]))


def no_function(value: Value, mesh: Mesh) -> Any:
    """Refuses a function as an argument."""
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
    """The value of an expression that is written out, or that the type of an array says."""
    match expression:
        case IntExpr() | StrExpr() | FloatExpr() | ComplexExpr():
            return expression.value
        case NameExpr() if expression.name in _NAMES:
            return _NAMES[expression.name]
        case MemberExpr() if expression.name in _OF_ARRAYS:
            return _OF_ARRAYS[expression.name](*arrays(expression.expr))
        case NameExpr() | MemberExpr():
            return _of_libraries(expression)
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


def _of_libraries(expression: NameExpr | MemberExpr) -> Any:
    """A function, a dtype or a constant of a library that the runtime itself is made of; mypy may skip its files."""
    path: list[str] = []
    inner: Expression = expression
    while isinstance(inner, MemberExpr):
        path.insert(0, inner.name)
        inner = inner.expr
    names, node = expression.fullname, inner.node if isinstance(inner, NameExpr) else None
    if isinstance(node, Var) and node.is_suppressed_import and node.name in (*_LIBRARIES, *_MODULES):
        names = ".".join((_MODULES.get(node.name, node.name), *path))  # mypy calls it a name of the file
    if names.partition(".")[0] not in _LIBRARIES:
        raise Unknown
    found = runtime.library_value(names)
    if found is None or isinstance(found, ModuleType):
        raise Unknown
    return found


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
    """The combinations of members of unions among some types."""
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
