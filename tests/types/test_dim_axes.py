"""Axes of dim names: what a text leaves unsharded gets the axes of its name, wherever texts are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated as A
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shtypes as sh
from shtypes.errors import ShardingTypeError
from shtypes.types import Dim, ShType
from shtypes.types.mesh import Mesh
from shtypes.types.notation.dim_names import current_dim_axes
from tests import strategies

MESH = Mesh({"dp": 2, "tp": 4})
RULES = {"batch": "dp", "mlp": "tp", "both": ("dp", "tp"), "embed": None}
SIZES = {"batch": 8, "mlp": 16, "both": 8, "embed": 4, "seq": 6}


def read(text: str, **more: Any) -> ShType:
    return ShType.parse(text, MESH, dims=SIZES, **more)


READ = {
    "f32[embed, mlp]": "f32[4,16@tp]",
    "f32[batch, seq, embed]": "f32[8@dp,6,4]",
    "f32[both]": "f32[8@(dp,tp)]",
    "f32[batch=8, mlp = 16]": "f32[8@dp,16@tp]",
    "f32[batch@(), mlp]": "f32[8,16@tp]",
    "f32[batch@( ), 8@()]": "f32[8,8]",
    "f32[batch@tp, embed]": "f32[8@tp,4]",
    "f32[mlp@dp, batch@()]": "f32[16@dp,8]",
    "f32[embed@dp]": "f32[4@dp]",
    "f32[batch]{U:tp}": "f32[8@dp]{U:tp}",
    "f32[8, 16]": "f32[8,16]",
}


@pytest.mark.parametrize(("text", "meaning"), READ.items(), ids=READ)
def test_a_dim_without_axes_gets_those_of_its_name(text: str, meaning: str) -> None:
    with sh.dim_axes(RULES):
        assert read(text).canonical() == ShType.parse(meaning, MESH).canonical()


def test_outside_the_scope_a_name_has_no_axes() -> None:
    text = "f32[batch, mlp]"
    before = read(text)
    with sh.dim_axes(RULES):
        assert read(text) != before
    assert read(text) is before
    assert before.local_shape == (8, 16)


LIKE = ShType.parse("f32[batch@tp, mlp, 6]", MESH, dims=SIZES)
TARGETS = {
    "[batch, mlp, _]": "f32[8@dp,16@tp,6]",
    "[batch@..., mlp@(), _]": "f32[8@tp,16,6]",
    "[_, _, _]": "f32[8,16,6]",  # `_` keeps the name, and says that the dim is whole
    "[..., _@dp]": "f32[8@tp,16,6@dp]",
    "[..., mlp, _]": "f32[8,16@tp,6]",  # what the scope writes is written: `...` keeps the other axes
}


@pytest.mark.parametrize(("text", "meaning"), TARGETS.items(), ids=TARGETS)
def test_a_target_is_read_with_the_axes_of_names(text: str, meaning: str) -> None:
    with sh.dim_axes(RULES):
        assert ShType.parse(text, like=LIKE).canonical() == ShType.parse(meaning, MESH).canonical()


def test_the_inner_scope_wins_name_by_name() -> None:
    with sh.dim_axes(RULES):
        with sh.dim_axes({"batch": None, "seq": "tp"}):
            assert dict(current_dim_axes())["mlp"] == ("tp",)
            assert read("f32[batch, embed]").local_shape == (8, 4)
        with sh.dim_axes([("batch", ["tp"])]):
            assert read("f32[batch, embed]").local_shape == (2, 4)
        assert read("f32[batch, embed]").local_shape == (4, 4)
    assert current_dim_axes() == ()


# printing


def test_a_dim_that_has_no_axes_though_its_name_has_prints_so() -> None:
    t = read("f32[batch@dp, mlp, embed]")
    assert str(t) == "f32[batch@dp, mlp, embed]"
    with sh.dim_axes(RULES):
        assert str(t) == "f32[batch@dp, mlp@(), embed]"
        assert t == str(t)
        assert t != "f32[batch, mlp, embed]"
        assert t.canonical() == "f32[8@dp,16,4]{R:tp}"


NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f", "batch", "seq", "hidden", "s", "h"])


@given(strategies.types(named=True), st.data(), strategies.policies)
def test_what_prints_in_a_scope_reads_back_in_it(t: ShType, data: st.DataObject, policy: str) -> None:
    axes = st.none() | st.lists(st.sampled_from(t.mesh.axis_names), unique=True) if t.mesh.axis_names else st.none()
    names = [d.name for d in t.dims if d.name]
    scope = {name: data.draw(axes) for name in dict.fromkeys([*names, data.draw(NAMES)])}
    sizes = {d.name: d.size for d in t.dims if d.name}
    with sh.dim_axes(scope), sh.policy(policy):
        again = ShType.parse(str(t), t.mesh, dims=sizes)
    assert again == t
    assert again.names == t.names


@given(strategies.types(named=True), st.data())
def test_a_name_stands_for_its_axes_written_out(t: ShType, data: st.DataObject) -> None:
    """Leaving out what the scope says gives the type again: derived from the dims alone."""
    sizes = {d.name: d.size for d in t.dims if d.name}
    once = {n for n in sizes if sum(d.name == n for d in t.dims) == 1}
    chosen = {d.name: d.axes for d in t.dims if d.name in once and data.draw(st.booleans())}

    def shown(d: Dim) -> str:
        head = d.name or str(d.size)
        if d.name in chosen:
            return head
        return f"{head}@({','.join(d.axes)})"

    text = f"{t.dtype_name}[{', '.join(map(shown, t.dims))}]"
    states = ", ".join(f"{s.value}:{a}" for a, s in t.beside_dims.items())
    with sh.dim_axes({str(name): axes for name, axes in chosen.items()}):
        assert ShType.parse(f"{text}{{{states}}}", t.mesh, dims=sizes) == t


# errors

WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "an axis that the mesh has not": (
        {"mlp": "tpp"},
        "f32[embed, mlp]",
        """\
