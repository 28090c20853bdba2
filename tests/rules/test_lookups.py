"""The rules of slices, lookups and changes at positions against the meaning oracle."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules import Typing
from shtypes.rules.lookups import (
    DimensionNumbers,
    Slice,
    dynamic_update_slice,
    gather,
    one_hot,
    scatter,
    segment_sum,
    slices,
    sort,
)
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.policy import policy
from tests.meaning import Array, Op, Site, sound_results
from tests.rules.cases import Case, combinations, right_answers, typed

COUNT = 4
#: Positions are sampled by a table from the oracle's numbers; by several, since some positions lie well by chance.
SAMPLED = np.random.default_rng(0).integers(0, COUNT, (5, 1024))

Cases = tuple[Case, ...]


def positions_case(
    name: str, shapes: Sequence[tuple[int, ...]], dtypes: str, apply: Callable[..., Array], rule: Callable[..., Typing]
) -> Cases:
    """Cases whose operands are floats (``f``) or positions (``i``), which have no gradient; one for each table."""

    def with_positions(operands: Sequence[Array], site: Site, table: Array) -> Array:
        return apply([table[x % 1024] if d == "i" else x for x, d in zip(operands, dtypes, strict=True)], site)

    site = Site((), tuple((0,) * len(s) for s in shapes))
    out = with_positions([np.zeros(s, np.int64) for s in shapes], site, SAMPLED[0]).shape
    fixed = frozenset(i for i, d in enumerate(dtypes) if d == "i")
    words = tuple("f32" if d == "f" else "i32" for d in dtypes)
    letters = tuple("SRIUV" if d == "f" else "SRUV" for d in dtypes)
    ops = [
        Op(f"{name} {i}", tuple(shapes), out, functools.partial(with_positions, table=table), fixed)
        for i, table in enumerate(SAMPLED if fixed else SAMPLED[:1])
    ]
    return tuple(Case(op, rule, words, letters) for op in ops)


def rows_here(ids: Array, x: Array, start: int) -> tuple[Array, Array]:
    """Positions as rows of a device's own part, and whether it has them."""
    rows = ids - start
    return rows.clip(0, x.shape[0] - 1), (rows >= 0) & (rows < x.shape[0])


def problems(cases: Cases, mesh: tuple[int, ...]) -> list[str]:
    """Combinations in which the rule differs from the oracle.

    The oracle casts an operand only to a state that another one has. An array that takes sharded additions becomes a
    pending sum, which none has: there the rule's own answer must be sound.
    """
    found = []
    for given in combinations(cases[0], mesh):
        right = frozenset.intersection(*[right_answers(case, given) for case in cases])
        got = typed(cases[0], given)
        if got in right or (got is None and not right):
            continue
        if got is not None and not right and all(got.result in sound_results(c.op, got.operands) for c in cases):
            continue
        found.append(f"{cases[0].op.name} of {', '.join(map(str, given))}: {got}, and by meaning {sorted(right)}")
    return found


ROWS = DimensionNumbers((1,), (0,), (0,))  # whole rows, at positions with one component
BATCH = DimensionNumbers((), (1,), (1,), (0,), (0,))  # an element of each row
PAIRS = DimensionNumbers((1,), (), (0,))  # two rows in a run; here always from the first one on
ONE = DimensionNumbers((), (0,), (0,))  # elements, at positions with one component


def _rows(operands: Sequence[Array], site: Site) -> Array:
    x, ids = operands
    rows, here = rows_here(ids[:, 0], x, site.starts[0][0])
    return np.asarray(x[rows] * here[:, None])


def _elements(operands: Sequence[Array], site: Site) -> Array:
    x, ids = operands
    columns, here = rows_here(ids[:, 0], x.T, site.starts[0][1])
    return np.asarray(x[np.arange(len(x)), columns[: len(x)]] * here[: len(x)]) if len(ids) == len(x) else x[:, :0]


def _add_rows(operands: Sequence[Array], site: Site) -> Array:
    x, ids, updates = operands
    rows, here = rows_here(ids[:, 0], x, site.starts[0][0])
    out = x.copy()
    np.add.at(out, rows, updates * here[:, None])
    return out


