"""The ops whose rules the meaning oracle judges, and the comparison of one with the other."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shtypes.errors import ShardingTypeError
from shtypes.rules import Typing, along_dims, elementwise, shape
from shtypes.rules.along_dims import ResultDims, unary_along
from shtypes.rules.einsum_like import einsum
from shtypes.types import Dim, ShType, State
from shtypes.types.mesh import Mesh
from tests.meaning import Answer, Array, Layout, Op, Site, answers, layouts

Rule = Callable[[tuple[ShType, ...]], Typing]


class Case(NamedTuple):
    """An op as the oracle knows it and the rule that types it.

    Attributes:
        op: The op.
        rule: Types it.
        dtypes: The operands' dtypes.
        letters: The states that each operand is tried in.
    """

    op: Op
    rule: Rule
    dtypes: tuple[str, ...]
    letters: tuple[str, ...]


def case(
    name: str,
    shapes: Sequence[tuple[int, ...]],
    apply: Callable[..., Array],
    rule: Rule,
    *,
    constants: frozenset[int] = frozenset(),
    predicate: bool = False,
    out_shape: tuple[int, ...] | None = None,
) -> Case:
    """A case from a function of arrays; the result's shape is computed unless it is asked for."""
    if out_shape is None:
        zeros = [np.zeros(s, np.int64) for s in shapes]
        out_shape = apply(zeros, Site((), tuple((0,) * len(s) for s in shapes))).shape
    op = Op(name, tuple(shapes), out_shape, apply, constants)
    dtypes = tuple("bool" if predicate and i == 0 else "f32" for i in range(len(shapes)))
    letters = tuple("SRV" if dtype == "bool" else "SRIUV" for dtype in dtypes)
    return Case(op, rule, dtypes, letters)


# between layouts and types


def to_type(layout: Layout, dtype: str) -> ShType:
    mesh = Mesh(zip("xyz", layout.mesh, strict=False))
    dims = [Dim(n, tuple("xyz"[a] for a in axes)) for n, axes in zip(layout.shape, layout.on, strict=True)]
    return ShType(mesh, dtype, dims, tuple(State(letter) for letter in layout.letters))


def to_layout(t: ShType) -> Layout:
    on = tuple(tuple("xyz".index(a) for a in dim.axes) for dim in t.dims)
    return Layout(t.mesh.axis_sizes, t.shape, on, "".join(s.value for s in t.states))


def _one_replicated(layout: Layout) -> Layout:
    """Without a gradient, R and I are one state."""
    return layout._replace(letters=layout.letters.replace("I", "R"))


def answered(case: Case, answer: Answer) -> Answer:
    """An answer in which what has no gradient has one replicated state."""
    op = case.op
    operands = tuple(_one_replicated(t) if i in op.constants else t for i, t in enumerate(answer.operands))
    gradient = len(op.constants) < len(operands)
    return Answer(operands, answer.result if gradient else _one_replicated(answer.result))


# the comparison


def combinations(case: Case, mesh: tuple[int, ...]) -> Iterator[tuple[Layout, ...]]:
    pairs = zip(case.op.shapes, case.letters, strict=True)
    return itertools.product(*(layouts(mesh, s, letters) for s, letters in pairs))


@functools.cache
def right_answers(case: Case, given: tuple[Layout, ...]) -> frozenset[Answer]:
    return frozenset(answered(case, a) for a in answers(case.op, given))


def typed(case: Case, given: tuple[Layout, ...]) -> Answer | None:
    """What the rule answers; None where it refuses, and then it names the axes at fault."""
    try:
        typing = case.rule(tuple(to_type(t, dtype) for t, dtype in zip(given, case.dtypes, strict=True)))
    except ShardingTypeError as error:
        if not error.axes:
            raise
        return None
    (result,) = typing.results
    return answered(case, Answer(tuple(map(to_layout, typing.operands)), to_layout(result)))


def problem(case: Case, given: tuple[Layout, ...]) -> str | None:
    """How the rule differs from the oracle for operands that lie like this."""
    right, got = right_answers(case, given), typed(case, given)
    if got in right or (got is None and not right):
        return None
    shown = ", ".join(map(str, given))
    told = "an error" if got is None else f"{', '.join(map(str, got.operands))} -> {got.result}"
    wanted = "; or ".join(f"{', '.join(map(str, a.operands))} -> {a.result}" for a in sorted(right)) or "an error"
    return f"{case.op.name} of {shown}: the rule says {told}, the meaning says {wanted}"


def problems(case: Case, mesh: tuple[int, ...]) -> list[str]:
    return [p for given in combinations(case, mesh) if (p := problem(case, given)) is not None]


# the ops


def _einsum_apply(equation: str) -> Callable[[Sequence[Array], Site], Array]:
    inputs = equation.split("->")[0].split(",")

    def own_diagonal(x: Array, labels: str, start: tuple[int, ...]) -> Array:
        """The part of ``x`` where both dims of a diagonal have the indices of the smaller one."""
        for label in {c for c in labels if labels.count(c) == 2}:
            d, e = (i for i, c in enumerate(labels) if c == label)
            if x.shape[d] > x.shape[e]:
                d, e = e, d
            x = x.take(range(start[d], start[d] + x.shape[d]), axis=e)
        return x

    def apply(operands: Sequence[Array], site: Site) -> Array:
        parts = [own_diagonal(x, part, at) for x, part, at in zip(operands, inputs, site.starts, strict=True)]
        return np.asarray(np.einsum(equation, *parts))

    return apply


