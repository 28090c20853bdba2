"""Functions written for `jax.shard_map`, given to `sh.shard_map` as they are: JAX itself says what they denote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AxisType

import shtypes as sh
from tests.end_to_end import close, host
from tests.traced.compiled import compiled_text, sent_by_compiled, sent_by_ledger

P = jax.P
SIZES = {"x": 4, "y": 2}
_rng = np.random.default_rng(0)
X = _rng.standard_normal((8, 4, 6)).astype(np.float32)
W = _rng.standard_normal((6, 4)).astype(np.float32)
RING = [(i, (i + 1) % 4) for i in range(4)]


pytestmark = [pytest.mark.one_in(9), pytest.mark.mesh(SIZES)]


def zeros_carry(x: Any, w: Any) -> Any:
    return lax.scan(lambda c, _: (c + lax.ppermute(c, "x", RING) + x, None), jnp.zeros_like(x), None, length=3)[0]


def counted(x: Any, w: Any) -> Any:
    def step(i: Any, carry: Any) -> Any:
        total, here = carry
        return total + here @ w * i, lax.ppermute(here, "x", RING)

    return lax.fori_loop(0, 4, step, (jnp.zeros((*x.shape[:-1], 4)), x))[0]


def nested(x: Any, w: Any) -> Any:
    def outer(c: Any, _: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, d: d + jnp.sin(x) * i, c), None

    return lax.scan(outer, jnp.zeros(x.shape), None, length=2)[0]


def of_branches(x: Any, w: Any) -> Any:
    return lax.switch(lax.axis_index("x") % 3, [lambda a: a, lambda a: jnp.zeros(a.shape), jnp.sin], x)


def own_trips(x: Any, w: Any) -> Any:
    return lax.while_loop(lambda c: jnp.sum(jnp.abs(c)) < 50, lambda c: c * 1.5, x)


def own_keys(x: Any, w: Any) -> Any:
    key = jax.random.fold_in(jax.random.key(0), lax.axis_index("x"))
    return x * jax.random.bernoulli(key, 0.5, x.shape) + jax.random.normal(key, x.shape)


def mean_of_gradients(x: Any, w: Any) -> Any:
    own = lax.pcast(w, "x", to="varying")
    return lax.pmean(jax.grad(lambda w: jnp.mean(jnp.sin(x @ w)))(own), "x")


def shifted_logits(x: Any, w: Any) -> Any:
    logits = x @ w
    return logits - lax.stop_gradient(lax.pmax(lax.stop_gradient(jnp.max(logits, 0)), "x"))


def to_reduced(x: Any, w: Any) -> Any:
    whole = lax.all_gather(lax.pcast(w, "x", to="varying"), "x", to="reduced")
    reduced = lax.pcast(w, "x", to="reduced")
    return lax.psum(x @ (lax.pcast(reduced, "x", to="varying") + lax.pcast(whole, "x", to="varying")[2]), "x")


def kernel(x: Any) -> Any:
    def double(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def kernel_on_a_grid(x: Any) -> Any:
    def scale(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * (pl.program_id(0) + 1)

    block = pl.BlockSpec((1, 4, 6), lambda i: (i, 0, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(scale, out_shape=shape, grid=(2,), in_specs=[block], out_specs=block, interpret=True)(x)


def both(x: Any) -> Any:
    return x + lax.pcast(lax.psum(x, "x"), "x", to="varying")


@jax.custom_jvp
def sin_by_rule(x: Any) -> Any:
    return jnp.sin(x)


sin_by_rule.defjvp(lambda primals, tangents: (sin_by_rule(*primals), both(2 * jnp.cos(primals[0]) * tangents[0])))


@jax.custom_vjp
def sin_by_functions(x: Any) -> Any:
    return jnp.sin(x)


sin_by_functions.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (both(2 * jnp.cos(x) * ct),))


class Case(NamedTuple):
    body: Callable[[Any, Any], Any]
    x: Any = P("x")
    out: Any = P("x")
    differentiable: bool = True  # by JAX, which does not transpose untiled exchanges of two dims


WHOLE = P()
BODIES: dict[str, Case] = {
    "psum": Case(lambda x, w: lax.psum(jnp.sin(x) @ w, "x"), out=WHOLE),
    "psum over two": Case(lambda x, w: lax.psum(x @ w, ("y", "x")), P("x", "y"), WHOLE),
    "psum of what does not vary": Case(lambda x, w: lax.psum(w, "x") + lax.pmean(w * 2, "y"), out=WHOLE),
    "psum of integers": Case(lambda x, w: x * lax.psum(jnp.arange(3) + lax.axis_index("x"), "x")[1]),
    "psum of bools": Case(lambda x, w: x * lax.psum(x[0, 0, 0] > 0, "x")),
    "psum of numbers": Case(lambda x, w: x / lax.psum(1, ("x", "y")) + lax.axis_size("x")),
    "pmean": Case(lambda x, w: lax.pmean(x @ w, "x"), out=WHOLE),
    "pmax": Case(lambda x, w: lax.pmax(x @ w, "x"), out=WHOLE, differentiable=False),
    "pmin": Case(lambda x, w: lax.pmin(x @ w, ("x",)), out=WHOLE, differentiable=False),
    "all_gather": Case(lambda x, w: lax.all_gather(x @ w, "x", axis=1)[:, :, :1]),
    "all_gather, tiled": Case(lambda x, w: lax.all_gather(x @ w, ("x", "y"), tiled=True), P("x", "y"), P(("x", "y"))),
    "all_gather to one value": Case(lambda x, w: lax.all_gather(x @ w, "x", tiled=True, to="invarying"), out=WHOLE),
    "psum_scatter": Case(lambda x, w: lax.psum_scatter(x @ w, "x", scatter_dimension=1)),
    "psum_scatter, tiled": Case(
        lambda x, w: lax.psum_scatter(x @ w, "x", scatter_dimension=1, tiled=True), out=P(None, "x")
    ),
    "all_to_all": Case(lambda x, w: lax.all_to_all(x @ w, "x", 1, 0), out=P(None, "x"), differentiable=False),
    "all_to_all behind": Case(lambda x, w: lax.all_to_all(x @ w, "x", 1, 2), differentiable=False),
    "all_to_all, tiled": Case(lambda x, w: lax.all_to_all(x @ w, "x", 1, 0, tiled=True), out=P(None, "x")),
    "pswapaxes": Case(lambda x, w: lax.pswapaxes(x @ w, "x", 1)),
    "ppermute": Case(lambda x, w: lax.ppermute(x @ w, "x", RING[:3])),
    "pshuffle": Case(lambda x, w: lax.pshuffle(x @ w, "x", [1, 0, 3, 2])),
    "axis_index": Case(lambda x, w: x * lax.axis_index("x") + lax.axis_index(("y", "x")), P("x", "y"), P("x", "y")),
    "pcast": Case(lambda x, w: lax.pcast(w, "x", to="varying") * 2 + x[0, 0, 0]),
    "a carry of zeros": Case(zeros_carry),
    "a counted carry of zeros": Case(counted),
    "nested carries of zeros": Case(nested),
    "branches": Case(of_branches),
    "own trips": Case(own_trips, differentiable=False),
    "a gradient inside": Case(lambda x, w: jax.grad(lambda w: lax.psum(jnp.sum(jnp.sin(x @ w)), "x"))(w), out=WHOLE),
    "a gradient of each": Case(lambda x, w: jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w), out=WHOLE),
    "a mean of gradients": Case(mean_of_gradients, out=WHOLE),
    "checkpoint": Case(jax.checkpoint(lambda x, w: lax.psum(jnp.sin(x) @ w, "x")), out=WHOLE),
    "jit": Case(jax.jit(lambda x, w: lax.psum(jnp.sin(x) @ w, "x")), out=WHOLE),
    "vmap": Case(lambda x, w: jax.vmap(lambda x: lax.psum(x @ w, "x"))(x), out=WHOLE),
    "where": Case(lambda x, w: jnp.where(x > 0, x, 0) @ w),
    "updates": Case(lambda x, w: jnp.zeros(x.shape).at[0].set(x[1]).at[:, 1].add(2 * x[:, 0])),
    "slices": Case(lambda x, w: lax.dynamic_slice_in_dim(w, lax.axis_index("x"), 1, 0) * x[..., :4]),
    "slices written": Case(
        lambda x, w: lax.dynamic_update_slice(jnp.zeros((8, 4, 6)), x, (2 * lax.axis_index("x"), 0, 0))
    ),
    "keys": Case(own_keys),
    "sorts": Case(lambda x, w: jnp.sort(x, 0) + jnp.cumsum(x, 1) + jnp.flip(x, 2)),
    "custom derivatives": Case(lambda x, w: jax.nn.relu(x) @ w + jax.nn.silu(jnp.sum(x))),
    "derivative rules that communicate": Case(lambda x, w: (sin_by_rule(x) + sin_by_functions(2 * x)) @ w),
    "such rules in a loop": Case(
        lambda x, w: lax.scan(lambda c, _: (sin_by_rule(sin_by_functions(c)), None), x, None, length=2)[0]
    ),
    "such rules in a checkpoint": Case(jax.checkpoint(lambda x, w: sin_by_rule(sin_by_functions(x)))),
    "logits": Case(shifted_logits),
    "norms": Case(lambda x, w: jax.nn.logsumexp(x, 0) + jnp.linalg.norm(x)),
    "to reduced and back": Case(to_reduced, out=WHOLE),
    "to unreduced and back": Case(lambda x, w: lax.psum(lax.pcast(x @ w, "x", to="unreduced"), "x"), out=WHOLE),
    "a kernel": Case(lambda x, w: lax.psum(kernel(x) @ w, "x"), out=WHOLE, differentiable=False),
    "a tangent of a kernel": Case(lambda x, w: jax.jvp(kernel, (x,), (jnp.sin(x),))[1] @ w, differentiable=False),
    "a function of the body's": Case(
        lambda x, w: lax.reduce(x @ w / 9, np.float32(0), lambda a, b: a + b + a * b, (2,))
    ),
}  # fmt: skip


def by_jax(case: Case, *args: Any) -> Any:
    """The value by JAX, and the gradients of the sum of its sines."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def loss(x: Any, w: Any, check: bool) -> Any:
        mapped = jax.shard_map(case.body, mesh=mesh, in_specs=(case.x, P()), out_specs=case.out, check_vma=check)
        y = mapped(x, w)
        return jnp.sum(jnp.sin(y)), y

    run: Any = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    if not case.differentiable:
        run = lambda *args: (loss(*args), None)  # noqa: E731
    with sh.use_mesh(mesh):
        try:
            (_, y), gradients = jax.jit(run, static_argnums=2)(*args, True)
        except (TypeError, ValueError):  # of a carry that starts as zeros, and kernels that do not say what varies
            (_, y), gradients = jax.jit(run, static_argnums=2)(*args, False)
        return jax.device_get((y, gradients))


