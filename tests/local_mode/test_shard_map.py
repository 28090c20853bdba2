"""`shard_map`: what specs say, how types enter and leave, and that everything works inside and outside."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.local_mode import lax
from tests.core.hlo import collectives
from tests.small_models import assert_close
from tests.tolerance import SHORT

MESH = {"x": 2, "y": 2}


pytestmark = pytest.mark.mesh(MESH)


def value(text: str, seed: int = 0) -> Any:
    shape = sh.ShType.parse(text).shape
    return sh.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), text)


def inside_of(text: str, spec: Any, **options: Any) -> str:
    """The type that the function is given, canonical."""
    seen: list[str] = []

    def f(x: Any) -> Any:
        seen.append(sh.typeof(x).canonical())
        return sh.zeros("f32[]")

    sh.shard_map(f, in_specs=spec, out_specs="[]", **options)(sh.abstract_array(text))
    return seen[0]


ENTERING = [
    ("f32[8@x,4]", "[_@x, _]", "f32[4,4]{V:x, R:y}"),
    ("f32[8@x,4]", "f32[8@x,4]", "f32[4,4]{V:x, R:y}"),
    ("f32[8@x,4]", "[8@x,...]", "f32[4,4]{V:x, R:y}"),
    ("f32[8@x,4]", jax.P("x"), "f32[4,4]{V:x, R:y}"),
    ("f32[8@x,4]", None, "f32[4,4]{V:x, R:y}"),
    ("f32[8@(y,x),4]", "[_@(y,x), _]", "f32[2,4]{V:(x,y)}"),
    ("f32[8@x,4]{I:y}", "[_@x, _]", "f32[4,4]{V:x, I:y}"),
    ("f32[8@x,4]{U:y}", "[_@x, _]", "f32[4,4]{V:x, U:y}"),
    ("f32[8,4]{U:y}", jax.P(unreduced={"y"}), "f32[8,4]{U:y, R:x}"),
    ("f32[8,4]", "[_@x, _@y]", "f32[4,2]{V:(x,y)}"),  # replicated: sliced on the way in
    ("f32[8,4]{I:x}", "[_@x, _]", "f32[4,4]{V:x, R:y}"),
    ("f32[8,4]{I:x}", "[_, _]{R:x}", "f32[8,4]{R:(x,y)}"),
]


@pytest.mark.parametrize(("text", "spec", "inside"), ENTERING, ids=[f"{t} as {s}" for t, s, _ in ENTERING])
def test_mapped_axes_vary_inside_and_the_others_keep_their_states(text: str, spec: Any, inside: str) -> None:
    assert inside_of(text, spec) == inside


def test_a_type_is_a_spec() -> None:
    t = sh.ShType.parse("f32[8@x,4]{I:y}")
    assert inside_of("f32[8@x,4]{I:y}", t) == "f32[4,4]{V:x, I:y}"
    with pytest.raises(sh.ShardingTypeError, match="shape"):
        inside_of("f32[4@x,4]{I:y}", t)


def test_only_the_chosen_axes_are_mapped() -> None:
    assert inside_of("f32[8@(x,y),4]", "[_@x, _]", axis_names="x") == "f32[4@y,4]{V:x}"
    assert inside_of("f32[8@x,4@y]", "[_@x, _]", axis_names=("x",)) == "f32[4,4@y]{V:x}"

    @sh.shard_map(in_specs="[_@x, _]", out_specs="[_@x, _]", axis_names="x")
    def f(x: Any) -> Any:
        assert str(sh.typeof(x)) == "f32[4@y,4]{V:x}"
        return sh.sum(x, 1, keepdims=True) * x

    x = value("f32[8@(x,y),4]")
    for run in (f, sh.jit(f)):
        y = run(x)
        assert str(y.type) == "f32[8@(x,y),4]"
        assert_close(y, np.asarray(x).sum(1, keepdims=True) * np.asarray(x))


def test_a_function_in_local_mode_may_map_another_axis_in_it() -> None:
    def inner(x: Any) -> Any:
        assert str(sh.typeof(x)) == "f32[4,2]{V:(x,y)}"
        return lax.psum(x, "y") * lax.axis_index("x")

    @sh.shard_map(in_specs="[_@x, ...]", out_specs="[_@x, ...]", axis_names="x")
    def outer(x: Any) -> Any:
        assert str(sh.typeof(x)) == "f32[4,4@y]{V:x}"
        return sh.shard_map(inner, in_specs="[_, _@y]", out_specs="[_, _]")(x)

    x = value("f32[8@x,4@y]")
    a = np.asarray(x)
    wanted = (a[:, :2] + a[:, 2:]) * np.repeat([0.0, 1.0], 4)[:, None]
    for run in (outer, sh.jit(outer)):
        assert_close(run(x), wanted)


def test_what_is_none_in_a_tree_needs_no_spec() -> None:
    x = value("f32[4@x]")
    for out_specs in ("[_@x]", {"a": "[_@x]", "n": None}):
        f = sh.shard_map(lambda t: {"a": t["a"], "n": t["b"]}, in_specs="[_@x]", out_specs=out_specs)
        assert_close(f({"a": x, "b": None})["a"], np.asarray(x))


def test_plain_arrays_and_numbers_enter_and_leave() -> None:
    x = value("f32[4@x]")
    product = sh.shard_map(lambda a, b: a * b, in_specs=("[_]", "[_@x]"), out_specs="[_@x]")
    traced = jax.jit(lambda a: product(a, x).to_jax())(np.full(2, 3, np.float32))
    assert_close(np.asarray(traced), 3 * np.asarray(x))
    doubled = sh.shard_map(lambda a: (a * 2, 3.0), in_specs="[_@x]", out_specs=("[_@x]", "[]"))
    y, three = doubled(np.arange(4.0))
    assert str(y.type) == "f32[4@x]"
    assert float(three) == 3.0


def test_specs_are_prefixes_of_trees() -> None:
    @sh.shard_map(in_specs=({"w": "[_]", "b": "[_@y]"}, "[_@x, ...]"), out_specs=("[_@x, ...]", {"sum": "[]"}))
    def f(params: Any, xs: Any) -> Any:
        a, b = xs
        return (a * params["w"], b), {"sum": lax.psum(sh.sum(a), "x") + lax.psum(sh.sum(params["b"]), "y")}

    w, b, x = value("f32[4]"), value("f32[8@y]", 1), value("f32[8@x,4]", 2)
    (p, q), total = f({"w": w, "b": b}, (x, x))
    assert_close(p, np.asarray(x) * np.asarray(w))
    assert_close(q, np.asarray(x))
    assert_close(total["sum"], np.asarray(x).sum() + np.asarray(b).sum())
    with pytest.raises(sh.ShardingTypeError, match="`in_specs` is no prefix"):
        sh.shard_map(lambda x: x, in_specs=("[_]", "[_]"), out_specs="[_]")(w)
    with pytest.raises(sh.ShardingTypeError, match="`out_specs` needs a spec for each value"):
        sh.shard_map(lambda x: x, in_specs="[_]", out_specs=None)(w)


LEAVING = [
    ("[_@x, _]", "f32[16@x,4]"),
    ("[_, _@x]", "f32[8,8@x]"),
    ("[16@x, 4]", "f32[16@x,4]"),
    (jax.P("x"), "f32[16@x,4]"),
    ("[_, _]{U:x}", "f32[8,4]{U:x}"),
    (jax.P(unreduced={"x"}), "f32[8,4]{U:x}"),
    ("[_@(y,x), _]", "f32[32@(y,x),4]"),  # equal along y: repeated
]


@pytest.mark.parametrize(("spec", "out"), LEAVING, ids=[str(s) for s, _ in LEAVING])
def test_a_varying_result_leaves_where_its_spec_says(spec: Any, out: str) -> None:
    y = sh.shard_map(lambda x: x, in_specs="[_@x, _]", out_specs=spec)(value("f32[16@x,4]"))
    assert str(y.type) == out


def refused(f: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(sh.ShardingTypeError) as caught:
        f(*args)
    message = str(caught.value)
    assert "where: test_shard_map.py:" in message
    return message


def mapped(in_spec: Any, out_spec: Any, f: Callable[[Any], Any] = lambda x: x, **options: Any) -> Callable[..., Any]:
    return sh.shard_map(f, in_specs=in_spec, out_specs=out_spec, **options)


AROUND_XY = "[forward: permute over `x`, `y`, 32 B/device; backward: permute over `x`, `y`, 32 B/device]"
A2A = "[forward: all-to-all over `x`, 32 B/device; backward: all-to-all over `x`, 32 B/device]"
GATHER = "[forward: all-gather over `x`, 64 B/device; backward: reduce-scatter over `x`, 64 B/device]"
SUM = "[forward: all-reduce over `x`, 128 B/device; backward: all-reduce over `x`, 128 B/device]"

ERRORS: list[tuple[str, str, Any, Any, dict[str, Any], str]] = [
    ("sharded and not named", "f32[8@x,4]", "[_, _]", "[_, _]", {}, f"""\
