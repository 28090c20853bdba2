"""Arithmetic, casts and the elementwise functions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shtypes import rules
from shtypes.editor.call import Call, Number, Operand, arrays, constant, held
from shtypes.editor.dtypes import of_elementwise, of_mean, together
from shtypes.editor.ops.registry import PARAMETERS, TYPINGS, op
from shtypes.editor.space import Unknown
from shtypes.ops.table import OPS
from shtypes.types import ShType, State
from shtypes.types.dtypes import is_key, short_name


def nonlinear(call: Call, name: str, values: Sequence[Operand], dtype: str | None = None) -> ShType:
    """The type of a nonlinear function of each element."""
    types = arrays(values)
    if not types or not _takes(name, values):
        raise Unknown
    found = of_elementwise(name, values) if dtype is None else dtype
    constants = held(types)
    return call.typed(name, lambda ts: rules.nonlinear(name, ts, found, constants), *types)


#: What takes integers only, or integers and bools.
_OF_BITS: Final = {
    **dict.fromkeys(("left_shift", "right_shift", "bitwise_count"), "iu"),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), "iub"),
}
_OF_KEYS: Final = frozenset(("equal", "not_equal", "where"))


def _takes(name: str, values: Sequence[Operand]) -> bool:
    """Whether a function of elements takes operands of these dtypes; of what is refused nothing is known."""
    kinds = [v.dtype_name if isinstance(v, ShType) else v.kind for v in values]
    if any(is_key(kind) for kind in kinds):
        return name in _OF_KEYS
    taken = _OF_BITS.get(name)
    if taken is None:
        return True
    integers = all(kind[0] in taken for kind in kinds)
    return integers and not any(kind.startswith("bf") for kind in kinds)


def linear(call: Call, name: str, x: ShType, dtype: str) -> ShType:
    """The type of a linear function of one operand."""
    if is_key(x.dtype_name):
        raise Unknown
    return call.typed(name, lambda ts: rules.linear_unary(name, ts[0], dtype), x)


def _elementwise(call: Call) -> ShType:
    row = OPS[call.name]
    names = [n for n in row.operands.split(", ") if n != "/"]
    values = [call.operand(n) for n in names]
    if row.linear:
        (x,) = arrays(values)
        return linear(call, row.attr, x, of_elementwise(row.attr, [x]))
    return nonlinear(call, row.attr, values)


TYPINGS.update({name: _elementwise for name, row in OPS.items() if row.operands})
PARAMETERS.update({name: tuple(row.signature.parameters) for name, row in OPS.items() if row.operands})


def _as_array(value: Operand, other: ShType) -> ShType:
    """A number as an array in the dtype that it takes beside another."""
    if isinstance(value, ShType):
        return value
    return constant(other.mesh, together([other, value]))


def _arithmetic(call: Call, name: str, minus: bool = False) -> ShType:
    """A sum or a difference."""
    values = [call.operand("x"), call.operand("y")]
    dtype = together(values)
    if minus and dtype == "bool":
        raise Unknown
    numbers = [v for v in values if isinstance(v, Number)]
    if numbers:
        (x,) = arrays(values)
        if State.UNREDUCED not in x.states or numbers[0].value == 0:
            return linear(call, name, x, dtype)
        if numbers[0].value is None:  # zero is added to each term, any other number once
            if linear(call, name, x, dtype) != (found := added(call, name, values, dtype)):
                raise Unknown
            return found
    return added(call, name, values, dtype)


def added(call: Call, name: str, values: Sequence[Operand], dtype: str = "") -> ShType:
    """The type of a sum or difference."""
    dtype = dtype or together(values)
    (first, *_) = arrays(values)
    types = [_as_array(v, first) for v in values]
    constants = held(types) | {i for i, v in enumerate(values) if isinstance(v, Number)}
    return call.typed(name, lambda ts: rules.additive(name, ts, dtype, constants), *types)


@op("add")
def _add(call: Call) -> ShType:
    return _arithmetic(call, "add")


@op("subtract", "sub")
def _subtract(call: Call) -> ShType:
    return _arithmetic(call, "sub", minus=True)


@op("complex")
def _complex(call: Call) -> ShType:
    x, y = call.array("x"), call.array("y")
    if {x.dtype_name, y.dtype_name} != {"f32"}:
        raise Unknown
    return added(call, "add", [x, product(call, [y, Number("complex")])])


@op("multiply", "mul")
def _multiply(call: Call) -> ShType:
    call.only("x", "y")
    return product(call, [call.operand("x"), call.operand("y")])


def product(call: Call, values: Sequence[Operand]) -> ShType:
    """The type of a product."""
    dtype, types = together(values), arrays(values)
    if len(types) == 1:
        return linear(call, "mul", types[0], dtype)
    constants = held(types)
    return call.typed("mul", lambda ts: rules.multilinear("mul", ts, dtype, constants), *types)


@op("divide")
def _divide(call: Call) -> ShType:
    x, y = call.operand("x"), call.operand("y")
    dtype = of_mean(together([x, y]))
    if isinstance(x, Number):
        return nonlinear(call, "div", [x, y], dtype)
    if isinstance(y, Number):
        return linear(call, "div", x, dtype)
    constants = held((x, y))
    return call.typed("div", lambda ts: rules.divide(ts[0], ts[1], dtype, constants), x, y)


@op("negative")
def _negative(call: Call) -> ShType:
    x = call.array("x", "a")
    if x.dtype_name == "bool":
        raise Unknown
    return linear(call, "neg", x, x.dtype_name)


@op("positive", "copy")
def _same(call: Call) -> ShType:
    return call.array("x", "a")


@op("astype")
def _astype(call: Call) -> ShType:
    dtype = dtype_of(call.static("dtype"))
    return cast(call, call.array("x"), dtype, bool(call.static("narrow", False)))


@op("convert_element_type")
def _convert_element_type(call: Call) -> ShType:
    return cast(call, call.array("operand"), dtype_of(call.static("new_dtype")))


def dtype_of(given: object) -> str:
    """The dtype that a name is of; of 64 bits it depends on JAX."""
    if not isinstance(given, str):
        raise Unknown
    name = short_name(given)
    if name in ("f64", "i64", "u64", "c128"):
        raise Unknown
    return name


def cast(call: Call, x: ShType, dtype: str, narrow: bool = False) -> ShType:
    """The type in another dtype."""
    if dtype == x.dtype_name:
        return x
    return call.typed("astype", lambda ts: rules.cast(ts[0], dtype, narrow=narrow), x)


@op("power")
def _power(call: Call) -> ShType:
    x, y = call.operand("x"), call.operand("y")
    if isinstance(y, Number) and isinstance(x, ShType):
        if y.value is None and State.UNREDUCED in x.states:
            raise Unknown
        if y.value == 1 and x.dtype_name != "bool":
            return product(call, [x, y])
    return nonlinear(call, "power", [x, y])


@op("integer_pow")
def _integer_pow(call: Call) -> ShType:
    x = call.array("x")
    if State.UNREDUCED in x.states or x.dtype_name == "bool":
        raise Unknown
    return nonlinear(call, "integer_pow", [x])


@op("nn.swiglu", "nn.geglu")
def _gated(call: Call) -> ShType:
    gate, value = call.array("gate"), call.array("value")
    if held((gate, value)):
        raise Unknown
    return product(call, [nonlinear(call, "silu" if call.name == "nn.swiglu" else "gelu", [gate]), value])


@op("clip")
def _clip(call: Call) -> ShType:
    bounds = [call.operand(n) for n in ("min", "max") if call.has(n) and not _is_none(call, n)]
    x = call.array("x", "arr")
    if not bounds:
        return x
    name = "clip" if len(bounds) == 2 else "minimum" if _is_none(call, "min") else "maximum"
    return nonlinear(call, name, [x, *bounds])


def _is_none(call: Call, name: str) -> bool:
    """Whether an argument is left out, or None."""
    if not call.has(name):
        return True
    try:
        return call.static(name) is None
    except Unknown:
        return False


@op("clamp")
def _clamp(call: Call) -> ShType:
    return nonlinear(call, "clip", [call.operand("min"), call.operand("x"), call.operand("max")])


@op("where", parameters="condition x y")
def _where(call: Call) -> ShType:
    condition = call.array("condition")
    if condition.dtype_name != "bool":
        condition = nonlinear(call, "not_equal", [condition], "bool")
    return chosen(call, condition, [call.operand("x"), call.operand("y")])


def chosen(call: Call, condition: ShType, branches: Sequence[Operand]) -> ShType:
    """The type of one of two branches, by a condition for each element."""
    dtype, types = together(branches) if arrays(branches) else "", arrays(branches)
    numbers = [b for b in branches if isinstance(b, Number)]
    if not types:
        found = max((n.kind for n in numbers), key=("bool", "int", "float", "complex").index)
        if {n.kind for n in numbers} != {found}:
            raise Unknown
        dtype = {"bool": "bool", "int": "i32", "float": "f32", "complex": "c64"}[found]
        return nonlinear(call, "where", [condition], dtype)
    if len(types) == 1:
        x = types[0]
        if State.UNREDUCED not in x.states or numbers[0].value == 0:
            both = (condition, x)
            constants = held(both)
            return call.typed("where", lambda ts: rules.multilinear("where", ts, dtype, constants), *both)
        if numbers[0].value is None:
            raise Unknown
        types = tuple(_as_array(b, x) for b in branches)
    every = (condition, *types)
    constants = held(every) | {i for i, b in enumerate(branches, 1) if isinstance(b, Number)}
    return call.typed("where", lambda ts: rules.select(ts[0], ts[1], ts[2], dtype, constants), *every)


@op("stop_gradient")
def _stop_gradient(call: Call) -> ShType:
    return call.array("x")


@op("optimization_barrier")
def _barrier(call: Call) -> ShType:
    x = call.array("operand")
    return x if is_key(x.dtype_name) else linear(call, "barrier", x, x.dtype_name)


@op("modf")
def _modf(call: Call) -> tuple[ShType, ...]:
    x = call.array("x")
    if not x.differentiable or x.dtype_name[0] == "c":
        raise Unknown
    whole = nonlinear(call, "trunc", [x])
    return added(call, "sub", [x, whole]), whole


@op("select_n")
def _select_n(call: Call) -> ShType:
    which, cases = call.array("which"), call.several("cases")
    if which.dtype_name != "bool" or len(cases) != 2:
        raise Unknown
    return chosen(call, which, cases[::-1])


@op("divmod")
def _divmod(call: Call) -> tuple[ShType, ...]:
    values = [call.operand("x1", "x"), call.operand("x2", "y")]
    return nonlinear(call, "floor_divide", values), nonlinear(call, "mod", values)


@op("tril", "triu")
def _triangle(call: Call) -> ShType:
    x = call.array("m")
    if x.ndim < 2:
        raise Unknown
    return linear(call, call.name, x, x.dtype_name)