def typed(case: Case) -> tuple[Any, Any]:
    return sh.array(X, "[8@x,4@y,6]" if case.x == P("x", "y") else "[8@x,4,6]"), sh.array(W, "[6,4]")


@pytest.mark.one_in(57)
@pytest.mark.parametrize("name", BODIES)
def test_a_body_for_jax_has_the_values_and_gradients_of_jax(name: str) -> None:
    case = BODIES[name]
    value, gradients = by_jax(case, X, W)
    for policy in ("partial", "jax"):
        with sh.policy(policy):
            args = typed(case)
            op = sh.shard_map(case.body, in_specs=(case.x, P()), out_specs=case.out)
            close(host(sh.jit(op)(*args)), value, "value")
            if gradients is None:
                continue

            def loss(x: Any, w: Any, op: Any = op) -> Any:
                return sh.all_reduce(sh.sum(sh.sin(op(x, w))))

            for mine, theirs in zip(sh.jit(sh.grad(loss, argnums=(0, 1)))(*args), gradients, strict=True):
                close(host(mine), theirs, "gradient")


@pytest.mark.parametrize("name", ["psum", "a counted carry of zeros", "axis_index", "a gradient inside"])
def test_it_runs_eagerly_and_lifted_by_hand(name: str) -> None:
    case = BODIES[name]
    args = typed(case)
    found = [
        sh.shard_map(body, in_specs=(case.x, P()), out_specs=case.out)(*args)
        for body in (case.body, sh.lift(case.body))
    ]
    value = by_jax(case, X, W)[0]
    for y in found:
        close(host(y), value, "value")