the spec does not say where mesh axis `x` goes, which shards dim 0 of f32[8@x,4]
  why:   an axis that a spec leaves out promises one value on all its devices, and each has a slice
  fix:   sh.reshard(x, "[8,4]")   {GATHER}
  try:   name it in the spec: `_@x` at dim 0, and the function gets the slices"""),
    ("another dim", "f32[8@x,4]", "[_, _@x]", "[_, _]", {}, f"""\
the spec asks for f32[8,4@x], and the argument has type f32[8@x,4]
  why:   entering sends nothing: only what is replicated may be sliced on the way in
  fix:   sh.reshard(x, "[8,4@x]")   {A2A}"""),
    ("not the major axis", "f32[8@(y,x),4]", "[_@x, _]", "[_, _]", {"axis_names": "x"}, f"""\
the spec asks for f32[8@(x,y),4], and the argument has type f32[8@(y,x),4]
  why:   entering sends nothing: only what is replicated may be sliced on the way in
  fix:   sh.reshard(x, "[8@(x,y),4]")   {AROUND_XY}"""),
    ("not the major axis, as it is", "f32[8@(y,x),4]", None, "[_, _]", {"axis_names": "x"}, f"""\
the mapped mesh axis `x` must be the first to shard a dim of f32[8@(y,x),4]
  why:   the pieces of a device along `x` would not be contiguous: `y` would shard them again
  fix:   sh.reshard(x, "[8@(x,y),4]")   {AROUND_XY}"""),
    ("varying and not named", "f32[8@x,4]", "[_@x, _]", "[_, _]", {}, """\