def _add_elements(operands: Sequence[Array], site: Site) -> Array:
    x, ids, updates = operands
    columns, here = rows_here(ids[:, 0], x.T, site.starts[0][1])
    out = x.copy()
    np.add.at(out, (np.arange(len(x)), columns), updates * here)
    return out


def _one(operands: Sequence[Array], site: Site) -> Array:
    x, ids = operands
    rows, here = rows_here(ids[:, 0], x, site.starts[0][0])
    return np.asarray(x[rows] * here)


def _segments(operands: Sequence[Array], site: Site) -> Array:
    rows, ids = operands
    out = np.zeros((4, *rows.shape[ids.ndim :]), np.int64)
    np.add.at(out, ids, rows)
    return out


def _in_order(operands: Sequence[Array], site: Site) -> Array:
    keys, x = operands
    rows, here = rows_here(np.argsort(keys, 0, kind="stable"), x, site.starts[1][0])
    return np.asarray(np.take_along_axis(x, rows, 0) * here)


def _values(types: tuple[ShType, ...]) -> Typing:
    """What goes with the keys."""
    typing = sort("sort", types, 0, 1)
    return typing._replace(results=typing.results[1:])


def _at(position: int) -> Callable[[Sequence[Array], Site], Array]:
    def apply(operands: Sequence[Array], site: Site) -> Array:
        rows, here = rows_here(np.asarray(position), operands[0], site.starts[0][0])
        return np.asarray(operands[0][rows][None] * here)

    return apply


def _replaced(operands: Sequence[Array], site: Site) -> Array:
    """The own rows of ``x``, of which two are replaced."""
    x, update, start = operands
    if len(update) != 2:
        raise ValueError
    rows = np.arange(len(x)) + site.starts[0][0] - min(int(start), 2)
    inside = (rows >= 0) & (rows < 2)
    return np.asarray(x * ~inside[:, None] + update[rows.clip(0, 1)] * inside[:, None])


def _scatter_case(how: str, change: Callable[[Array, Array], Array], ids: tuple[int, ...]) -> Cases:
    def apply(operands: Sequence[Array], site: Site) -> Array:
        x, positions, updates = operands
        out = x.copy()
        rows, here = rows_here(positions[..., 0], x, site.starts[0][0])
        for i in np.ndindex(rows.shape):
            if here[i]:
                out[rows[i]] = change(out[rows[i]], updates[i])
        return out

    numbers = DimensionNumbers((len(ids),), (0,), (0,))
    return positions_case(
        f"scatter {how} {ids}",
        [(COUNT, 2), (*ids, 1), (*ids, 2)],
        "fif",
        apply,
        lambda types: scatter(f"scatter_{how}", how, types, numbers, (1, 2)),
    )


def _slice_case(name: str, shape: tuple[int, ...], spans: tuple[Slice, ...], apply: Callable[..., Array]) -> Cases:
    return positions_case(name, [shape], "f", apply, lambda types: slices("slice", types, spans))


CASES = [
    _slice_case("part", (4, 4), (Slice(1, 2), Slice(0, 4)), lambda xs, site: xs[0][1:3]),
    _slice_case("every second", (4, 2), (Slice(0, 2, 2), Slice(0, 2)), lambda xs, site: xs[0][::2]),
    _slice_case("position", (4, 2), (Slice(1, 1), Slice(0, 2)), _at(1)),
    positions_case(
        "dynamic slice", [(4, 2), ()], "fi",
        lambda xs, site: xs[0].repeat(2, axis=0)[xs[1] : xs[1] + 2],
        lambda types: slices("dynamic_slice", types, (Slice(0, 2, 0), Slice(0, 2))),
    ),
    positions_case(
        "dynamic update", [(4, 2), (2, 2), ()], "ffi", _replaced,
        lambda types: dynamic_update_slice("dynamic_update_slice", types),
    ),
    positions_case("rows", [(4, 2), (8, 1)], "fi", _rows, lambda types: gather("gather", types, ROWS, (1, 2))),
    positions_case("elements", [(2, 4), (2, 1)], "fi", _elements, lambda types: gather("gather", types, BATCH, (1, 1))),
    positions_case(
        "add rows", [(4, 2), (8, 1), (8, 2)], "fif", _add_rows,
        lambda types: scatter("scatter_add", "add", types, ROWS, (1, 2)),
    ),
    positions_case(
        "add elements", [(2, 4), (2, 1), (2,)], "fif", _add_elements,
        lambda types: scatter("scatter_add", "add", types, BATCH, (1, 1)),
    ),
    _scatter_case("subtract", lambda x, u: x - u, (4, 2)),
    _scatter_case("set", lambda x, u: u, (2,)),
    _scatter_case("set", lambda x, u: u, ()),
    _scatter_case("multiply", lambda x, u: x * u, (2,)),
    _scatter_case("max", lambda x, u: x * x + u * u + x * u, ()),
    positions_case("sort", [(4, 4), (4, 4)], "if", _in_order, _values),
    positions_case("segment sum", [(8, 2), (8,)], "fi", _segments, lambda types: segment_sum("s", types, 4, ())),
]  # fmt: skip