@pytest.mark.parametrize("kind", ["auto", "explicit", "typed"])
def test_it_runs_on_meshes_of_all_kinds(kind: str) -> None:
    kinds = {"auto": (AxisType.Auto,) * 2, "explicit": (AxisType.Explicit,) * 2}
    mesh = sh.make_mesh(SIZES) if kind == "typed" else jax.make_mesh((4, 2), ("x", "y"), axis_types=kinds[kind])
    with sh.use_mesh(mesh):
        case = BODIES["a counted carry of zeros"]
        op = sh.shard_map(case.body, mesh=mesh, in_specs=(case.x, P()), out_specs=case.out)
        close(host(sh.jit(op)(*typed(case))), by_jax(case, X, W)[0], "value")


SENT = ["psum", "all_gather, tiled", "psum_scatter", "all_to_all", "ppermute", "a counted carry of zeros", "logits"]


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_rules_that_communicate_are_applied_where_the_program_of_a_body_is_compiled(policy: Any) -> None:
    """Then they are traced when the body is left."""
    case = BODIES["derivative rules that communicate"]
    with sh.policy(policy):
        op = sh.jit(sh.shard_map(case.body, in_specs=(case.x, P()), out_specs=case.out))
        gradient = sh.grad(lambda x, w: sh.all_reduce(sh.sum(sh.sin(op(x, w)))))
        close(host(sh.jit(gradient)(*typed(case))), by_jax(case, X, W)[1][0], "gradient")


