"""Contractions: einsum, matrix products and what is made of them. Pure."""

from __future__ import annotations

import string
from collections.abc import Sequence
from importlib import import_module  # what needs numpy, for few calls
from typing import Any

from shtypes import rules
from shtypes.editor.call import Call, Move, arrays, held
from shtypes.editor.dtypes import together
from shtypes.editor.ops.elementwise import added, dtype_of, linear, product
from shtypes.editor.ops.moves import finished
from shtypes.editor.ops.registry import op
from shtypes.editor.ops.shapes import expanded, moved_to, raveled, reshaped
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Unknown
from shtypes.errors import ShardingTypeError
from shtypes.rules.einsum import label_sizes, parse_equation
from shtypes.rules.labelled import ProductDims
from shtypes.rules.labelled import contraction as labelled_contraction
from shtypes.rules.moves import target_of
from shtypes.rules.overlap import Ring, overlap
from shtypes.rules.typing import Typing
from shtypes.types import ShType, State
from shtypes.types.dtypes import differentiable


def contraction(call: Call, equation: str, values: Sequence[ShType], constants: frozenset[int] | None = None) -> ShType:
    """The type of an einsum."""
    preferred = call.static("preferred_element_type", None)
    dtype = together(values) if preferred is None else dtype_of(preferred)
    if dtype == "bool" or (not differentiable(dtype) and any(t.differentiable for t in values)):
        raise Unknown
    explicit = rules.canonical_equation(equation, [t.ndim for t in values])
    fixed = held(values) if constants is None else constants
    if call.static("overlap", False) is not False:
        return _overlapped(call, explicit, values, dtype, fixed)
    if len(values) <= 2:
        return call.typed("einsum", lambda ts: rules.einsum(explicit, ts, dtype, fixed), *values)
    if any(stands_for_a_name(n) for t in values for n in t.shape):
        raise Unknown  # the order in which they are contracted depends on the sizes
    return _in_pairs(call, explicit, values, dtype, fixed)


def _overlapped(call: Call, equation: str, values: Sequence[ShType], dtype: str, constants: frozenset[int]) -> ShType:
    """The type of a contraction round a ring, before the reshard to what ``out`` asks for."""
    out, how = call.static("out", None), call.static("overlap")
    if not isinstance(out, str) or not (how is True or how == "bidirectional"):
        raise Unknown
    mesh, parsed = values[0].mesh, parse_equation(equation, tuple(t.ndim for t in values))
    sizes, states = label_sizes(parsed, values), dict.fromkeys(mesh.axis_names, State.REDUCED)
    target = target_of(ShType(mesh, dtype, [sizes[c] for c in parsed.output], states), out, {})
    rings: list[Ring] = []

    def rule(types: tuple[ShType, ...]) -> Typing:
        rings.append(overlap(equation, types, dtype, target, constants))
        return Typing(rings[-1].operands, (rings[-1].result,))

    try:
        found = call.typed("einsum", rule, *values)
    except ShardingTypeError:
        if not call.knows(mesh.axis_names):
            raise Unknown from None  # where an axis has one device there may be other rings
        raise
    call.moves.append(Move("einsum", rings[0].moved, rings[0].becomes))
    return found


def _in_pairs(call: Call, equation: str, values: Sequence[ShType], dtype: str, constants: frozenset[int]) -> ShType:
    """The type of a contraction of more than two, pair by pair along the path that multiplies least."""
    optimize = call.static("optimize", "auto")
    shapes = [t.shape for t in values]
    _, info = import_module("opt_einsum").contract_path(equation, *shapes, shapes=True, optimize=optimize)
    pending: list[tuple[ShType, bool]] = [(t, i in constants) for i, t in enumerate(values)]
    for positions, _, pair, *_ in info.contraction_list:
        taken = [pending.pop(i) for i in sorted(positions, reverse=True)]
        fixed = frozenset(i for i, (_, is_constant) in enumerate(taken) if is_constant)
        result = contract_pair(call, str(pair), [t for t, _ in taken], dtype, fixed)
        pending.append((result, len(fixed) == len(taken)))
    return pending[0][0]


def contract_pair(call: Call, equation: str, types: Sequence[ShType], dtype: str, constants: frozenset[int]) -> ShType:
    """The type of one contraction."""
    return call.typed("einsum", lambda ts: rules.einsum(equation, ts, dtype, constants), *types)


@op("einsum")
def _einsum(call: Call) -> ShType:
    equation = call.static("equation")
    values = arrays(call.several("operands"))
    if not isinstance(equation, str) or len(values) != len(call.given["operands"]):
        raise Unknown
    return finished(call, contraction(call, equation, values))


@op("matmul", "linalg.matmul")
def _matmul(call: Call) -> ShType:
    a, b = call.array("a", "x1"), call.array("b", "x2")
    n, m = a.ndim, b.ndim
    if 0 in (n, m):
        raise ShardingTypeError("`matmul` takes arrays of at least one dim", hints=["x * y"])
    dots = "..." if n > 2 or m > 2 else ""
    left, right = "k" if n == 1 else f"{dots}nk", "k" if m == 1 else f"{dots}km"
    result = f"{dots}{'n' * (n > 1)}{'m' * (m > 1)}"
    left, right = (p.replace("...", "") if len(p) == 1 else p for p in (left, right))
    return finished(call, contraction(call, f"{left},{right}->{result}", (a, b)))