`sh.dim_axes` shards dim `mlp` over `tpp`, and the mesh has no axis `tpp`; it has `dp`, `tp`
  where: f32[embed, mlp]
                    ^
  try:   `tp`
  try:   a mesh on which `tpp` has size 1: such an axis shards nothing
  try:   `mlp@()` has no axes, whatever the scope says""",
    ),
    "an axis that another dim gets": (
        {"batch": "dp", "seq": "dp"},
        "f32[batch, seq]",
        """\
`sh.dim_axes` shards dim `seq` over `dp`, and dim `batch` has it already
  where: f32[batch, seq]
                    ^
  why:   a mesh axis shards one dim or is in one other state
  try:   `seq@()` has no axes, whatever the scope says
  try:   `seq@axis` has the axes that are written""",
    ),
    "an axis that the text writes further on": (
        {"batch": "dp"},
        "f32[batch, mlp@dp]",
        "`sh.dim_axes` shards dim `batch` over `dp`, and dim `mlp` has it already",
    ),
    "an axis that the braces write": (
        {"batch": "dp"},
        "f32[batch]{U:dp}",
        "`sh.dim_axes` shards dim `batch` over `dp`, and the braces have it already",
    ),
    "a size that does not divide": (
        {"seq": "tp"},
        "f32[seq]",
        """\