@pytest.mark.one_in(15)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("name", SENT)
def test_the_ledger_has_the_collectives_of_the_compiled_program(name: str, policy: Any) -> None:
    case = BODIES[name]
    with sh.policy(policy):
        args = typed(case)
        op = sh.shard_map(case.body, in_specs=(case.x, P()), out_specs=case.out)

        def loss(x: Any, w: Any) -> Any:
            return sh.all_reduce(sh.sum(sh.sin(op(x, w))), to="I")

        step = sh.grad(loss, argnums=(0, 1))
        assert sent_by_compiled(compiled_text(sh.jit(step), *args)) == sent_by_ledger(sh.ledger(step, *args))


# what JAX does not run on CPU devices


def test_one_devices_value_on_all_of_them() -> None:
    sources = [2, *([jnp.int32(2)] if hasattr(jax.lax, "pbroadcast_dynamic_p") else [])]
    for source in sources:
        op = sh.shard_map(lambda x, s=source: lax.pbroadcast(jnp.sin(x), "x", s), in_specs=P("x"), out_specs=P("x"))
        close(host(op(typed(BODIES["psum"])[0])), np.sin(np.concatenate([X[4:6]] * 4)), "value")


def test_slices_of_any_sizes_are_exchanged() -> None:
    def body(x: Any) -> Any:
        at = jnp.arange(4, dtype=jnp.int32)
        ones, here = jnp.ones(4, jnp.int32), lax.axis_index("x").astype(jnp.int32)
        return lax.ragged_all_to_all(jnp.sin(x), jnp.zeros_like(x), at, ones, jnp.full(4, here), ones, axis_name="x")

    value = np.arange(16, dtype=np.float32)
    op = sh.shard_map(body, in_specs=P("x"), out_specs=P("x"))
    close(host(op(sh.array(value, "[16@x]"))), np.sin(value.reshape(4, 4).T.ravel()), "value")


# what is typed, plain, or both