def _tensordot(call: Call, a: ShType, b: ShType, first: Sequence[int], second: Sequence[int]) -> ShType:
    left, right = list(string.ascii_letters[: a.ndim]), list(string.ascii_letters[a.ndim : a.ndim + b.ndim])
    for i, j in zip(first, second, strict=True):
        right[j] = left[i]
    kept = [c for i, c in enumerate(left) if i not in first] + [c for j, c in enumerate(right) if j not in second]
    return finished(call, contraction(call, f"{''.join(left)},{''.join(right)}->{''.join(kept)}", (a, b)))


@op("dot", "inner")
def _dot(call: Call) -> ShType:
    a, b = call.operand("a"), call.operand("b")
    if not isinstance(a, ShType) or not isinstance(b, ShType):
        return product(call, [a, b])
    n, m = a.ndim, b.ndim
    if 0 in (n, m):
        return _tensordot(call, a, b, (), ())
    return _tensordot(call, a, b, (n - 1,), (m - 1 if call.name == "inner" else max(m - 2, 0),))


@op("tensordot", "linalg.tensordot")
def _tensordot_of(call: Call) -> ShType:
    a, b = call.array("a", "x1"), call.array("b", "x2")
    axes: Any = call.static("axes", 2)
    if isinstance(axes, int):
        first, second = tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    elif isinstance(axes, (tuple, list)) and len(axes) == 2:
        first, second = (tuple(x) if isinstance(x, (tuple, list)) else (x,) for x in axes)
    else:
        raise Unknown
    if len(first) != len(second) or any(not -a.ndim <= d < a.ndim for d in first):
        raise Unknown
    if any(not -b.ndim <= d < b.ndim for d in second):
        raise Unknown
    return _tensordot(call, a, b, [d % a.ndim for d in first], [d % b.ndim for d in second])


@op("outer", "linalg.outer")
def _outer(call: Call) -> ShType:
    a, b = raveled(call, call.array("a", "x1")), raveled(call, call.array("b", "x2"))
    return finished(call, contraction(call, "i,j->ij", (a, b)))


def _conjugated(call: Call, x: ShType) -> ShType:
    return linear(call, "conj", x, x.dtype_name)


@op("vdot")
def _vdot(call: Call) -> ShType:
    a, b = call.array("a"), call.array("b")
    if not a.differentiable or not b.differentiable:
        raise Unknown
    if a.shape == b.shape:
        labels = string.ascii_letters[: a.ndim]
        return finished(call, contraction(call, f"{labels},{labels}->", (_conjugated(call, a), b)))
    return finished(call, contraction(call, "i,i->", (_conjugated(call, raveled(call, a)), raveled(call, b))))


@op("vecdot", "linalg.vecdot", parameters="x1 x2 axis")
def _vecdot(call: Call) -> ShType:
    axis = call.static("axis", -1)
    a, b = (moved_to(call, call.array(n), axis, -1) for n in ("x1", "x2"))
    if not a.differentiable or not b.differentiable:
        raise Unknown
    return finished(call, contraction(call, "...i,...i->...", (_conjugated(call, a), b)))


@op("nn.linear")
def _linear(call: Call) -> ShType:
    x, w, count = call.array("x"), call.array("w"), call.static("dims", 1)
    call.only("x", "w", "b", "dims", "out")
    if type(count) is not int or not 0 < count <= min(x.ndim, w.ndim) or held((x, w)):
        raise Unknown
    y = _tensordot(call, x, w, tuple(range(x.ndim - count, x.ndim)), tuple(range(count)))
    return added(call, "add", [y, call.array("b")]) if call.given_as_value("b") else y


@op("matvec", parameters="x1 x2")
def _matvec(call: Call) -> ShType:
    return finished(call, contraction(call, "...ij,...j->...i", (call.array("x1"), call.array("x2"))))


@op("vecmat", parameters="x1 x2")
def _vecmat(call: Call) -> ShType:
    a, b = call.array("x1"), call.array("x2")
    if not a.differentiable or not b.differentiable:
        raise Unknown
    return finished(call, contraction(call, "...i,...ij->...j", (_conjugated(call, a), b)))


@op("kron")
def _kron(call: Call) -> ShType:
    a, b = call.array("a"), call.array("b")
    if held((a, b)):
        raise Unknown
    count = max(a.ndim, b.ndim)
    a, b = (expanded(call, t, tuple(range(count - t.ndim))) if t.ndim < count else t for t in (a, b))
    left, right = string.ascii_letters[:count], string.ascii_letters[count : 2 * count]
    pairs = "".join(i + j for i, j in zip(left, right, strict=True))
    y = contraction(call, f"{left},{right}->{pairs}", (a, b))
    return reshaped(call, y, [n * m for n, m in zip(a.shape, b.shape, strict=True)])


@op("cross", "linalg.cross")
def _cross(call: Call) -> ShType:
    a, b = call.array("a", "x1"), call.array("b", "x2")
    call.only("a", "b", "x1", "x2", "axis", "axisa", "axisb", "axisc")
    if held((a, b)) or not a.ndim or not b.ndim:
        raise Unknown
    axis = call.static("axis", None)
    first, second, last = (call.static(n, -1) if axis is None else axis for n in ("axisa", "axisb", "axisc"))
    a, b = moved_to(call, a, first, -1), moved_to(call, b, second, -1)
    if a.shape[-1] != 3 or a.shape != b.shape:
        raise Unknown
    names = tuple(("batch", d) for d in range(a.ndim - 1))
    labels = tuple((*names, ("component", i)) for i in range(2))
    result = tuple(zip((*names, ("made", 0)), a.shape, strict=True))
    plan = ProductDims(labels, result, frozenset({("component", 0), ("component", 1)}))
    dtype = together((a, b))
    y = call.typed("cross", lambda ts: labelled_contraction("cross", ts, plan, dtype), a, b)
    return moved_to(call, y, -1, last)
