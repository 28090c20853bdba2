"""The text of types: what prints, what reads back, what a text may leave out, and what an error says."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shtypes.errors import ShardingTypeError
from shtypes.types import Dim, ShType, State, dtypes
from shtypes.types.mesh import Mesh
from shtypes.types.notation.dim_names import current_dims, dims
from shtypes.types.notation.printing import canonical, show
from shtypes.types.policy import policy
from shtypes.types.target import as_type, from_spec, parse
from tests import strategies
from tests.strategies import POLICIES

MESH = Mesh({"x": 2, "y": 2, "z": 2})
S, R, I, U, V = State.SHARDED, State.REDUCED, State.INVARIANT, State.UNREDUCED, State.VARYING


def make(dims: list[Dim | int], dtype: str = "f32", **states: State) -> ShType:
    """A type over `MESH`; axes that are not named are reduced."""
    on = {a for d in dims if isinstance(d, Dim) for a in d.axes}
    rest = {a: R for a in MESH.axis_names if a not in on}
    return ShType(MESH, dtype, dims, {**rest, **states})


# printing

PRINTED = {
    "f32[]": make([]),
    "f32[8,4]": make([8, 4]),
    "f32[8@x,4]{U:(y,z)}": make([Dim(8, ("x",)), 4], y=U, z=U),
    "bf16[8@(y,x),0]": make([Dim(8, ("y", "x")), 0], "bfloat16"),
    "f32[4]{V:z, U:x, I:y}": make([4], x=U, y=I, z=V),
    "f32[seq, batch@x, 16]{U:y}": make([Dim(4, (), "seq"), Dim(8, ("x",), "batch"), 16], y=U),
    "f32[seq]": make([Dim(4, (), "seq")]),
    "i32[8]{U:x}": make([8], "i32", x=U),
    "bool[8]": make([8], "bool", x=I, y=R),
    "key<fry>[2@x]": make([Dim(2, ("x",))], "key<fry>"),
    "f8_e4m3fn[4]": make([4], "float8_e4m3fn"),
}


@pytest.mark.parametrize(("text", "t"), PRINTED.items(), ids=PRINTED)
def test_a_type_prints_in_the_notation_of_jax(text: str, t: ShType) -> None:
    assert show(t, "partial") == text


def test_the_policy_says_which_replicated_state_goes_without_saying() -> None:
    t = make([Dim(8, ("x",))], z=I)
    assert show(t, "partial") == "f32[8@x]{I:z}"
    assert show(t, "jax") == "f32[8@x]{R:y}"
    with policy("jax"):
        assert str(t) == repr(t) == "f32[8@x]{R:y}"


@pytest.mark.parametrize("dtype", ["i32", "bool", "key<fry>", "float0"])
def test_a_type_without_gradient_never_prints_its_replicated_state(dtype: str) -> None:
    t = make([8], dtype)
    assert show(t, "partial") == show(t, "jax") == f"{dtype}[8]"
    assert canonical(t) == f"{dtype}[8]{{R:(x,y,z)}}"


def test_canonical_text_writes_each_replicated_axis_and_no_names() -> None:
    t = make([Dim(8, ("x",), "batch"), Dim(4, (), "seq")], z=I)
    assert canonical(t) == t.canonical() == "f32[8@x,4]{R:y, I:z}"


# round trips


@given(strategies.types(), strategies.policies, st.data())
def test_what_prints_reads_back(t: ShType, name: str, data: st.DataObject) -> None:
    text = data.draw(strategies.spaced(show(t, name)))
    assert parse(text, t.mesh, policy=name) is t
    with policy(name):
        assert ShType.parse(str(t), t.mesh) is t


@given(strategies.types(), strategies.policies)
def test_canonical_text_reads_back_under_every_policy(t: ShType, name: str) -> None:
    assert parse(canonical(t), t.mesh, policy=name) is t


@given(strategies.types(named=True), strategies.policies)
def test_names_read_back_where_their_sizes_are_known(t: ShType, name: str) -> None:
    text = show(t, name)
    sizes = {d.name: d.size for d in t.dims if d.name}
    with dims(**sizes):
        assert parse(text, t.mesh, policy=name) is t
    assert parse(text, t.mesh, policy=name, dims=sizes) is t
    assert parse(text, t.mesh, policy=name, shape=t.shape) is t
    assert parse(text, like=t, policy=name) is t
    assert parse(canonical(t), t.mesh, policy=name).named(t.names) is t


@given(strategies.types())
def test_long_dtypes_read_as_short_ones(t: ShType) -> None:
    short = t.dtype_name
    text = canonical(t).replace(short, dtypes.LONG.get(short, short), 1)
    assert parse(text, t.mesh) is t


@given(strategies.types(named=True), strategies.types())
def test_two_types_over_one_mesh_print_alike_only_if_they_are_equal(t: ShType, other: ShType) -> None:
    same = other.mesh is t.mesh and canonical(t) == canonical(other)
    assert same == (t == other)


@given(strategies.garbled())
@example("f32[8@x")
@example("")
def test_a_text_is_a_type_or_an_error_that_points_into_it(text: str) -> None:
    mesh = Mesh({"x": 2, "dp": 2})
    try:
        t = parse(text, mesh)
    except ShardingTypeError as error:
        line, mark = error.where.split("\n")
        assert len(line) == len(text)
        assert mark.strip() == "^"
        assert mark.index("^") <= len(text)
    else:
        assert parse(canonical(t), mesh) == t


@pytest.mark.parametrize(
    ("text", "meaning"),
    {
        "f32[8@x]{R:y U:z}": "f32[8@x]{U:z, R:y}",
        "f32[8@(x)]{I:(y,), V:z,}": "f32[8@x]{V:z, I:y}",
        "f32[8,4,]": "f32[8,4]{R:(x,y,z)}",
        "f32[8@(x,y,)]{}": "f32[8@(x,y)]{R:z}",
        "float32[8]{U:x, U:y}": "f32[8]{U:(x,y), R:z}",
        "f32[n=4, n@x]": "f32[4,4@x]{R:(y,z)}",
        "f32[n, n=4]": "f32[4,4]{R:(x,y,z)}",
    }.items(),
    ids=str,
)
def test_the_reader_allows_what_is_clear(text: str, meaning: str) -> None:
    assert canonical(parse(text, MESH, policy="partial")) == meaning


# what a text may leave out

LIKE = make([Dim(4, (), "seq"), Dim(8, ("x", "y")), Dim(16, ("z",), "hidden")])
TARGETS = {
    "[...]": "f32[seq, 8@(x,y), hidden@z]",
    "{U:x}": "f32[seq, 8@y, hidden@z]{U:x}",
    "{I:(x,z)}": "f32[seq, 8@y, hidden]{I:(x,z)}",
    "[_, _, _]": "f32[seq, 8, hidden]",
    "[_@z, ...]": "f32[seq@z, 8@(x,y), hidden]",
    "[..., _@(z,x)]": "f32[seq, 8@y, hidden@(z,x)]",
    "[_, ..., _]{U:y}": "f32[seq, 8@x, hidden]{U:y}",
    "[..., _, _, _]": "f32[seq, 8, hidden]",
    "[seq@x, batch@y, 16]": "f32[seq@x, batch@y, hidden]",
    "[seq=4, 8, hidden=16@x]{V:y}": "f32[seq, 8, hidden@x]{V:y}",
    "float32[4, ...]": "f32[seq, 8@(x,y), hidden@z]",
}


@pytest.mark.parametrize(("target", "meaning"), TARGETS.items(), ids=TARGETS)
def test_a_target_keeps_what_it_leaves_out(target: str, meaning: str) -> None:
    assert show(parse(target, like=LIKE, policy="partial"), "partial") == meaning


@pytest.mark.parametrize("name", POLICIES)
def test_an_axis_that_a_target_does_not_mention_is_replicated_by_policy(name: str) -> None:
    t = parse("[_, ...]{U:x}", like=make([Dim(8, ("y",)), 4], z=V), policy=name)
    replicated = {"partial": R, "jax": I}[name]
    assert [t.state(a) for a in "xyz"] == [U, replicated, replicated]


@pytest.mark.parametrize(
    ("text", "meaning"),
    {
        "f32[seq, batch@x]": "f32[seq, batch@x]",
        "[_@y, 8]": "f32[4@y,8]",
        "[..., _@x]": "f32[4,8@x]",
        "{U:x}": "f32[4,8]{U:x}",
    }.items(),
    ids=str,
)
def test_a_text_for_an_array_takes_what_it_leaves_out_from_shape_and_dtype(text: str, meaning: str) -> None:
    assert show(parse(text, MESH, shape=(4, 8), dtype="float32", policy="partial"), "partial") == meaning


@given(strategies.types(named=True))
def test_dots_alone_keep_a_sharding_and_reset_the_other_axes(t: ShType) -> None:
    kept = parse("[...]", like=t, policy="jax")
    assert kept.dims == t.dims
    assert set(kept.axes(*State)) - set(kept.axes(S)) == set(kept.axes(I if t.differentiable else R))


# dim names


def test_scopes_of_dim_names_nest_and_the_inner_one_wins() -> None:
    with dims(seq=4, batch=8):
        with dims(seq=6):
            assert current_dims() == (("batch", 8), ("seq", 6))
            assert parse("f32[seq, batch]", MESH).shape == (6, 8)
        assert parse("f32[seq, batch]", MESH).shape == (4, 8)
    assert current_dims() == ()


def test_dims_given_to_the_reader_go_before_those_in_scope() -> None:
    with dims(seq=4):
        assert parse("f32[seq]", MESH, dims={"seq": 6}).shape == (6,)


def test_a_scope_ends_when_its_block_fails() -> None:
    with pytest.raises(KeyError), dims(seq=4):
        raise KeyError
    assert current_dims() == ()


def test_dim_names_of_another_thread_are_not_in_scope() -> None:
    seen: list[object] = []
    with dims(seq=4):
        thread = threading.Thread(target=lambda: seen.append(current_dims()))
        thread.start()
        thread.join()
    assert seen == [()]


@pytest.mark.parametrize("size", [-1, 2.0, "4", None], ids=str)
def test_a_dim_name_stands_for_a_whole_size(size: Any) -> None:
    with pytest.raises(ShardingTypeError, match="dim `seq` needs a size of at least 0"), dims(seq=size):
        pass


def test_the_cache_tells_names_from_names_and_scopes_from_scopes() -> None:
    a, b = LIKE, LIKE.named((None, "batch", None))
    assert a == b
    assert show(parse("[...]", like=a), "partial") != show(parse("[...]", like=b), "partial")
    with dims(n=4):
        assert parse("f32[n]", MESH).shape == (4,)
    with dims(n=6):
        assert parse("f32[n]", MESH).shape == (6,)
    assert parse("f32[4]", MESH, policy="jax") != parse("f32[4]", MESH, policy="partial")


# specs: what a `jax.P` offers, without JAX


class P(NamedTuple):
    """A stand-in for ``jax.P``: what types ask of one."""

    partitions: tuple[Any, ...] = ()
    unreduced: frozenset[str] = frozenset()
    reduced: frozenset[str] = frozenset()


class UnconstrainedSingleton:
    def __repr__(self) -> str:
        return "UNCONSTRAINED"


SPECS = [
    (P(), "[_, _, _]"),
    (P(("x",)), "[_@x, _, _]"),
    (P((None, ("y", "x"), ())), "[_, _@(y,x), _]"),
    (P((("x",),), frozenset("zy")), "[_@x, _, _]{U:(y,z)}"),
    (P((None, "z"), frozenset("x"), frozenset("y")), "[_, _@z, _]{U:x, R:y}"),
]


@pytest.mark.parametrize(("spec", "text"), SPECS, ids=[text for _, text in SPECS])
@pytest.mark.parametrize("name", POLICIES)
def test_a_spec_means_what_the_text_with_its_axes_means(spec: P, text: str, name: str) -> None:
    assert as_type(spec, like=LIKE, policy=name) is parse(text, like=LIKE, policy=name)
    t = parse(text, MESH, shape=(4, 8, 16), dtype="i32", policy=name)
    assert from_spec(spec, MESH, shape=(4, 8, 16), dtype="int32", policy=name) is t


@pytest.mark.parametrize(("spec", "text"), SPECS, ids=[text for _, text in SPECS])
def test_the_specs_of_jax_are_read_as_their_stand_ins(spec: P, text: str) -> None:
    import jax

    real = jax.P(*spec.partitions, unreduced=spec.unreduced, reduced=spec.reduced)
    assert as_type(real, like=LIKE) is parse(text, like=LIKE)
    with pytest.raises(ShardingTypeError, match="entry cannot be `UNCONSTRAINED`"):
        as_type(jax.P(jax.P.UNCONSTRAINED), like=LIKE)


def test_a_pending_maximum_is_refused() -> None:
    class Kind(NamedTuple):
        name: str

    class Pending(NamedTuple):
        unreduced_kind: Kind
        partitions: tuple[Any, ...] = ()
        unreduced: frozenset[str] = frozenset("x")
        reduced: frozenset[str] = frozenset()

    with pytest.raises(ShardingTypeError, match="a pending sum, not a pending max"):
        as_type(Pending(Kind("max")), like=LIKE)
    assert as_type(Pending(Kind("sum")), like=LIKE).axes(U) == ("x",)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (P((UnconstrainedSingleton(),)), "a `jax.P` entry cannot be `UNCONSTRAINED`"),
        (P((3,)), "a `jax.P` entry cannot be `3`"),
        (P((None,) * 4), "the `jax.P` has 4 entries, and the value has 3 dims"),
        (P(("x", "x")), "mesh axis `x` is written twice"),
        (P(("x",), frozenset("x")), "mesh axis `x` is written twice"),
        (P(("w",)), "the mesh has no axis `w`"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_spec_that_names_no_type_is_refused(spec: P, message: str) -> None:
    with pytest.raises(ShardingTypeError, match=message):
        as_type(spec, like=LIKE)


def test_a_spec_needs_a_shape_and_a_dtype() -> None:
    with pytest.raises(ShardingTypeError, match="does not make a type by itself"):
        as_type(P(("x",)), MESH, shape=(8,))


def test_a_given_type_must_fit_the_value() -> None:
    assert as_type(LIKE, like=make([4, 8, 16])) is LIKE
    assert as_type(LIKE, MESH, shape=[4, 8, 16], dtype="float32") is LIKE
    misfits: list[dict[str, Any]] = [{"like": make([4])}, {"shape": (4,)}, {"dtype": "i32"}, {"mesh": Mesh({"x": 2})}]
    for known in misfits:
        with pytest.raises(ShardingTypeError, match="the type f32"):
            as_type(LIKE, **known)


@pytest.mark.parametrize("target", [4, None, ("x", None)], ids=str)
def test_what_names_no_type_is_refused(target: Any) -> None:
    with pytest.raises(ShardingTypeError, match="does not name a type"):
        as_type(target, MESH)


def test_the_mesh_is_that_of_the_value_or_the_one_in_context(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Mesh({"x": 2})
    with pytest.raises(ShardingTypeError, match="the value lies on the mesh"):
        parse("[...]", small, like=LIKE)
    monkeypatch.setattr("shtypes.types.mesh.context", lambda: small)
    assert parse("f32[8@x]").mesh is small
    assert parse("[...]", like=LIKE).mesh is MESH


# errors

MESSAGES = {
    "f32[8@x": """\
