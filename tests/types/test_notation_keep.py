"""Keep and whole: what `...`, `_...`, `_` and `_@...` mean in targets, signatures and specs, and what conflicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shtypes as sh
from shtypes.errors import ShardingTypeError
from shtypes.types import Dim, ShType, State
from shtypes.types.mesh import Mesh
from shtypes.types.notation.printing import show
from shtypes.types.policy import REPLICATED_STATE
from shtypes.types.target import parse
from tests import strategies
from tests.signatures.test_matching import reasons
from tests.strategies import POLICIES

MESH = Mesh({"x": 2, "y": 2, "z": 2})
LIKE = parse("f32[4, 8@(x,y), 16@z]", MESH)
TARGETS = {
    "[_...]": "f32[4,8,16]",
    "[_...]{U:x}": "f32[4,8,16]{U:x}",
    "[_@z, _...]": "f32[4@z,8,16]",
    "[_..., _@(z,x)]": "f32[4,8,16@(z,x)]",
    "[_..., _, _, _]": "f32[4,8,16]",
    "[_, _@..., _]": "f32[4,8@(x,y),16]",
    "[_@..., _@..., _@...]": "f32[4,8@(x,y),16@z]",
    "[_@z, _@..., _]": "f32[4@z,8@(x,y),16]",
    "[_..., _@...]": "f32[4,8,16@z]",
    "[..., _@...]": "f32[4,8@(x,y),16@z]",
    "[_@x, ..., _@...]": "f32[4@x,8@y,16@z]",
    "[4, 8@..., _]{U:z}": "f32[4,8@(x,y),16]{U:z}",
    "[seq, batch@..., hidden]": "f32[seq, batch@(x,y), hidden]",
    "bf16[_...]": "the type has dtype",
}


@pytest.mark.parametrize(("target", "meaning"), TARGETS.items(), ids=TARGETS)
def test_a_target_says_of_each_dim_whether_it_is_kept(target: str, meaning: str) -> None:
    try:
        found = show(parse(target, like=LIKE, policy="partial"), "partial")
    except ShardingTypeError as error:
        found = error.what
    assert found.startswith(meaning)


@given(strategies.types(named=True), st.data(), strategies.policies)
def test_each_dim_is_as_it_is_written(t: ShType, data: st.DataObject, policy: str) -> None:
    """Derived from the words: a kept dim has its axes, a whole one none, and every other axis is replicated."""
    keeps = [data.draw(st.booleans()) for _ in t.dims]
    # Any run of dims that are treated alike may be one ellipsis, which says so.
    start = data.draw(st.integers(0, t.ndim))
    run = next((i for i in range(start, t.ndim) if keeps[i] is not keeps[start]), t.ndim)
    run = data.draw(st.integers(start, run))
    alike = data.draw(st.booleans()) if run == start else keeps[start]
    one = ["_@..." if k else "_" for k in keeps]
    target = f"[{', '.join([*one[:start], '...' if alike else '_...', *one[run:]])}]"
    found = parse(target, like=t, policy=policy)
    dims = [d if k else d._replace(axes=()) for d, k in zip(t.dims, keeps, strict=True)]
    on = {a for d in dims for a in d.axes}
    assert found.dims == tuple(dims)
    assert found == t.replace(dims=dims, states={a: REPLICATED_STATE[policy] for a in t.mesh.axis_names if a not in on})


@pytest.mark.parametrize("policy", POLICIES)
def test_whole_is_one_type_for_every_value_of_a_shape(policy: str) -> None:
    for text in ("f32[4, 8@(x,y), 16@z]", "f32[4@x, 8, 16]{U:y, I:z}", "f32[4, 8, 16]{V:x}"):
        found = parse("[_...]", like=parse(text, MESH, policy=policy), policy=policy)
        assert found == parse("f32[4, 8, 16]", MESH, policy=policy)
    assert parse("[_...]", MESH, shape=(4, 8), dtype="f32") == parse("f32[4, 8]", MESH)
    assert parse("[_...]", like=parse("f32[]", MESH)) == parse("f32[]", MESH)


MESSAGES = {
    "[_, _@..., _@(z,y)]": """\
mesh axis `y` is written here, and dim 1 keeps it
  where: [_, _@..., _@(z,y)]
                         ^
  why:   `_@...` keeps the axes of a dim, and dim 1 of the value is sharded over `y`
  try:   `_` in its place makes dim 1 whole
  try:   leave `y` out elsewhere""",
    "[..., hidden@...]{R:z}": """\
mesh axis `z` is written here, and dim 2 keeps it
  where: [..., hidden@...]{R:z}
                             ^
  why:   `hidden@...` keeps the axes of a dim, and dim 2 of the value is sharded over `z`
  try:   `hidden` in its place makes dim 2 whole
  try:   leave `z` out elsewhere""",
    "[_..., _...]": """\
a type has `_...` at most once
  where: [_..., _...]
                ^
  why:   it stands for all the dims that are left""",
    "[..., _, _...]": """\
a type has `...` or `_...` at most once
  where: [..., _, _...]
                  ^
  why:   it stands for all the dims that are left""",
    "[_..., _, _, _, _]": """\
the type has 4 dims besides `_...`, and the value has 3
  where: [_..., _, _, _, _]
          ^
  why:   the value has shape (4, 8, 16)""",
    "[_...@x]": """\
cannot read the type: expected `,` or `]`, not `@`
  where: [_...@x]
              ^
  try:   a type is written like `f32[8@x,4]{U:y}`""",
    "[_@...@x]": """\
cannot read the type: expected `,` or `]`, not `@`
  where: [_@...@x]
               ^
  try:   a type is written like `f32[8@x,4]{U:y}`""",
    "[_@(...,x)]": """\
