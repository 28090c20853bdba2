"""Functions mapped over sharded dims: each device for its own part, on any types, as on one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import Case, check, host, some
from tests.tolerance import assert_close

pytestmark = pytest.mark.one_in(9)

X = np.linspace(-1, 2, 32, dtype=np.float32).reshape(4, 8)
V = np.linspace(2, -1, 8, dtype=np.float32)
W = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
B = np.linspace(-2, 1, 32, dtype=np.float32).reshape(4, 4, 2)


class Mapping:
    """``m`` of `tests.end_to_end`, with the `vmap` that fits it."""

    def __init__(self, m: Any) -> None:
        self.m = m
        self.vmap, self.grad, self.vjp = (getattr(sh if m is sh else jax, name) for name in ("vmap", "grad", "vjp"))
        self.map = sh.map if m is sh else jax.lax.map

    def __getattr__(self, name: str) -> Any:
        return getattr(self.m, name)


def _case(fn: Any, *operands: tuple[Any, str], out: str) -> Case:
    return Case(lambda m, *xs: fn(Mapping(m), *xs), tuple(x for x, _ in operands), tuple(t for _, t in operands), out)


CASES = [
    _case(lambda m, x: m.vmap(lambda r: m.sum(r * 2))(x), (X, "[4@x,8]"), out="[4@x]"),
    _case(lambda m, x: m.vmap(lambda r: m.softmax(r, 0))(x), (X, "[4@x,8]{I:y}"), out="[4@x,8]{I:y}"),
    _case(lambda m, x: m.vmap(m.sum)(x), (X, "[4@x,8@y]"), out="[4@x]{U:y}"),
    _case(lambda m, x: m.vmap(lambda r: r * 3 + 1)(x), (X, "[4@x,8]{U:y}"), out="[4@x,8]{U:y}"),
    _case(lambda m, x: m.vmap(lambda r: -r)(x), (X, "[4@(y,x),8]"), out="[4@(y,x),8]"),
    _case(lambda m, x: m.vmap(m.sin, 1, 1)(x), (X, "[4,8@(x,y)]"), out="[4,8@(x,y)]"),
    _case(lambda m, x: m.vmap(m.sin, -1, 0)(x), (X, "[4,8@x]"), out="[8@x,4]"),
    # what is not mapped: reduced, invariant (summed backward), on other axes
    _case(lambda m, x, v: m.vmap(lambda r: r * v)(x), (X, "[4@x,8]"), (V, "[8]"), out="[4@x,8]"),
    _case(lambda m, x, v: m.vmap(lambda r: r * v)(x), (X, "[4@x,8]"), (V, "[8]{I:x}"), out="[4@x,8]"),
    _case(lambda m, x, w: m.vmap(lambda r, w: r @ w, (0, None))(x, w), (X, "[4@x,8]"), (W, "[8,4@y]"), out="[4@x,4@y]"),
    _case(
        lambda m, x, w: m.vmap(lambda r, w: r @ w, (0, None))(x, w), (X, "[4@x,8@y]"), (W, "[8,4]"), out="[4@x,4]{U:y}"
    ),
    # what is replicated is sliced
    _case(lambda m, x, y: m.vmap(lambda r, s: r * s)(x, y), (X, "[4@x,8]"), (X, "[4,8]"), out="[4@x,8]"),
    _case(lambda m, x, y: m.vmap(lambda r, s: r * s)(x, y), (X, "[4@x,8]"), (X, "[4,8]{I:x}"), out="[4@x,8]"),
    _case(lambda m, x, y: m.vmap(lambda r, s: r * s)(x, y), (X, "[4@(x,y),8]"), (X, "[4@x,8]"), out="[4@(x,y),8]"),
    # results that do not depend on what is mapped, and maps in maps
    _case(lambda m, x, v: m.vmap(lambda r: v * 2)(x), (X, "[4@x,8]"), (V, "[8]"), out="[4@x,8]"),
    _case(lambda m, x, v: m.vmap(lambda r: v * 2)(x), (X, "[4@x,8]"), (V, "[8]{I:x}"), out="[4@x,8]"),
    _case(lambda m, b: m.vmap(m.vmap(lambda r: m.flip(r, 0)))(b), (B, "[4@x,4@y,2]"), out="[4@x,4@y,2]"),
    _case(lambda m, b: m.vmap(m.vmap(m.sin, 1, 1))(b), (B, "[4@x,4,2@y]"), out="[4@x,4,2@y]"),
    # gradients of each step, also of what is the same at each: nothing is summed over the devices
    *[
        _case(
            lambda m, x, v: m.vmap(m.grad(lambda v, r: m.sum(m.sin(r * v))), (None, 0))(v, x),
            (X, "[4@x,8]"),
            (V, replicated),
            out="[4@x,8]{U:y}",
        )
        for replicated in ("[8]", "[8]{I:x}")
    ],
    _case(
        lambda m, x, v: m.vmap(lambda r: m.all_reduce(m.vjp(lambda v: r * v, v)[1](r)[0]))(x),
        (X, "[4@x,8]{I:y}"),
        (V, "[8]{R:x,I:y}"),
        out="[4@x,8]{I:y}",
    ),
    _case(
        lambda m, b, w: m.vmap(m.vmap(m.grad(lambda w, r: m.sum(r * w) ** 2), (None, 0)), (None, 0))(w, b),
        (B, "[4@x,4@y,2]"),
        (V[:2], "[2]"),
        out="[4@x,4@y,2]",
    ),
    # one after the other, on each device its own
    _case(lambda m, x: m.map(lambda r: m.sin(r) * 2, x), (X, "[4@x,8]"), out="[4@x,8]"),
    _case(lambda m, x, v: m.map(lambda r: r * v, x), (X, "[4@(y,x),8]"), (V, "[8]{I:x}"), out="[4@(y,x),8]"),
    _case(
        lambda m, x, w: m.map(lambda r: m.tanh(m.all_reduce(r @ w)), x),
        (X, "[4@x,8@y]"),
        (W, "[8@y,4]"),
        out="[4@x,4]",
    ),
    _case(lambda m, x, y: m.map(lambda t: t[0] * t[1], (x, y)), (X, "[4@x,8]"), (X, "[4,8]"), out="[4@x,8]"),
    _case(lambda m, b: m.map(m.vmap(m.sin), b), (B, "[4@x,4@y,2]"), out="[4@x,4@y,2]"),
    _case(
        lambda m, x, v: m.map(lambda r: m.grad(lambda v: m.sum(m.sin(r * v)))(v), x),
        (X, "[4@x,8]"),
        (V, "[8]"),
        out="[4@x,8]{U:y}",
    ),
    # each step has a predicate of its own
    _case(
        lambda m, x, v: m.vmap(lambda r: m.cond(m.sum(r) > 0, lambda r: m.sin(r) * v, lambda r: v, r))(x),
        (X, "[4@x,8]"),
        (V, "[8]{I:x}"),
        out="[4@x,8]",
    ),
    _case(  # where the root is not taken, its derivative is no number
        lambda m, x: m.vmap(lambda r: m.cond(m.sum(r) > 0, lambda: m.sum(r) ** 0.5, lambda: m.sum(r * r)))(x),
        (X, "[4@x,8]"),
        out="[4@x]",
    ),
    _case(
        lambda m, x, i: m.vmap(lambda r, i: m.switch(i, [m.sin, lambda r: r * r, lambda r: -r], r))(x, i),
        (X, "[4@x,8]"),
        (np.array([-1, 1, 2, 7], np.int32), "[4@x]"),
        out="[4@x,8]",
    ),
]


@pytest.fixture(scope="module")
def mesh() -> Any:
    return sh.make_mesh({"x": 2, "y": 2})


def test_values_gradients_and_types_are_those_of_one_device(mesh: Any) -> None:
    check(mesh, CASES[:: some(2, 1)])


def test_keys_may_be_sharded(mesh: Any) -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    with sh.use_mesh(mesh):
        sampled = sh.vmap(lambda key: sh.random.normal(key, (3,)))(sh.reshard(sh.from_jax(keys), "[4@x]"))
    assert str(sampled.type) == "f32[4@x,3]"
    np.testing.assert_array_equal(host(sampled), jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys))


def test_a_result_may_stay_unmapped(mesh: Any) -> None:
    with sh.use_mesh(mesh):
        x, v = sh.array(X, "[4@x,8]"), sh.array(V, "[8]{I:y}")
        mapped, kept = sh.vmap(lambda tree: (tree["r"] + 0.5, v * 2), out_axes=(0, None))({"r": x})
    assert (str(mapped.type), str(kept.type)) == ("f32[4@x,8]", "f32[8]{I:y}")
    assert_close(host(mapped), X + 0.5)
    assert_close(host(kept), V * 2)


@pytest.mark.parametrize("dim", ["4@x", "4"])
def test_a_result_may_have_parts_that_are_none(mesh: Any, dim: str) -> None:
    with sh.use_mesh(mesh):
        mapped, none = sh.vmap(lambda r: (r + 0.5, {"uneven": None}))(sh.array(X, f"[{dim},8]"))
    assert (str(mapped.type), none) == (f"f32[{dim},8]", {"uneven": None})


@pytest.mark.parametrize(
    ("fn", "types", "said"),
    [
        (lambda r, v: r * v, ("[4@x,8]", "[8]{U:x}"), "varying with unreduced"),
        (lambda r, v: r * v, ("[4@x,8]", "[8@x]"), "varying with sharded"),
        (lambda r, v: v * 2, ("[4@x,8]", "[8]{U:x}"), "its mapped dim is sharded over `x`"),
    ],
)
def test_inside_the_axis_of_a_sharded_mapped_dim_does_nothing_else(mesh: Any, fn: Any, types: Any, said: str) -> None:
    with sh.use_mesh(mesh):
        x, v = (sh.array(a, t) for a, t in zip((X, V), types, strict=True))
        with pytest.raises(sh.ShardingTypeError, match=said):
            sh.vmap(fn, (0, None))(x, v)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("[4@y,8]", "maps over dims sharded differently: over `x` and over `y`"),
        ("[4,8]{U:x}", "only a replicated argument can be sliced"),
        ("[4,8@x]", "only a replicated argument can be sliced"),
        (None, "a plain array"),
    ],
)
def test_arguments_that_cannot_be_mapped_together_are_refused(mesh: Any, other: Any, said: str) -> None:
    with sh.use_mesh(mesh):
        x, y = sh.array(X, "[4@x,8]"), jnp.asarray(X) if other is None else sh.array(X, other)
        with pytest.raises(sh.ShardingTypeError, match=said) as error:
            sh.vmap(lambda r, s: r * s)(x, y)
    assert "test_vmap.py" in str(error.value)


@pytest.mark.parametrize(
    ("in_axes", "shape", "said"),
    [
        (0, (8, 4), r"size 4: axis 0 of argument r of type f32\[4@x,8\](.|\n)*size 8: axis 0 of argument s"),
        ((0, 2), (8, 4), r"along axis 2(.|\n)*its shape is \(8, 4\)"),
    ],
    ids=["sizes", "no such dim"],
)
def test_dims_that_jax_does_not_map_over_are_named_as_the_arguments_have_them(
    mesh: Any, in_axes: Any, shape: tuple[int, ...], said: str
) -> None:
    with sh.use_mesh(mesh):
        x, y = sh.array(X, "[4@x,8]"), sh.array(np.ones(shape, np.float32), "[8,4]")
        with pytest.raises(sh.ShardingTypeError, match=said):
            sh.vmap(lambda r, s: r, in_axes)(x, y)


@pytest.mark.parametrize(
    "places", [(None, 0), ({"kernel": None, "bias": None}, 0), ({"kernel": 1, "bias": 0}, 0)], ids=str
)
def test_arguments_may_have_parts_that_are_none(mesh: Any, places: Any) -> None:
    with sh.use_mesh(mesh):
        x, layer = sh.array(X, "[4@x,8]"), {"kernel": sh.array(np.ones((8, 4), np.float32), "[8,4]"), "bias": None}
        result = sh.vmap(lambda p, r: r + 1 if p["bias"] is None else r, places)(layer, x)
    assert str(result.type) == "f32[4@x,8]"
    assert_close(host(result), X + 1)


def test_a_cast_of_an_invariant_argument_is_judged(mesh: Any) -> None:
    with sh.use_mesh(mesh), sh.no_comm():
        x, y = sh.array(X, "[4@x,8]"), sh.array(X, "[4,8]{I:x}")
        with pytest.raises(sh.ShardingTypeError, match="all-gather"):
            sh.vmap(lambda r, s: r * s)(x, y)
        sh.vmap(lambda r, s: r * s)(x, sh.array(X, "[4,8]"))


def test_a_sharded_dim_has_no_name(mesh: Any) -> None:
    with sh.use_mesh(mesh), pytest.raises(sh.ShardingTypeError, match="cannot name a dim that is sharded over `x`"):
        sh.vmap(sh.sin, axis_name="i")(sh.array(X, "[4@x,8]"))


def test_the_gradients_of_steps_communicate_nothing(mesh: Any) -> None:
    with sh.use_mesh(mesh), sh.no_comm():
        x, v = sh.array(X, "[4@x,8]"), sh.array(V, "[8]")
        sh.vmap(sh.grad(lambda v, r: sh.sum(r * v)), (None, 0))(v, x)


@pytest.mark.parametrize("replicated", ["[8]{R:x,I:y}", "[8]{I:(x,y)}"])
def test_jaxs_own_gradient_of_a_step_would_be_summed_over_other_steps(mesh: Any, replicated: str) -> None:
    with sh.use_mesh(mesh):
        x, v = sh.array(X, "[4@x,8]{I:y}"), sh.array(V, replicated)
        with pytest.raises(sh.ShardingTypeError, match="summed over mesh axis `x`") as error:
            sh.vmap(lambda r: jax.vjp(jax.jit(lambda v: v * r), v)[1](r)[0])(x)
        assert "test_vmap.py" in error.value.where
        wanted = X * X
        found = sh.vmap(lambda r: jax.vjp(lambda v: v * r, sh.lax.pvary(v, "x"))[1](r)[0])(x)
    assert_close(host(found), wanted)


def test_a_result_of_each_step_is_not_promised_to_be_one(mesh: Any) -> None:
    with sh.use_mesh(mesh):
        x, v = sh.array(X, "[4@x,8]"), sh.array(V, "[8]")
        with pytest.raises(sh.ShardingTypeError, match="another value on each device"):
            sh.vmap(lambda r: (r, sh.lax.pvary(v, "x")), out_axes=(0, None))(x)


@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("target", ["[8@y]", "[_@y]{V:x}", jax.P("y")], ids=str)
def test_a_target_for_a_step_leaves_alone_the_axes_that_are_mapped_over(
    mesh: Any, policy: str, dtype: Any, target: Any
) -> None:
    with sh.use_mesh(mesh), sh.policy(policy):
        x, w = sh.array(X.astype(dtype), "[4@x,8@y]"), sh.array(W.astype(dtype), "[8@y,4]")

        def step(r: Any, w: Any) -> Any:
            assert sh.reshard(r @ w, "[_]").type == "[4]{V:x}"  # a sum over y
            assert sh.matmul(r, w, out="[4]").type == "[4]"
            assert sh.reshard(w, "[_@y, _]").type.state("x") is not sh.State.VARYING
            return sh.reshard(sh.reshard(r, "[_]"), target)

        found = sh.vmap(step, (0, None))(x, w)
        assert found.type == x.type
        np.testing.assert_array_equal(host(found), X.astype(dtype))
        (sent,) = sh.ledger(sh.vmap(lambda r: sh.reshard(r, "[_]")), x)
        assert (sent.kind, sent.axes) == ("all-gather", ("y",))


@pytest.mark.parametrize("target", ["[8@y]{R:x}", "[8@y]{I:x}", "[8@(x,y)]", "[8@y]{U:x}"])
def test_a_target_for_a_step_that_has_a_mapped_axis_elsewhere_is_refused(mesh: Any, target: str) -> None:
    with sh.use_mesh(mesh):
        x = sh.array(X, "[4@x,8@y]")
        with pytest.raises(sh.ShardingTypeError, match="only one of them varies over mesh axis `x`"):
            sh.vmap(lambda r: sh.reshard(r, target))(x)
        with pytest.raises(sh.ShardingTypeError, match="only one of them varies over mesh axis `x`"):
            sh.vmap(lambda r: sh.reshard(r, sh.ShType.parse("f32[8@y]")))(x)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: sh.map(lambda t: t[0], (x, sh.array(X, "[4@y,8]"))), "`map` maps over dims sharded differently"),
        (lambda x: sh.map(lambda t: t[0], (x, jnp.ones((4, 8)))), "`map` maps over a dim that is sharded over `x`"),
        (lambda x: sh.map(lambda r: 3.0, x), "a result of `map` over a dim that is sharded over `x` is a plain array"),
        (lambda x: sh.map(lambda r: r, sh.array(1.0)), "`map` cannot run over xs: f32[] has no leading dim"),
        (lambda x: sh.map(lambda r: sh.all_reduce(r, "x"), x), "`all_reduce` needs mesh axis `x` unreduced"),
    ],
)
def test_a_map_is_refused_in_its_own_name(mesh: Any, call: Any, said: str) -> None:
    with sh.use_mesh(mesh), pytest.raises(sh.ShardingTypeError) as caught:
        call(sh.array(X, "[4@x,8]"))
    assert caught.value.what.startswith(said)
    assert caught.value.where.startswith("test_vmap.py:")
    assert "scan" not in caught.value.where


def test_a_map_over_dims_sharded_differently_is_made_whole_where_that_may_be_inserted(mesh: Any) -> None:
    with sh.use_mesh(mesh), sh.implicit_comm():
        x, y = sh.array(X, "[4@x,8]"), sh.array(X, "[4@y,8]")
        assert sh.map(sh.sin, x).type == "[4@x,8]"
        np.testing.assert_allclose(sh.map(lambda t: t[0] * t[1], (x, y)).to_jax(), X * X, rtol=1e-6)
        np.testing.assert_allclose(sh.vmap(lambda r, s: r * s)(x, y).to_jax(), X * X, rtol=1e-6)


def test_what_only_local_mode_has_is_named_where_values_vary(mesh: Any) -> None:
    with sh.use_mesh(mesh), pytest.raises(sh.ShardingTypeError) as caught:
        sh.map(lambda r: sh.all_reduce(r, "x"), sh.array(X, "[4@x,8]"))
    assert caught.value.hints == ('sh.lax.psum(x, "x"), in local mode',)


def test_a_loop_over_a_sharded_dim_names_map(mesh: Any) -> None:
    with sh.use_mesh(mesh), pytest.raises(sh.ShardingTypeError) as caught:
        sh.scan(lambda c, r: (c, r), 0, sh.array(X, "[4@x,8]"))
    assert caught.value.hints == ("sh.map and sh.vmap, where the steps do not need one another",)