def test_a_body_of_typed_ops_is_not_lifted() -> None:
    seen: list[Any] = []

    def body(x: Any) -> Any:
        seen.append(str(x.type))
        return sh.lax.psum(x, "x")

    op = sh.shard_map(body, in_specs="[_@x]", out_specs="[_]")
    op(sh.ones("f32[8@x]"))
    assert seen == ["f32[2]{V:x}"]
    sh.jit(op)(sh.ones("f32[8@x]"))
    assert seen == ["f32[2]{V:x}"] * 2


def test_a_plain_body_leaves_nothing_of_its_typed_start() -> None:
    def body(x: Any) -> Any:
        return lax.psum(jnp.sin(sh.lax.ppermute(x * 2, "x", RING)), "x")

    op = sh.shard_map(body, in_specs="[_@x]", out_specs="[_]")
    x = sh.ones("f32[8@x]")
    assert [entry.kind for entry in sh.ledger(op, x)] == ["permute", "all-reduce"]
    with sh.comm_budget(launches=2):
        op(x)


def both_kinds(x: Any) -> Any:
    y = sh.lax.psum(jnp.sin(x), "x") + sh.lax.pmean(x, "x")
    z = sh.lax.all_gather(jnp.cos(x), "x", tiled=True)
    return sh.sum(z) + sh.lax.psum(sh.lax.pscatter(jnp.tanh(y), "x", tiled=True), "x") + jnp.sum(CLOSED @ x)


CLOSED = np.ones(4, np.float32)


def test_the_collectives_of_types_are_those_of_jax_in_a_plain_body() -> None:
    value = np.arange(16, dtype=np.float32)
    op = sh.shard_map(lambda x: sh.lax.psum(both_kinds(x), "x"), in_specs="[_@x]", out_specs="[_]")
    parts = value.reshape(4, 4)
    y = np.sin(parts).sum(0) + parts.mean(0)
    wanted = [4 * np.cos(value).sum() + 4 * np.tanh(y).sum() + value.sum()]
    close(host(op(sh.array(value, "[16@x]"))), wanted, "value")


def test_a_typed_value_that_a_plain_body_closes_over_is_a_constant_of_it() -> None:
    w = sh.array(W, "[6, 4]")
    op = sh.shard_map(lambda x: lax.psum(jnp.sin(x) @ w, "x"), in_specs=P("x"), out_specs=P())
    close(host(op(typed(BODIES["psum"])[0])), np.sin(X).reshape(4, 2, 4, 6).sum(0) @ W, "value")


def typed_transforms(x: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        return sh.checkpoint(lambda c: lax.ppermute(jnp.sin(c), "x", RING))(c) + x, None

    total = sh.scan(step, sh.zeros("f32[2,3]"), None, length=2)[0]
    slope = sh.grad(lambda x: jnp.sum(jnp.cos(x) ** 2))(x)
    return sh.vmap(lambda row: lax.psum(row * jnp.sin(row), "x"))(x) + total + slope


def plain_transforms(x: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        return jax.checkpoint(lambda c: jnp.roll(jnp.sin(c), 2, 0))(c) + x, None

    total = lax.scan(step, jnp.zeros(x.shape), None, length=2)[0]
    slope = jax.jit(jax.grad(lambda x: jnp.sum(jnp.cos(x) ** 2)))(x)
    return jnp.tile((x * jnp.sin(x)).reshape(4, 2, 3).sum(0), (4, 1)) + total + slope


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_transforms_of_types_take_functions_for_jax_in_a_body(policy: Any) -> None:
    value = X[:, 0, :3]
    with sh.policy(policy):
        op = sh.shard_map(typed_transforms, in_specs="[_@x,_]", out_specs="[_@x,_]")
        x = sh.array(value, "[8@x,3]")
        close(host(sh.jit(op)(x)), plain_transforms(value), "value")
        gradient = sh.grad(lambda x: sh.all_reduce(sh.sum(sh.sin(op(x))), to="I"))
        close(
            host(sh.jit(gradient)(x)),
            jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(plain_transforms(x)))))(value),
            "gradient",
        )


def loops(x: Any, lib: Any) -> Any:
    return lib.while_loop(lambda c: c < 20, lambda c: c * x, x * 0 + 1)