dim 0 (`seq`) of size 6 cannot be sharded in 4 equal parts
  where: f32[seq@tp]
             ^
  why:   it is sharded over `tp` (size 4)""",
    ),
}


@pytest.mark.parametrize(("scope", "text", "said"), WRONG.values(), ids=WRONG)
def test_an_axis_that_cannot_be_had_is_said_in_words(scope: Any, text: str, said: str) -> None:
    with sh.dim_axes(scope), pytest.raises(ShardingTypeError) as raised:
        read(text)
    assert str(raised.value).startswith(said)


m: Any = sh
NONE: dict[str, tuple[Callable[[], Any], str]] = {
    "no mapping": (lambda: m.dim_axes(3), "takes a mapping of dim names to mesh axes, not 3"),
    "no pairs": (lambda: m.dim_axes(["batch"]), "takes a mapping"),
    "no name": (lambda: m.dim_axes({"a b": "dp"}), "a dim needs a name like `batch`, not `'a b'`"),
    "no axis": (lambda: m.dim_axes({"batch": 3}), "the axes of dim `batch` are a mesh axis, a tuple of them or None"),
    "an axis twice": (lambda: m.dim_axes({"batch": ("dp", "dp")}), "dim `batch` has a mesh axis twice"),
    "a name twice": (lambda: m.dim_axes([("a", "dp"), ("a", "tp")]), "`dim_axes` is given dim `a` twice"),
}


@pytest.mark.parametrize(("call", "said"), NONE.values(), ids=NONE)
def test_a_scope_that_says_nothing_is_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ShardingTypeError) as raised:
        call()
    assert said in raised.value.what


# wherever texts are read


@pytest.fixture
def on_a_mesh() -> Any:
    mesh = sh.make_mesh({"dp": 2, "tp": 4})
    sh.set_mesh(mesh)
    return mesh


def test_one_model_has_the_types_of_each_mesh(on_a_mesh: Any) -> None:
    x = np.arange(8 * 4, dtype=np.float32).reshape(8, 4)
    w = np.ones((4, 16), np.float32)

    def model(x: Any, w: Any) -> Any:
        return sh.einsum("be,em->bm", x, w, out="[batch, mlp]")

    for rules, wanted in (
        (RULES, "f32[8@dp,16@tp]"),
        ({"batch": ("dp", "tp"), "mlp": None}, "f32[8@(dp,tp),16]"),
        ({}, "f32[8,16]"),
    ):
        with sh.dim_axes(rules):
            y = jax.block_until_ready(sh.jit(model)(sh.array(x, "[batch, embed]"), sh.array(w, "[embed, mlp]")))
        assert y.type == wanted
        np.testing.assert_array_equal(np.asarray(y), x @ w)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("transform", [sh.jit, jax.jit, sh.checkpoint, lambda f: f])
def test_no_cache_answers_for_other_axes(on_a_mesh: Any, transform: Any) -> None:
    f = transform(lambda x: sh.reshard(x, "[batch, mlp]") * 2.0)
    x = sh.array(np.ones((8, 16), np.float32), "[_, _]")
    found = []
    for _ in range(2):
        for rules in ({"batch": "dp"}, {"batch": "tp"}, {"mlp": "tp"}, {}):
            with sh.dim_axes(rules):
                y = jax.block_until_ready(f(x))
            found.append(y.type.canonical())
    wanted = ["f32[8@dp,16]{R:tp}", "f32[8@tp,16]{R:dp}", "f32[8,16@tp]{R:dp}", "f32[8,16]{R:(dp,tp)}"]
    assert found == [*wanted, *wanted]


def test_a_signature_is_read_with_the_axes_at_the_call(on_a_mesh: Any) -> None:
    @sh.typed
    def f(x: A[sh.Array, "f32[batch, *rest]"]) -> A[sh.Array, "f32[batch, 2*h]"]:
        return sh.concatenate([x, x], axis=1)

    x = sh.array(np.ones((8, 4), np.float32), "[_@dp, _]")
    with pytest.raises(ShardingTypeError, match=r"argument `x` of `f` is f32\[8@dp,4\], not f32\[batch, \*rest\]"):
        f(x)

    @sh.typed
    def g(x: A[sh.Array, "f32[batch, h]"]) -> A[sh.Array, "f32[batch, 2*h]"]:
        return sh.concatenate([x, x], axis=1)

    with sh.dim_axes({"batch": "dp"}):
        jax.block_until_ready(g(x))
        with pytest.raises(ShardingTypeError) as raised:
            g(sh.reshard(x, "[_, _]"))
    assert raised.value.what == "argument `x` of `g` is f32[8,4], not f32[batch@dp, h]"
    assert [fix.code for fix in raised.value.fixes] == ['sh.reshard(x, "[8@dp,4]")']


def test_a_checked_function_has_arguments_of_these_axes(on_a_mesh: Any) -> None:
    def f(x: A[sh.Array, "f32[batch=8, embed=4]"]) -> Any:
        return x + x

    with sh.dim_axes(RULES):
        assert "f32[batch@dp, embed]" in str(sh.check(f))


def test_specs_are_read_with_the_axes_of_names(on_a_mesh: Any) -> None:
    x = np.arange(8.0, dtype=np.float32)
    seen = []

    def f(x: Any) -> Any:
        seen.append(x.shape)
        return x * 2

    with sh.dim_axes(RULES):
        y = sh.shard_map(f, in_specs="[batch]", out_specs="[batch]")(sh.array(x, "[batch]"))
        z = sh.local_map(lambda a: a * 2, out="[batch]")(sh.array(x, "[batch]"))
        jax.block_until_ready((y, z))
    assert seen[0] == (4,)
    for value in (y, z):
        assert value.type == "f32[8@dp]"
        np.testing.assert_array_equal(np.asarray(value), 2 * x)


def test_a_function_decorated_with_the_scope_is_in_it(on_a_mesh: Any) -> None:
    @sh.dim_axes(RULES)
    def made() -> Any:
        return sh.zeros("f32[batch=8, mlp=16]")

    assert made().type == "f32[8@dp,16@tp]"


def test_a_fix_that_is_printed_in_a_scope_holds_in_it(on_a_mesh: Any) -> None:
    @sh.typed
    def f(x: A[sh.Array, "f32[batch@(), mlp]"]) -> None:
        pass

    x = sh.array(np.ones((8, 16), np.float32), "[batch@dp, mlp@tp]")
    with sh.dim_axes(RULES):
        with pytest.raises(ShardingTypeError) as raised:
            f(x)
        (fix,) = raised.value.fixes
        assert fix.code == 'sh.reshard(x, "[batch@(), mlp@tp]")'
        f(eval(fix.code, {"sh": sh, "x": x}))