the spec of a result leaves out mesh axis `x`, and f32[4,4]{V:x} varies over it
  why:   a spec that leaves out an axis promises one value on all its devices
  fix:   sh.lax.psum(x, "x")   [forward: all-reduce over `x`, 64 B/device; backward: all-reduce over `x`, 64 B/device]
  try:   name it at a dim, `_@x`, to concatenate the devices' values
  try:   `{U:x}` in the spec, if they are the terms of a sum
  try:   sh.lax.all_gather(..., to="reduced") where they were gathered: all are equal, and psum would add them"""),
    ("unreduced and not named", "f32[8,4]{U:x}", "[_, _]", "[_, _]", {}, f"""\
the spec of a result leaves out mesh axis `x`, and f32[8,4]{{U:x}} is unreduced over it
  why:   a pending sum is named where it leaves, or summed before
  fix:   sh.reshard(x, "[8,4]")   {SUM}
  try:   `{{U:x}}` in the spec"""),
    ("replicated as a sum", "f32[8,4]", "[_, _]", "[_, _]{U:x}", {}, """\
the spec of a result says that mesh axis `x` is unreduced, and f32[8,4] is reduced
  try:   sh.reshard(x, x="U") keeps the value
  try:   sh.lax.pvary(x, "x") counts it on each device"""),
    ("varying as replicated", "f32[8@x,4]", "[_@x, _]", "[_, _]{R:x}", {}, """\