cannot read the type: expected a mesh axis, not `.`
  where: [_@(...,x)]
             ^
  try:   a type is written like `f32[8@x,4]{U:y}`""",
}


@pytest.mark.parametrize(("text", "message"), MESSAGES.items(), ids=MESSAGES)
def test_a_conflict_is_shown_where_it_is(text: str, message: str) -> None:
    with pytest.raises(ShardingTypeError) as caught:
        parse(text, like=LIKE)
    assert str(caught.value) == message


OPEN = {
    "f32[_...]": "nothing says what `_...` stands for",
    "f32[_@...]": "nothing says what `_@...` stands for",
    "f32[8@...]": "nothing says what `8@...` stands for",
}


@pytest.mark.parametrize(("text", "what"), OPEN.items(), ids=OPEN)
def test_what_is_kept_is_taken_from_a_value(text: str, what: str) -> None:
    with pytest.raises(ShardingTypeError) as caught:
        parse(text, MESH)
    assert caught.value.what == what


def test_an_array_without_a_type_has_no_axes_to_keep() -> None:
    with pytest.raises(ShardingTypeError, match=r"nothing says which axes `_@\.\.\.` keeps") as caught:
        parse("[_@..., _]", MESH, shape=(4, 8), dtype="f32")
    assert caught.value.why == "the array has a shape, and no type yet"


# where targets are given


def test_ops_take_them() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 2}))
    x = sh.array(np.arange(32.0, dtype=np.float32).reshape(4, 8), "[_@x, _@y]")
    assert str(sh.reshard(x, "[_...]").type) == "f32[4,8]"
    assert str(sh.reshard(x, "[_@..., _]").type) == "f32[4@x,8]"
    assert str(sh.reshard(x, "[...]").type) == "f32[4@x,8@y]"
    np.testing.assert_array_equal(np.asarray(sh.reshard(x, "[_...]")), np.arange(32.0).reshape(4, 8))
    assert str(sh.sum(x, 1, out="[_...]").type) == "f32[4]"
    assert str(sh.sum(x, 1, out="[_@...]").type) == "f32[4@x]"
    assert str(sh.einsum("nk->kn", x, out="[_@..., _]").type) == "f32[8@y,4]"
    assert str(sh.array(np.ones((4, 8), np.float32), "[_...]").type) == "f32[4,8]"
    with pytest.raises(ShardingTypeError, match="mesh axis `y` is written here, and dim 1 keeps it"):
        sh.reshard(x, "[_@y, _@...]")


FITS = [
    ("f32[_...]", "f32[4,8]", []),
    ("f32[_...]", "f32[]", []),
    ("f32[_..., h@tp]", "f32[8,4,4@tp]", []),
    ("f32[_...]", "f32[8@dp,4]", ["dim 0 is sharded over `dp`, and the signature has it not sharded"]),
    ("f32[_..., a, b]", "f32[4]", ["it has 1 dim, and the signature 2 dims or more"]),
    ("f32[b@..., h]", "f32[8@(dp,tp),4]", []),
    ("f32[b@..., h]", "f32[8,4]", []),
    ("f32[b@..., h@tp]", "f32[8@dp,4@tp]", []),
    ("f32[_@...]{R:tp}", "f32[8@tp]", ["dim 0 is sharded over `tp`, and the signature has it not sharded"]),
    ("f32[...]{R:tp}", "f32[8@tp]", ["dim 0 is sharded over `tp`, and the signature has it reduced"]),
    ("f32[*b, h]{U:tp}", "f32[8,8@(dp,tp),4]", ["dim 1 is sharded over `tp`, and the signature has it unreduced"]),
]


@pytest.mark.parametrize(("text", "t", "why"), FITS)
def test_a_signature_takes_them(text: str, t: str, why: list[str]) -> None:
    assert reasons(text, t) == why


def test_names_of_kept_dims_hold_for_a_call() -> None:
    assert reasons("f32[b@...]", "f32[8@dp]", "f32[4]") == ["dim 0 has size 4, and `b` is 8 by `x0`"]


def test_a_spec_takes_them() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 2}))
    x = sh.abstract_array("f32[4@x, 8@y]")
    types: list[Any] = []

    def f(a: Any) -> Any:
        types.append(str(a.type))
        return a

    kept = sh.shard_map(f, in_specs="[_@..., _@...]", out_specs="[_@x, _@y]")(x)
    assert (types.pop(), str(kept.type)) == ("f32[2,4]{V:(x,y)}", "f32[4@x,8@y]")
    one = sh.shard_map(f, in_specs="[_@..., _...]", out_specs="[_@x, _...]", axis_names="x")(x)
    assert (types.pop(), str(one.type)) == ("f32[2,8@y]{V:x}", "f32[4@x,8@y]")
    with pytest.raises(ShardingTypeError, match="the spec names mesh axis `x` twice"):
        sh.shard_map(f, in_specs="[_@..., _@x]", out_specs="[_...]", axis_names="x")(x)
    with pytest.raises(ShardingTypeError, match="has 3 dims, and f32"):
        sh.shard_map(f, in_specs="[_, _, _, _...]", out_specs="[_...]")(x)
    whole = sh.local_map(lambda a: a, out="[_...]")(sh.abstract_array("f32[4, 8]"))
    assert str(whole.type) == "f32[4,8]"
    with pytest.raises(ShardingTypeError, match=r"nothing says which axes `_@\.\.\.` keeps"):
        sh.local_map(lambda a: a, out="[_@..., _]")(x)


def test_a_dim_of_a_type_is_never_printed_with_an_ellipsis() -> None:
    t = ShType(MESH, "f32", [Dim(8, ("x",)), 4], {"y": State.REDUCED, "z": State.UNREDUCED})
    assert "..." not in show(t)