def einsum_case(equation: str, *shapes: tuple[int, ...], constants: frozenset[int] = frozenset()) -> Case:
    def rule(operands: tuple[ShType, ...]) -> Typing:
        return einsum(equation, operands, "f32", constants)

    return case(f"{equation} {shapes} {set(constants)}", shapes, _einsum_apply(equation), rule, constants=constants)


def _elementwise(
    name: str,
    shapes: Sequence[tuple[int, ...]],
    f: Callable[..., Array],
    rule: Callable[..., Typing],
    constants: frozenset[int] = frozenset(),
    dtype: str = "f32",
) -> Case:
    def apply(operands: Sequence[Array], site: Site) -> Array:
        return np.asarray(f(*operands))

    def typing(operands: tuple[ShType, ...]) -> Typing:
        return rule(name, operands, dtype, constants)

    gradient_free = frozenset(range(len(shapes))) if dtype == "bool" else constants
    return case(f"{name} {shapes} {set(constants)}", shapes, apply, typing, constants=gradient_free)


def _divide(name: str, operands: tuple[ShType, ...], dtype: str, constants: frozenset[int]) -> Typing:
    numerator, denominator = operands
    return elementwise.divide(numerator, denominator, dtype, constants, name)


def _select_case(*shapes: tuple[int, ...], constants: frozenset[int] = frozenset()) -> Case:
    return case(
        f"where {shapes} {set(constants)}",
        shapes,
        lambda operands, site: operands[0] * operands[1] + (1 - operands[0]) * operands[2],
        lambda types: elementwise.select_n("where", types, "f32", constants),
        constants=constants | {0},
        predicate=True,
    )


def _one_of_three(*shapes: tuple[int, ...]) -> Case:
    """``p`` a + (1 - ``p``) b + ``p`` (1 - ``p``) c: a choice among more than two branches."""

    def apply(operands: Sequence[Array], site: Site) -> Array:
        p, a, b, c = operands
        return np.asarray(p * a + (1 - p) * b + p * (1 - p) * c)

    return case(
        f"one of three {shapes}",
        shapes,
        apply,
        lambda types: elementwise.select_n("select_n", types, "f32"),
        constants=frozenset({0}),
        predicate=True,
    )


def _unary(name: str, given: tuple[int, ...], f: Callable[[Array], Array], rule: Callable[[ShType], Typing]) -> Case:
    return case(
        f"{name} {given}", [given], lambda operands, site: np.asarray(f(operands[0])), lambda types: rule(types[0])
    )


def reshape_case(old: tuple[int, ...], new: tuple[int, ...]) -> Case:
    return case(
        f"reshape {old} {new}",
        [old],
        lambda operands, site: operands[0].reshape(site.out_shape),
        lambda types: shape.reshape(types[0], new),
        out_shape=new,
    )


def _broadcast_case(old: tuple[int, ...], new: tuple[int, ...], dims: tuple[int, ...]) -> Case:
    def apply(operands: Sequence[Array], site: Site) -> Array:
        (x,) = operands
        aligned = [x.shape[dims.index(d)] if d in dims else 1 for d in range(len(new))]
        return np.broadcast_to(x.reshape(aligned), site.out_shape)

    return case(
        f"broadcast {old} {new}", [old], apply, lambda types: shape.broadcast(types[0], new, dims), out_shape=new
    )


CONSTANT_1: frozenset[int] = frozenset({1})


def einsum_cases(n: int) -> list[Case]:
    m = 2 * n if n == 2 else n
    return [
        einsum_case("ij,jk->ik", (m, m), (m, n)),
        einsum_case("ij,jk->ik", (m, 1), (m, m)),
        einsum_case("ij,jk->ik", (n, n), (n, n), constants=CONSTANT_1),
        einsum_case("bij,bjk->bik", (n, n, n), (n, n, n)),
        einsum_case("i,j->ij", (m,), (m,)),
        einsum_case("i,i->i", (m,), (m,)),
        einsum_case("ij,ij->", (n, m), (n, m)),
        einsum_case("i,ij,j->", (n,), (n, n), (n,)),
        einsum_case("i,i,->", (m,), (m,), ()),
        einsum_case("ii->", (m, m)),
        einsum_case("ii->i", (m, m)),
        einsum_case("ii,i->i", (n, n), (n,)),
        einsum_case("iij,j->i", (n, n, n), (n,)),
        einsum_case("ij->ji", (m, m)),
        einsum_case("bij->bj", (n, n, n)),
    ]


