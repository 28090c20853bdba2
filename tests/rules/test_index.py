"""The rules of indexing against the meaning oracle."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules import Typing
from shtypes.rules.index import (
    IndexEntry,
    New,
    Position,
    Slice,
    dynamic_slice,
    dynamic_update_slice,
    index,
    moved,
    update,
)
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.policy import policy
from tests.meaning import Array, Op, Site, sound_results
from tests.rules.cases import Case, combinations, right_answers, typed

ROWS = 4
#: Positions are sampled by a table from the oracle's numbers; by several, since some positions lie well by chance.
SAMPLED = np.random.default_rng(0).integers(0, ROWS, (5, 1024))

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


def _lookup(operands: Sequence[Array], site: Site) -> Array:
    x, ids = operands
    rows, here = rows_here(ids, x, site.starts[0][0])
    return np.asarray(x[rows] * here.reshape(here.shape + (1,) * (x.ndim - 1)))


def _at(position: int) -> Callable[[Sequence[Array], Site], Array]:
    def apply(operands: Sequence[Array], site: Site) -> Array:
        rows, here = rows_here(np.asarray(position), operands[0], site.starts[0][0])
        return np.asarray(operands[0][rows] * here)

    return apply


def _index_case(
    name: str, shape: tuple[int, ...], entries: tuple[IndexEntry, ...], apply: Callable[..., Array]
) -> Cases:
    return positions_case(name, [shape], "f", apply, lambda types: index("index", types, entries))


def _lookup_case(shape: tuple[int, ...], ids: tuple[int, ...]) -> Cases:
    entries: tuple[IndexEntry, ...] = (Position(operand=0), *(Slice(0, n) for n in shape[1:]))
    name = f"lookup {shape} {ids}"
    return positions_case(name, [shape, ids], "fi", _lookup, lambda types: index("index", types, entries))


def _scatter_case(how: str, change: Callable[[Array, Array], Array], ids: tuple[int, ...]) -> Cases:
    entries = (Position(operand=0), Slice(0, 2))

    def apply(operands: Sequence[Array], site: Site) -> Array:
        x, positions, updates = operands
        out = x.copy()
        rows, here = rows_here(positions, x, site.starts[0][0])
        for i in np.ndindex(positions.shape):
            if here[i]:
                out[rows[i]] = change(out[rows[i]], updates[i])
        return out

    def rule(types: tuple[ShType, ...]) -> Typing:
        return update(f"at_{how}", how, types, entries)

    return positions_case(f"at_{how} {ids}", [(ROWS, 2), ids, (*ids, 2)], "fif", apply, rule)


CASES = [
    _index_case("part", (4, 4), (Slice(1, 2), Slice(0, 4)), lambda xs, site: xs[0][1:3]),
    _index_case("every second", (4, 2), (Slice(0, 2, 2), Slice(0, 2)), lambda xs, site: xs[0][::2]),
    _index_case("reversed", (4, 2), (Slice(3, 4, -1), Slice(0, 2)), lambda xs, site: xs[0][::-1]),
    _index_case("new dim", (4, 2), (Slice(0, 4), New(), Slice(0, 2)), lambda xs, site: xs[0][:, None]),
    _index_case("position", (4, 2), (Position(1), Slice(0, 2)), _at(1)),
    _lookup_case((4, 2), (2,)),
    _lookup_case((4,), (2, 2)),
    _lookup_case((4, 2), ()),
    _scatter_case("add", lambda x, u: x + u, (8,)),
    _scatter_case("subtract", lambda x, u: x - u, (4, 2)),
    _scatter_case("set", lambda x, u: u, (2,)),
    _scatter_case("set", lambda x, u: u, ()),
    _scatter_case("multiply", lambda x, u: x * u, (2,)),
    _scatter_case("divide", lambda x, u: x * (u * u + 1), ()),
    _scatter_case("max", lambda x, u: x * x + u * u + x * u, ()),
    _scatter_case("power", lambda x, u: x * x + u * u, ()),
    positions_case(
        "dynamic slice", [(4, 2), ()], "fi",
        lambda xs, site: xs[0].repeat(2, axis=0)[xs[1] : xs[1] + 2],
        lambda types: dynamic_slice("dynamic_slice", types, (2, 2)),
    ),
    positions_case(
        "roll", [(4, 2), ()], "fi",
        lambda xs, site: np.roll(xs[0], int(xs[1]), 0),
        lambda types: moved("roll", types, (0,), (4, 2)),
    ),
    positions_case(
        "repeat", [(4, 2), (4,)], "fi",
        lambda xs, site: xs[0].repeat(xs[1] + 1, axis=0)[:4],
        lambda types: moved("repeat", types, (0,), (4, 2)),
    ),
]  # fmt: skip


def _update(operands: Sequence[Array], site: Site) -> Array:
    x, start, update = operands
    return _replaced(x, update, site.starts[0][0] - min(int(start), 2))


def _replaced(x: Array, update: Array, away: int) -> Array:
    """The own rows of ``x``, of which the first is so far from the start of two that are replaced."""
    if len(update) != 2:
        raise ValueError
    rows = np.arange(len(x)) + away
    inside = (rows >= 0) & (rows < 2)
    return np.asarray(x * ~inside[:, None] + update[rows.clip(0, 1)] * inside[:, None])


def _set_part(operands: Sequence[Array], site: Site) -> Array:
    x, update = operands
    return _replaced(x, update, site.starts[0][0] - 1)


CASES.append(
    positions_case(
        "at_set part",
        [(4, 2), (2, 2)],
        "ff",
        _set_part,
        lambda types: update("at_set", "set", types, (Slice(1, 2), Slice(0, 2))),
    )
)


CASES.append(
    positions_case(
        "dynamic update",
        [(4, 2), (), (2, 2)],
        "fif",
        _update,
        lambda types: dynamic_update_slice("dynamic_update_slice", types),
    )
)


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


@pytest.mark.one_in(7)
@pytest.mark.parametrize("cases", CASES, ids=lambda cases: cases[0].op.name)
def test_indexing_is_what_the_meanings_say(cases: Cases) -> None:
    assert problems(cases, (2,)) == []


@pytest.mark.parametrize("cases", [CASES[4], CASES[7]], ids=lambda cases: cases[0].op.name)
def test_indexing_is_what_the_meanings_say_under_the_other_policy(cases: Cases) -> None:
    with policy("jax"):
        assert problems(cases, (2,)) == []


@pytest.mark.nightly
def test_lookups_are_what_the_meanings_say_on_two_by_two_devices() -> None:
    assert problems(_lookup_case((4,), (4,)), (2, 2)) == []


MESH = Mesh({"x": 2, "y": 4})


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


@pytest.mark.parametrize(
    ("x", "ids", "entries", "out"),
    [
        ("f32[vocab=16@y,h=8]", "i32[b=8@x,s=4]", (Position(operand=0), Slice(0, 8)), "f32[b=8@x,s=4,h=8]{U:y}"),
        ("f32[a=16,h=8@y]", "i32[4]", (Slice(0, 16), Position(operand=0)), "f32[a=16,4]{U:y}"),
        (
            "f32[3,a=8@x,5,c=4]",
            "i32[b=2]",
            (Position(0), Slice(0, 8), Position(operand=0), Slice(0, 4)),
            "f32[b=2,a=8@x,c=4]",
        ),
        ("f32[3,5,a=8@x]", "i32[b=2]", (Position(0), Position(operand=0), New(), Slice(0, 8)), "f32[b=2,1,a=8@x]"),
        ("f32[a=16]{U:x,I:y}", "i32[4]", (Position(operand=0),), "f32[4]{U:x,I:y}"),
    ],
)
def test_dims_stand_where_numpy_puts_them_with_their_axes_and_names(
    x: str, ids: str, entries: tuple[IndexEntry, ...], out: str
) -> None:
    (result,) = index("index", (t(x), t(ids)), entries).results
    assert (result, result.names) == (t(out), t(out).names)


@pytest.mark.parametrize(
    ("x", "ids", "updates", "out"),
    [
        ("f32[16@y,8]", "i32[4]", "f32[4,8]", "f32[16@y,8]"),  # each device changes its own rows
        ("f32[16,8]", "i32[4@y]", "f32[4@y,8]", "f32[16,8]{U:y}"),  # the gradient of a table
        ("f32[16,8@x]", "i32[4]", "f32[4,8]", "f32[16,8@x]"),
        ("f32[16,8]{U:x}", "i32[4]", "f32[4,8]", "f32[16,8]{U:x}"),
        ("f32[16,8]{I:x}", "i32[4]", "f32[4,8]{U:x}", "f32[16,8]{U:x}"),
    ],
)
def test_additions_at_positions_are_typed_as_sums(x: str, ids: str, updates: str, out: str) -> None:
    typing = update("at_add", "add", (t(x), t(ids), t(updates)), (Position(operand=0), Slice(0, 8)))
    assert typing.results == (t(out),)


@pytest.mark.parametrize(
    ("how", "x", "ids", "updates", "what"),
    [
        ("set", "f32[16]", "i32[4@y]", "f32[4]", "`at_set` has positions that are sharded on mesh axis `y`"),
        ("max", "f32[16]{U:y}", "i32[4]", "f32[4]", "`at_max` is nonlinear in operand 0"),
        ("multiply", "f32[16]", "i32[4]", "f32[4]{U:y}", "`at_multiply` is nonlinear in operand 2"),
        ("add", "f32[16]", "i32[4]{U:y}", "f32[4]", "`at_add` is nonlinear in operand 1"),
        ("add", "f32[16]", "i32[4]", "f32[3]", "`at_add` cannot broadcast updates of shape (3,) to (4,)"),
    ],
)  # fmt: skip
def test_changes_that_one_device_cannot_make_alone_are_refused(
    how: str, x: str, ids: str, updates: str, what: str
) -> None:
    with pytest.raises(ShardingTypeError) as info:
        update(f"at_{how}", how, (t(x), t(ids), t(updates)), (Position(operand=0),))
    assert info.value.what.startswith(what)


def test_rows_of_bools_are_not_looked_up_in_a_sharded_dim() -> None:
    with pytest.raises(ShardingTypeError, match="cannot be summed"):
        index("index", (t("bool[16@y]"),), (Position(3),))