def branches(x: Any, lib: Any) -> Any:
    def seen(x: Any) -> Any:
        jax.debug.callback(lambda x: SEEN.append(int(x)), x) if lib is lax else sh.debug.callback(
            lambda x: SEEN.append(int(x)), x
        )
        return x * 10

    return lib.cond(x > 3, seen, lambda x: x, x)


SEEN: list[int] = []


@pytest.mark.parametrize("mode", ["eager", "jit"])
@pytest.mark.parametrize("lib", [sh.lax, lax], ids=["typed", "plain"])
@pytest.mark.parametrize("body", [loops, branches])
def test_each_device_takes_branches_and_trips_of_its_own(body: Any, lib: Any, mode: str) -> None:
    SEEN.clear()
    values = np.arange(2, 6, dtype=np.int32)
    module = sh if lib is sh.lax else lax
    op = sh.shard_map(lambda x: body(x[0], module)[None], in_specs="[_@x]", out_specs="[_@x]")
    found = host((sh.jit(op) if mode == "jit" else op)(sh.array(values, "i32[4@x]")))
    jax.effects_barrier()
    np.testing.assert_array_equal(found, [32, 27, 64, 25] if body is loops else [2, 3, 40, 50])
    assert sorted(set(SEEN)) == ([4, 5] if body is branches else [])


# what is refused


def refusal(body: Any, **specs: Any) -> sh.ShardingTypeError:
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.shard_map(body, **{"in_specs": P("x"), "out_specs": P("x"), **specs})(typed(BODIES["psum"])[0])
    assert "test_plain_bodies.py" in caught.value.where
    return caught.value


def test_groups_within_an_axis_are_refused() -> None:
    error = refusal(lambda x: lax.psum(jnp.sin(x), "x", axis_index_groups=[[0, 1], [2, 3]]))
    assert "there are no `axis_index_groups`" in error.what
    assert "split the axis in two in the mesh" in error.hints[0]


def test_a_result_that_varies_is_refused_where_the_spec_leaves_out_its_axis() -> None:
    error = refusal(lambda x: lax.all_gather(jnp.sin(x), "x", tiled=True), out_specs=P())
    assert "the spec of a result leaves out mesh axis `x`, and f32[8,4,6]{V:x} varies over it" in error.what


def test_a_loop_of_own_trips_does_not_communicate() -> None:
    error = refusal(lambda x: lax.while_loop(lambda c: jnp.sum(c) < 9, lambda c: c + lax.psum(c, "x"), x))
    assert error.what == "the predicate of `while_loop` varies over `x`, and the loop communicates"
    assert error.hints == ('jax.lax.pmax(pred, "x") makes one predicate for all devices',)


def test_a_gradient_through_a_sum_is_refused_where_jax_does_not_track_what_varies() -> None:
    def loss(w: Any, x: Any) -> Any:
        return lax.psum(jnp.sum(lax.scan(lambda c, _: (c + w * x, None), jnp.zeros(x.shape), None, length=2)[0]), "x")

    error = refusal(lambda x: jax.grad(loss)(x * 0 + 1, x))
    assert "takes a gradient through a sum over devices" in error.what
    assert "carry input and carry output must have equal types" in error.why


def test_a_mistake_in_a_plain_body_is_jaxs_to_say() -> None:
    with pytest.raises(TypeError, match=r"cannot reshape array of shape \(2, 4, 6\)"):
        sh.shard_map(lambda x: jnp.sin(x).reshape(3, 5), in_specs=P("x"), out_specs=P("x"))(typed(BODIES["psum"])[0])


def test_casts_that_are_to_be_written_are_asked_for_in_a_plain_body() -> None:
    w = sh.array(W, "[6, 4]")
    with pytest.raises((sh.ShardingTypeError, ValueError), match=r"must be written|varying manual axes"):
        sh.shard_map(lambda x, w: jnp.sin(x) @ w, in_specs=(P("x"), P()), out_specs=P("x"), explicit=True)(
            typed(BODIES["psum"])[0], w
        )