@pytest.mark.one_in(13)
@pytest.mark.parametrize("cases", CASES, ids=lambda cases: cases[0].op.name)
def test_lookups_are_what_the_meanings_say(cases: Cases) -> None:
    assert problems(cases, (2,)) == []


@pytest.mark.parametrize("cases", [CASES[2], CASES[5]], ids=lambda cases: cases[0].op.name)
def test_lookups_are_what_the_meanings_say_under_the_other_policy(cases: Cases) -> None:
    with policy("jax"):
        assert problems(cases, (2,)) == []


@pytest.mark.nightly
def test_lookups_are_what_the_meanings_say_on_two_by_two_devices() -> None:
    numbers = DimensionNumbers((), (0,), (0,))
    shapes = [(4,), (4, 1)]
    assert (
        problems(positions_case("one", shapes, "fi", _one, lambda types: gather("g", types, numbers, (1,))), (2, 2))
        == []
    )


MESH = Mesh({"x": 2, "y": 4})


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


@pytest.mark.parametrize(
    ("typing", "out"),
    [
        (lambda: gather("g", (t("f32[8@x,h=4]"), t("i32[n=8@y,1]")), ROWS, (1, 4)), "f32[n=8@y,h=4]{U:x}"),
        (lambda: gather("g", (t("f32[8,h=4@x]{I:y}"), t("i32[8,1]")), ROWS, (1, 4)), "f32[8,h=4@x]{I:y}"),
        (lambda: gather("g", (t("f32[b=8@x,4@y]"), t("i32[8,1]")), BATCH, (1, 1)), "f32[b=8@x]{U:y}"),
        (lambda: scatter("s", "add", (t("f32[8,h=4]"), t("i32[8@x,1]"), t("f32[8@x,4]")), ROWS, (1, 4)),
         "f32[8,h=4]{U:x}"),
        (lambda: scatter("s", "set", (t("f32[8@x,4]"), t("i32[2,1]"), t("f32[2,4]")), ROWS, (1, 4)), "f32[8@x,4]"),
        (lambda: scatter("s", "max", (t("f32[8@x,4]"), t("i32[8@x,1]"), t("f32[8]")), BATCH, (1, 1)), "f32[8@x,4]"),
        (lambda: slices("slice", (t("f32[16@y,h=8@x]"),), (Slice(3, 1), Slice(0, 8))), "f32[1,h=8@x]{U:y}"),
        (lambda: slices("slice", (t("f32[n=16@y,8]"),), (Slice(0, 8, 2), Slice(1, 2))), "f32[8@y,2]"),
        (lambda: scatter("s", "add", (t("f32[8]{I:x}"), t("i32[4,1]"), t("f32[4]{U:x}")), ONE, (1,)), "f32[8]{U:x}"),
        (lambda: one_hot("one_hot", t("i32[b=4@x]"), 8, 1, "f32", ("y",)), "f32[b=4@x,8@y]"),
        (lambda: one_hot("one_hot", t("i32[b=4]{V:x}"), 8, 0, "i32", ()), "i32[8,b=4]{V:x}"),
        (lambda: segment_sum("s", (t("f32[8,h=4]{I:y}"), t("i32[8]")), 8, ("y",)), "f32[8@y,h=4]"),
        (lambda: segment_sum("s", (t("f32[8@x,h=4]"), t("i32[8@x]")), 8, ("y",)), "f32[8@y,h=4]{U:x}"),
        (lambda: _values((t("i32[b=4,8@x]"), t("f32[4,v=8]"))), "f32[b=4,v=8@x]"),
        (lambda: _values((t("i32[b=4,8]"), t("f32[4@y,v=8]"))), "f32[b=4,v=8]{U:y}"),
        (lambda: _values((t("i32[4,8]"), t("f32[b=4,v=8]{U:x}"))), "f32[b=4,v=8]{U:x}"),
    ],
)  # fmt: skip
def test_results_have_the_axes_and_names_of_their_dims(typing: Callable[[], Typing], out: str) -> None:
    (result,) = typing().results
    assert (result, result.names) == (t(out), t(out).names)