the spec of a result says that mesh axis `x` is reduced, and f32[4,4]{V:x} is varying
  try:   sh.lax.psum(x, "x", to="R")"""),
    ("another rank", "f32[8@x,4]", "[_@x]", "[_]", {}, "the spec `[_@x]` has 1 dims, and f32[8@x,4] has 2"),
    ("another size", "f32[8@x,4]", "[16@x, _]", "[_]", {}, "dim 0 has size 16 in the type and 8 in the value"),
    ("no spec", "f32[8@x,4]", 3, "[_]", {}, "`3` is no spec"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "spec", "out", "options", "message"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS]
)
def test_what_does_not_fit_is_refused_with_its_fixes(
    text: str, spec: Any, out: Any, options: dict[str, Any], message: str
) -> None:
    found = refused(mapped(spec, out, **options), sh.abstract_array(text))
    lines = [line for line in found.split("\n") if not line.startswith(("  where:", " " * 9))]
    wanted = message.split("\n")
    assert lines[: len(wanted)] == wanted


def test_a_sum_of_one_value_is_refused_with_its_fixes() -> None:
    r, i = sh.abstract_array("f32[4]{R:x}"), sh.abstract_array("f32[4]{I:x}")
    found = refused(lambda: lax.psum(r, "x"))
    assert "every device has the same value: their sum is 2 times the value" in found
    assert 'fix:   r * sh.lax.axis_size("x")   [forward: none; backward: none]' in found
    assert 'sh.lax.psum(sh.lax.pvary(r, "x"), "x")   [forward: all-reduce over `x`, 16 B/device' in found
    assert "2 times all-reduce over `x`, 32 B/device" in refused(lambda: lax.psum(i, "x"))
    part = sh.abstract_array("f32[4]{V:x, I:y}")
    assert refused(lambda: lax.psum(part, ("x", "y"))).split("\n")[-2:] == [
        '  fix:   sh.lax.psum(part, "x")   [forward: all-reduce over `x`, 16 B/device; backward: all-reduce over `x`, '
        "16 B/device]",
        '  fix:   sh.lax.psum(sh.lax.pvary(part, "y"), ("x", "y"))   [forward: all-reduce over `x`, `y`, 24 B/device; '
        "backward: all-reduce over `x`, `y` and all-reduce over `y`, 40 B/device]",
    ]
    assert lax.psum(part, "x").type == "f32[4]{I:y}"
    assert lax.psum(lax.pvary(part, "y"), ("x", "y")).type == "f32[4]"
    for f in (lax.pmax, lax.all_gather, lax.psum_scatter, lambda x, a: lax.ppermute(x, a, [(0, 1)])):
        assert "needs a value that varies" in refused(lambda f=f: f(r, "x"))
    u, s = sh.abstract_array("f32[4]{U:x}"), sh.abstract_array("f32[4@x]")
    assert 'sh.all_reduce(x, "x")' in refused(lambda: lax.psum(u, "x"))
    assert "sh.shard_map" in refused(lambda: lax.psum(s, "x"))
    v = sh.abstract_array("f32[4]{V:x}")
    assert "needs an invariant value" in refused(lambda: lax.pscatter(v, "x"))
    assert "cannot be cast from varying to reduced" in refused(lambda: lax.pcast(v, "x", to="reduced"))
    assert "no `axis_index_groups`" in refused(lambda: lax.psum(v, "x", axis_index_groups=[[0], [1]]))
    assert "the destination 5, and mesh axis `x` has 2 devices" in refused(lambda: lax.ppermute(v, "x", [(0, 5)]))
    assert "the source 0 twice" in refused(lambda: lax.ppermute(v, "x", [(0, 1), (0, 0)]))
    assert "needs dim 0 of size 2, not 4" in refused(lambda: lax.psum_scatter(v, "x"))
    assert "the mesh has no axis `z`" in refused(lambda: lax.psum(v, "z"))
    assert "cannot end in 'sideways'" in refused(lambda: lax.psum(v, "x", to="sideways"))


def test_a_varying_value_prints_what_each_device_has() -> None:
    seen: list[str] = []

    def f(x: Any) -> Any:
        seen.append(repr(x))
        return x

    sh.shard_map(f, in_specs="[_@x]", out_specs="[_@x]")(sh.array(np.arange(4, dtype=np.float32), "f32[4@x]"))
    assert seen == ["Array(f32[2]{V:x})\n  x=0: [0. 1.]\n  x=1: [2. 3.]"]
    both = lax.axis_index(("x", "y"))
    assert repr(both) == "Array(i32[]{V:(x,y)})\n  x=0, y=0: 0\n  x=0, y=1: 1\n  x=1, y=0: 2\n  x=1, y=1: 3"


# transformations, inside and outside


def step(x: Any, w: Any) -> Any:
    """What one device does: a sum over the mesh in each step of a loop."""
    return sh.tanh(lax.psum(x @ w, "x", to="I") + x)


def reference_step(x: Any, w: Any) -> Any:
    halves = jnp.split(x, 2)
    total = sum(h @ w for h in halves)
    return jnp.tanh(jnp.concatenate([total + h for h in halves]))


def looped(x: Any, w: Any) -> Any:
    return sh.scan(lambda c, _: (step(c, w), None), x, None, 3)[0]


def counted(x: Any, w: Any) -> Any:
    return sh.fori_loop(0, 3, lambda _, c: step(c, w), x)


def branched(x: Any, w: Any) -> Any:
    chosen = sh.cond(lax.axis_size("x") > 1, lambda x: step(x, w), sh.zeros_like, x)
    return step(step(chosen, w), w)


def recomputed(x: Any, w: Any) -> Any:
    return sh.checkpoint(lambda x, w: step(step(step(x, w), w), w))(x, w)


def mapped_over(x: Any, w: Any) -> Any:
    rows = sh.vmap(lambda c: step(c[None], w)[0])(x)
    return step(step(rows, w), w)


def jitted(x: Any, w: Any) -> Any:
    return jax.jit(step)(sh.jit(step)(step(x, w), w), w)


def with_inner_gradient(x: Any, w: Any) -> Any:
    """The gradient of one device's own loss."""
    pull = sh.vjp(lambda x: step(x, w), step(step(x, w), w))
    return pull[0]