def _binary_cases(pair: Sequence[tuple[int, ...]]) -> list[Case]:
    return [
        _elementwise("mul", pair, np.multiply, elementwise.multilinear),
        _elementwise("add", pair, np.add, elementwise.additive),
        _elementwise("sub", pair, np.subtract, elementwise.additive),
        _elementwise("divide", pair, lambda a, b: a * b * b, _divide),
        _elementwise("pow", pair, lambda a, b: a * a * b * b + b, elementwise.nonlinear),
        _elementwise("mul", pair, np.multiply, elementwise.multilinear, CONSTANT_1),
        _elementwise("add", pair, np.add, elementwise.additive, CONSTANT_1),
        _elementwise("less", pair, lambda a, b: a * a + b * b * a, elementwise.nonlinear, dtype="bool"),
    ]


def elementwise_cases(n: int) -> list[Case]:
    m = 2 * n if n == 2 else n
    full, row, column = (m, n), (n,), (m, 1)
    return [
        *(case for pair in ([full, full], [full, row], [column, full], [full, ()]) for case in _binary_cases(pair)),
        _elementwise("mul3", [row, row, row], lambda a, b, c: a * b * c, elementwise.multilinear),
        _elementwise("add3", [row, row, row], lambda a, b, c: a + b + c, elementwise.additive),
        _elementwise("clamp", [row, row, ()], lambda a, b, c: a * a * b + c * c, elementwise.nonlinear),
        _select_case(row, row, row),
        _select_case(row, (), row),
        _select_case((), row, row),
        _select_case(row, row, (), constants=frozenset({2})),
        _one_of_three(row, row, (), row),
        _unary("silu", full, np.square, lambda t: elementwise.nonlinear("silu", (t,), "f32")),
        _unary("neg", full, np.negative, lambda t: elementwise.linear_unary("neg", t, "f32")),
        _unary("widen", full, lambda x: x, lambda t: elementwise.cast(t, "f64")),
    ]


def _normalise(x: Array) -> Array:
    return np.asarray(x.sum(1, keepdims=True) * x)


def reduce_cases(n: int) -> list[Case]:
    m = 2 * n if n == 2 else n
    return [
        _unary("sum 0", (m, n), lambda x: x.sum(0), lambda t: along_dims.reduce_sum("sum", t, 0, False, "f32")),
        _unary(
            "sum 1",
            (m, n),
            lambda x: x.sum(1, keepdims=True),
            lambda t: along_dims.reduce_sum("sum", t, -1, True, "f32"),
        ),
        _unary("sum all", (m, n), lambda x: x.sum(), lambda t: along_dims.reduce_sum("sum", t, None, False, "f32")),
        _unary(
            "max 0", (m, n), lambda x: x.sum(0) ** 2, lambda t: along_dims.reduce_nonlinear("max", t, 0, False, "f32")
        ),
        _unary("flip 0", (m, n), lambda x: x[::-1], lambda t: same_shape("flip", t, 0, linear=True)),
        _unary("cumsum 1", (n, m), lambda x: x.cumsum(1), lambda t: same_shape("cumsum", t, 1, linear=True)),
        _unary("softmax 1", (n, m), _normalise, lambda t: same_shape("softmax", t, 1, linear=False)),
    ]


def same_shape(name: str, operand: ShType, dim: int, *, linear: bool) -> Typing:
    """An op that acts along a dim and keeps the shape."""
    result = ResultDims("f32", tuple((n, d) for d, n in enumerate(operand.shape)))
    return unary_along(name, operand, (dim,), [result], linear)


def shape_cases(n: int) -> list[Case]:
    m = 2 * n if n == 2 else n
    return [
        _unary("transpose", (m, n), np.transpose, shape.transpose),
        _unary("transpose 3", (n, 1, m), lambda x: x.transpose(2, 0, 1), lambda t: shape.transpose(t, (2, 0, 1))),
        _unary("squeeze", (m, 1, n), lambda x: x[:, 0], shape.squeeze),
        _broadcast_case((n,), (m, n), (1,)),
        _broadcast_case((m, 1), (m, n), (0, 1)),
        _broadcast_case((), (n,), ()),
    ]


_RESHAPES = {
    2: [((4,), (2, 2)), ((2, 2), (4,)), ((4, 3), (2, 2, 3)), ((4, 3), (12,)), ((6, 2), (2, 6)), ((3, 4), (12,)),
        ((2, 4), (2, 1, 4)), ((1, 4, 2), (8,)), ((8,), (2, 2, 2)), ((2, 1, 3, 2), (6, 2)), ((6,), (3, 2)), ((4,), (4,)),
        ((2, 3), (3, 2))],
    3: [((6,), (3, 2)), ((6,), (2, 3)), ((3, 2), (6,)), ((2, 3), (6,)), ((3, 4), (3, 2, 2)), ((9,), (3, 3)),
        ((12,), (3, 4))],
}  # fmt: skip


def reshape_cases(n: int) -> list[Case]:
    return [reshape_case(old, new) for old, new in _RESHAPES[n]]


@functools.cache
def all_cases(n: int) -> tuple[Case, ...]:
    """Every case whose dims an axis of size ``n`` divides."""
    return (*einsum_cases(n), *elementwise_cases(n), *reduce_cases(n), *shape_cases(n), *reshape_cases(n))