@pytest.mark.parametrize(
    ("typing", "what"),
    [
        (lambda: gather("g", (t("f32[8@x,4]"), t("i32[8,1]")), PAIRS, (2, 4)), "`g` acts along dim 0"),
        (lambda: gather("g", (t("f32[8,4]"), t("i32[8,2@x]")), PAIRS, (1, 4)), "`g` acts along dim 1"),
        (lambda: gather("g", (t("f32[8,4@x]"), t("i32[8,1]")), ROWS, (1, 2)), "`g` acts along dim 1"),
        (lambda: gather("g", (t("f32[8@x,4]"), t("i32[8@x,1]")), ROWS, (1, 4)), "`g` meets two different dims"),
        (lambda: gather("g", (t("bool[8@x,4]"), t("i32[8,1]")), ROWS, (1, 4)), "`g` looks up a dim of a `bool` array"),
        (lambda: scatter("s", "set", (t("f32[8,4]"), t("i32[8@x,1]"), t("f32[8,4]")), ROWS, (1, 4)),
         "`s` has positions that are sharded"),
        (lambda: slices("slice", (t("bool[16@y]"),), (Slice(3, 1),)), "`slice` looks up a dim of a `bool` array"),
        (lambda: slices("slice", (t("f32[16@y]"),), (Slice(3, 2),)), "`slice` acts along dim 0"),
        (lambda: scatter("s", "max", (t("f32[16]{U:y}"), t("i32[4,1]"), t("f32[4]")), ONE, (1,)),
         "`s` is nonlinear in operand 0"),
        (lambda: scatter("s", "multiply", (t("f32[16]"), t("i32[4,1]"), t("f32[4]{U:y}")), ONE, (1,)),
         "`s` is nonlinear in operand 2"),
        (lambda: scatter("s", "add", (t("f32[16]"), t("i32[4,1]{U:y}"), t("f32[4]")), ONE, (1,)),
         "`s` is nonlinear in operand 1"),
        (lambda: one_hot("one_hot", t("i32[4]{U:x}"), 8, 1, "f32", ()), "`one_hot` is nonlinear in the operand"),
        (lambda: one_hot("one_hot", t("i32[4@x]"), 8, 1, "f32", ("x",)), "`one_hot` cannot shard the classes"),
        (lambda: segment_sum("segment_sum", (t("f32[8]{U:y}"), t("i32[8]")), 8, ("y",)), "`segment_sum` cannot shard"),
        (lambda: sort("sort", (t("f32[8@x]"), t("f32[8]")), 0, 1), "`sort` acts along dim 0"),
        (lambda: sort("sort", (t("f32[8]{U:x}"), t("f32[8]")), 0, 1), "`sort` is nonlinear in"),
        (lambda: sort("sort", (t("f32[8]"), t("bool[8@x]")), 0, 1), "`sort` looks up a dim of a `bool` array"),
    ],
)  # fmt: skip
def test_what_one_device_cannot_find_alone_is_refused(typing: Callable[[], Typing], what: str) -> None:
    with pytest.raises(ShardingTypeError) as info:
        typing()
    assert info.value.what.startswith(what)


def test_a_gradient_of_which_each_device_has_some_makes_the_rows_reduced() -> None:
    typing = segment_sum("segment_sum", (t("f32[8]{I:y}"), t("i32[8]")), 8, ("y",))
    assert typing.operands == (t("f32[8]{R:y}"), t("i32[8]"))


def test_what_goes_with_the_keys_is_typed_by_itself() -> None:
    """One value may be a pending sum where another is whole; both meet the keys."""
    keys, pending, whole = t("i32[8,4]"), t("f32[8,4]{U:x}"), t("f32[8,4]")
    assert sort("sort", (keys, pending, whole), 0, 1).results == (keys, pending, whole)