cannot read the type: expected `,` or `]`, not the end
  where: f32[8@x
                ^
  try:   a type is written like `f32[8@x,4]{U:y}`""",
    "f32[8 4]": """\
cannot read the type: expected `,`, `]` or `@`, not `4`
  where: f32[8 4]
               ^
  try:   a type is written like `f32[8@x,4]{U:y}`""",
    "f32": """\
cannot read the type: expected `[` or `{`, not the end
  where: f32
            ^
  try:   a type is written like `f32[8@x,4]{U:y}`""",
    "f32[8@]": """\
cannot read the type: expected a mesh axis or `(`, not `]`
  where: f32[8@]
               ^
  try:   a type is written like `f32[8@x,4]{U:y}`""",
    "f32[8]{U x}": """\
cannot read the type: expected `:`, not `x`
  where: f32[8]{U x}
                  ^
  try:   a type is written like `f32[8@x,4]{U:y}`""",
    "f32[8]{S:x}": """\
there is no state `S` to write in braces
  where: f32[8]{S:x}
                ^
  why:   braces take V (varying), U (unreduced), R (reduced), I (invariant)
  try:   an axis that shards is written at its dim: `8@x`""",
    "f32[8]\n\t{U:w}": """\
the mesh has no axis `w`; it has `x`, `y`, `z`
  where: f32[8]  {U:w}
                    ^""",
    "f32[8@x]{U:x}": """\
mesh axis `x` is written twice
  where: f32[8@x]{U:x}
                    ^
  why:   a mesh axis shards one dim or is in one other state""",
    "flot32[8]": """\
there is no dtype `flot32`
  where: flot32[8]
         ^
  try:   float32
  try:   float0
  try:   f32""",
    "bool[8]{U:x}": """\
a `bool` array cannot be unreduced over `x`
  where: bool[8]{U:x}
                   ^
  why:   an unreduced array is a pending sum, and `bool` values cannot be summed""",
    "f32[4, 10@(x,y)]": """\
dim 1 of size 10 cannot be sharded in 4 equal parts
  where: f32[4, 10@(x,y)]
                ^
  why:   it is sharded over `x` (size 2) and `y` (size 2), 4 devices together
  try:   use a size that 4 divides, such as 8 or 12
  try:   shard dim 1 over fewer axes""",
    "[8]": """\
the type has no dtype
  where: [8]
         ^
  try:   f32[8]""",
    "f32[_@x]": """\
nothing says what `_` stands for
  where: f32[_@x]
             ^
  why:   what a text leaves out is taken from a value, and none is given
  try:   write each dim's size or name: `f32[8@x,4]`
  try:   pass like= (a type), or shape=""",
    "f32{U:x}": """\
the type has no dims
  where: f32{U:x}
         ^
  why:   what a text leaves out is taken from a value, and none is given
  try:   write each dim's size or name: `f32[8@x,4]`
  try:   pass like= (a type), or shape=""",
    "f32[..., 4, ...]": """\
a type has `...` at most once
  where: f32[..., 4, ...]
                     ^
  why:   it stands for all the dims that are left""",
    "f32[seq@x]": """\
dim `seq` has no size
  where: f32[seq@x]
             ^
  why:   a dim name stands for a size, and nothing gives it one here
  try:   write it in the type: `seq=8`
  try:   with sh.dims(seq=8): ...""",
    "f32[seq=4, seq=8]": """\
dim `seq` has two sizes: 4 in the type and 8 in the type
  where: f32[seq=4, seq=8]
             ^""",
}


@pytest.mark.parametrize(("text", "message"), MESSAGES.items(), ids=MESSAGES)
def test_an_error_points_at_the_column(text: str, message: str) -> None:
    with pytest.raises(ShardingTypeError) as caught:
        parse(text, MESH)
    assert str(caught.value) == message


MISFITS = {
    "bf16[...]": """\
the type has dtype `bf16`, and the value has dtype `f32`
  where: bf16[...]
         ^
  why:   giving a value a type never casts it
  try:   leave the dtype out of the type
  try:   cast first: astype("bf16")""",
    "[_, 9@x, _]": """\
dim 1 has size 9 in the type and 8 in the value
  where: [_, 9@x, _]
             ^
  why:   the value has shape (4, 8, 16)
  try:   `_` keeps the size of a dim""",
    "[batch, ...]": """\
dim 0 is named `batch` in the type and `seq` in the value
  where: [batch, ...]
          ^
  why:   a type given to a value neither reorders its dims nor names them anew
  try:   `_` keeps the name and the size of a dim""",
    "[_, _]": """\
the type has 2 dims, and the value has 3
  where: [_, _]
          ^
  why:   the value has shape (4, 8, 16)""",
    "[..., 1, 1, 1, 1]": """\
the type has 4 dims besides `...`, and the value has 3
  where: [..., 1, 1, 1, 1]
          ^
  why:   the value has shape (4, 8, 16)""",
    "[seq=8, ...]": """\
dim `seq` has two sizes: 8 in the type and 4 in dim 0 of the value
  where: [seq=8, ...]
          ^""",
    "[seq, seq, ...]": """\
dim `seq` has two sizes: 4 in dim 0 of the value and 8 in dim 1 of the value
  where: [seq, seq, ...]
               ^""",
}


@pytest.mark.parametrize(("text", "message"), MISFITS.items(), ids=MISFITS)
def test_a_target_that_does_not_fit_the_value_is_refused(text: str, message: str) -> None:
    with pytest.raises(ShardingTypeError) as caught:
        parse(text, like=LIKE)
    assert str(caught.value) == message


def test_a_name_whose_size_in_scope_differs_from_the_array_is_refused() -> None:
    with dims(seq=3), pytest.raises(ShardingTypeError, match="3 by the dim names in scope"):
        parse("f32[seq]", MESH, shape=(4,))


def test_a_near_axis_is_suggested() -> None:
    with pytest.raises(ShardingTypeError) as caught:
        parse("f32[8@batc]", Mesh({"batch": 2, "model": 2}))
    assert caught.value.hints == ("`batch`",)


@pytest.mark.parametrize("text", [b"f32[8]", 8, None], ids=str)
def test_only_text_is_read(text: Any) -> None:
    with pytest.raises(ShardingTypeError, match="a type is read from text"):
        parse(text, MESH)


# comparing


@given(strategies.types(), st.sampled_from(POLICIES))
def test_a_type_equals_its_own_text_and_that_of_no_other(t: ShType, name: str) -> None:
    with policy(name):
        assert t == str(t)
        assert str(t) == t
        assert t == t.canonical()
        for axis, state in zip(t.mesh.axis_names, t.states, strict=True):
            for other in {State.INVARIANT, State.VARYING} - {state}:
                changed = t.with_axis(axis, other)
                if changed != t:
                    assert t != changed.canonical()


#: Texts that are compared with ``f32[seq, batch@x, 16]{U:y}`` of sizes 4, 8 and 16.
COMPARED = {
    "f32[seq, batch@x, 16]{U:y}": True,
    "f32[4,8@x,16]{U:y}": True,
    "f32[rows, columns@x, _]{U:y}": True,  # names are no part of a type
    "[4,8@x,16]{U:y}": True,
    "[_, _@x, _]{U:y}": True,
    "{U:y}": True,
    "f32[seq=5, batch@x, 16]{U:y}": False,
    "f32[4,8@x,16]": False,
    "f32[4,8,16@x]{U:y}": False,
    "bf16[4,8@x,16]{U:y}": False,
    "f32[4,8@x]{U:y}": False,
    "f32[a,b,c,d]": False,
    "f32[a,a@x,16]{U:y}": False,
    "f32[4,9@x,16]{U:y}": False,  # no type at all: 2 does not divide it
}


@pytest.mark.parametrize(("text", "equal"), COMPARED.items(), ids=COMPARED)
def test_a_text_is_compared_as_reshard_would_read_it(text: str, equal: bool) -> None:
    t = make([Dim(4, (), "seq"), Dim(8, ("x",), "batch"), 16], y=U)
    assert (t == text) is equal
    assert (t != text) is not equal


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("f32[4,8@w,16]", "the mesh has no axis `w`; it has `x`, `y`, `z`"),
        *(("f33[4,8@x,16]", "there is no dtype `f33`"), ("f32[4,8@x,16", "cannot read the type: ")),
        *(("auto", "cannot read the type: expected `[` or `{`"), ("", "cannot read the type: ")),
        ("f32[4,8@x,16]{U:x}", "mesh axis `x` is written twice"),
    ],
)
def test_a_text_that_names_no_type_is_no_silent_false(text: str, what: str) -> None:
    t = make([4, Dim(8, ("x",)), 16], y=U)
    with pytest.raises(ShardingTypeError) as caught:
        _ = t == text
    assert caught.value.what.startswith(what)


def test_types_fill_columns() -> None:
    t = make([Dim(8, ("x",)), 4])
    assert f"{t:>14}|{t:<14}|{t}" == "    f32[8@x,4]|f32[8@x,4]    |f32[8@x,4]"


def test_sets_tell_types_from_texts() -> None:
    t = make([8])
    assert t == "f32[8]"
    assert t not in {"f32[8]"}