INSIDE = [looped, counted, branched, recomputed, mapped_over, jitted, with_inner_gradient]


def reference(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = reference_step(x, w)
    return x


@functools.cache
def expected() -> tuple[Any, Any, Any]:
    """Three steps, the sum of their squares and its gradients, on one device."""
    plain = [jnp.asarray(np.asarray(v)) for v in (value("f32[4@x,3]"), value("f32[3,3]", 1))]

    def loss(x: Any, w: Any) -> tuple[Any, Any]:
        out = reference(x, w)
        return (out**2).sum(), out

    (found, out), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(*plain)
    return np.asarray(out), np.asarray(found), tuple(map(np.asarray, grads))


@pytest.mark.one_in(15)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("body", INSIDE, ids=lambda f: f.__name__)
def test_a_transformation_inside_computes_what_one_device_does(body: Callable[..., Any], policy: str) -> None:
    with sh.policy(policy):
        f = sh.shard_map(body, in_specs=("[_@x, _]", "[_, _]"), out_specs="[_@x, _]")
        x, w = value("f32[4@x,3]"), value("f32[3,3]", 1)

        def loss(x: Any, w: Any) -> Any:
            return sh.sum(f(x, w) ** 2)

        out, wanted, wanted_grads = expected()
        found, grads = sh.jit(sh.value_and_grad(loss, argnums=(0, 1)))(x, w)
        assert_close(found, wanted)
        assert_close(grads, wanted_grads)
        assert [g.type for g in grads] == [x.type.cotangent(), w.type.cotangent()]
        if policy == "partial":
            assert_close(f(x, w), out)


def around(f: Any) -> dict[str, Callable[..., Any]]:
    return {
        "scan": lambda x, w: sh.scan(lambda c, _: (f(c, w), None), x, None, 3)[0],
        "checkpoint": sh.checkpoint(lambda x, w: f(f(f(x, w), w), w)),
        "cond": lambda x, w: f(f(sh.cond(True, lambda x: f(x, w), lambda x: x * 2.0, x), w), w),
        "vmap": lambda x, w: sh.vmap(lambda x, w: f(f(f(x, w), w), w), in_axes=(None, 0))(x, w[None])[0],
        "jit": lambda x, w: jax.jit(f)(sh.jit(f)(f(x, w), w), w),
    }


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", ["scan", "checkpoint", "cond", "vmap", "jit"])
def test_a_transformation_outside_computes_what_one_device_does(name: str) -> None:
    f = sh.shard_map(step, in_specs=("[_@x, _]", "[_, _]"), out_specs="[_@x, _]")
    outside = around(f)[name]
    x, w = value("f32[4@x,3]"), value("f32[3,3]", 1)
    out, _, wanted_grads = expected()
    assert_close(outside(x, w), out)
    assert_close(sh.jit(sh.grad(lambda x, w: sh.sum(outside(x, w) ** 2), argnums=(0, 1)))(x, w), wanted_grads)


def test_second_derivatives_go_through() -> None:
    f = sh.shard_map(step, in_specs=("[_@x, _]", "[_, _]"), out_specs="[_@x, _]")
    x, w = value("f32[4@x,3]"), value("f32[3,3]", 1)

    def along(f: Callable[..., Any], total: Callable[..., Any], x: Any, w: Any) -> Any:
        return jax.jvp(lambda y: jax.jvp(lambda z: total(f(z, w)), (y,), (x,))[1], (x,), (x,))[1]

    found = along(f, sh.sum, x, w)
    assert_close(
        found, jax.jit(lambda x, w: along(reference_step, jnp.sum, x, w))(np.asarray(x), np.asarray(w)), 4 * SHORT
    )


def test_a_closure_over_a_typed_value_enters_as_it_is() -> None:
    w, x = value("f32[4]{I:x}"), value("f32[8@x,4]", 1)
    f = sh.shard_map(lambda x: x * w + np.ones(4, np.float32), in_specs="[_@x, _]", out_specs="[_@x, _]")
    for run in (f, sh.jit(f), jax.jit(f)):
        assert_close(run(x), np.asarray(x) * np.asarray(w) + 1)
    sliced = value("f32[8@x,4]", 2)
    bad = sh.shard_map(lambda x: x * sliced[:4], in_specs="[_@x, _]", out_specs="[_@x, _]")
    with pytest.raises(sh.ShardingTypeError):
        bad(x)


def test_entering_and_leaving_send_nothing_in_either_direction() -> None:
    f = sh.shard_map(lambda x: x * 2, in_specs="[_@x, _@y]", out_specs="[_@x, _@y]")
    x = value("f32[8@x,4@y]")

    def gradient(x: Any) -> Any:
        return sh.grad(lambda x: sh.sum(f(x) ** 2))(x)

    for g in (f, gradient):
        assert not collectives(sh.jit(g).lower(x).compile().as_text())


def test_a_carry_that_starts_invariant_is_refused_with_the_cast_to_write() -> None:
    def total(x: Any, start: Any) -> Any:
        return sh.scan(lambda c, _: (c + x, None), start, None, 3)[0]

    f = sh.shard_map(total, in_specs=("[_@x]", "[_]"), out_specs="[_@x]")
    x = value("f32[4@x]")
    assert_close(f(x, sh.zeros("f32[2]{R:x}")), 3 * np.asarray(x))  # free: reduced joins varying
    assert_close(f(x, sh.zeros("f32[2]{I:x}")), 3 * np.asarray(x))  # free: no gradient comes back to it
    with pytest.raises(sh.ShardingTypeError, match=r"comes back as f32\[2\]\{V:x\}") as caught:
        sh.jit(f)(x, sh.zeros("f32[2]{I:x}"))
    assert 'sh.lax.pvary(init, "x") before the loop' in str(caught.value)


def test_nothing_needs_devices_to_be_checked() -> None:
    jax.set_mesh(None)
    with sh.use_mesh(sh.abstract_mesh({"x": 512})):
        f = sh.shard_map(lambda x: lax.psum(x, "x"), in_specs="[_@x]", out_specs="[_]")
        assert str(jax.eval_shape(f, sh.abstract_array("f32[1024@x]"))) == "f32[2]"
        assert str(f(sh.abstract_array("f32[1024@x]")).type) == "f32[2]"


@pytest.mark.parametrize(
    "body", [lambda v: jax.lax.psum(v, "y"), lambda v: v + jax.lax.axis_index("y")], ids=["psum", "axis_index"]
)
def test_a_collective_of_jax_along_an_axis_that_is_not_mapped_is_refused_in_words(body: Any) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})):
        mapped: Any = sh.shard_map(body, in_specs="[_@x]", out_specs="[_@x]", axis_names="x")
        with pytest.raises(sh.ShardingTypeError, match="goes along `y`, over which nothing is mapped") as caught:
            mapped(sh.array(np.ones(2), "f32[_@x]"))
    assert "test_shard_map.py" in str(caught.value)
    assert caught.value.why == "`shard_map` maps over `x` here"


def test_an_attribute_that_a_function_lacks_is_its_own_error() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        mapped: Any = sh.shard_map(lambda v: v.nothing, out_specs="[_@x]")
        with pytest.raises(AttributeError, match="nothing"):
            mapped(sh.array(np.ones(2), "f32[_@x]"))
