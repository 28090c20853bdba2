"""JAX's own derivatives of typed programs: forward, linear, second order, mixed with plain arrays, and custom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.core.elementwise_fns import NamedFn
from shtypes.core.local import local, local_all
from shtypes.core.shard_fn import Linear, ShardFn
from tests import small_models as p
from tests.tolerance import SHORT


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    return p.mesh()


@pytest.mark.core
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_jvp_gives_the_tangents_of_one_device(compiled: bool) -> None:
    args = p.values()

    def both(*args: Any) -> Any:
        return jax.jvp(p.mlp, args, args)

    out, tangent = (jax.jit(both) if compiled else both)(*args)
    wanted = p.one_device(lambda *a: jax.jvp(p.reference_mlp, a, a), p.X, p.W_IN, p.W_OUT)
    assert tangent.type == out.type
    p.assert_close((out, tangent), wanted)


def test_linearize_gives_the_tangents_of_one_device() -> None:
    args = p.values()
    _, push = jax.linearize(p.mlp, *args)
    p.assert_close(push(*args), p.one_device(lambda *a: jax.jvp(p.reference_mlp, a, a)[1], p.X, p.W_IN, p.W_OUT))


def test_linear_transpose_gives_a_cotangent_of_the_mapped_type() -> None:
    x, w, _ = p.values()
    (ct,) = jax.linear_transpose(lambda x: x @ w, x)(x @ w)
    assert ct.type == x.type.cotangent()
    p.assert_close(ct, p.X @ p.W_IN @ p.W_IN.T)


def test_jax_grad_of_a_jitted_function_with_constants_is_right() -> None:
    x, w_in, w_out = p.values()
    inner = jax.jit(lambda x: p.plain_loss_of(x, w_in, w_out))
    p.assert_gradients(jax.grad(inner)(x), x, p.expected()[1][0])
    p.assert_gradients(jax.jit(jax.grad(lambda x: p.plain_loss_of(x, w_in, w_out)))(x), x, p.expected()[1][0])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_the_hessian_times_a_vector_is_forward_over_reverse(compiled: bool) -> None:
    x, w_in, w_out = p.values()

    def hvp(x: Any) -> Any:
        return jax.jvp(lambda x: sh.grad(p.loss)(x, w_in, w_out), (x,), (x,))[1]

    def reference(x: Any) -> Any:
        return jax.jvp(lambda x: jax.grad(p.reference_loss)(x, p.W_IN, p.W_OUT), (x,), (x,))[1]

    found = (jax.jit(hvp) if compiled else hvp)(x)
    p.assert_close(found, p.one_device(reference, p.X), 4 * SHORT)


@pytest.mark.parametrize("transform", [jax.jacfwd, jax.jacrev, jax.hessian], ids=["jacfwd", "jacrev", "hessian"])
def test_full_jacobians_refuse_typed_values(transform: Callable[..., Any]) -> None:
    x, _, _ = p.values()
    with pytest.raises(sh.ShardingTypeError, match="a typed value"):
        transform(lambda x: sh.sum(x * x))(x)


def test_a_result_without_a_cotangent_counts_as_zero() -> None:
    x, _, _ = p.values()

    def loss(x: Any) -> Any:
        double, _ = jax.jit(lambda x: (x * 2, sh.sin(x)))(x)
        return sh.sum(double * double)

    p.assert_gradients(sh.grad(loss)(x), x, 8 * p.X)


def halves(x: Any) -> Any:
    return x[:, :4], x[:, 4:]


def sines(x: Any) -> Any:
    return jnp.sin(x[:, :4]), jnp.sin(x[:, 4:])


@pytest.mark.parametrize(
    ("fn", "derivative"),
    [
        (NamedFn("halves", halves, linear=Linear.JOINTLY), lambda x: 2 * x),
        (NamedFn("sines", sines), lambda x: 2 * np.sin(x) * np.cos(x)),
    ],
    ids=["linear", "nonlinear"],
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_local_function_of_two_results_is_differentiated_in_one(
    fn: Any, derivative: Callable[..., Any], compiled: bool
) -> None:
    x, _, _ = p.values()
    half = x.type.replace(dims=(x.type.dims[0], 4))

    def loss(x: Any) -> Any:
        _, second = local_all(fn, x, out=(half, half))
        return sh.sum(second * second)

    wanted = np.concatenate([0 * p.X[:, :4], derivative(p.X[:, 4:])], 1)
    grad = jax.jit(sh.grad(loss)) if compiled else sh.grad(loss)
    p.assert_gradients(grad(x), x, wanted)


@jax.custom_vjp
def kernel(x: Any) -> Any:
    return x * 2


kernel.defvjp(lambda x: (x * 2, x), lambda x, ct: (ct * 5,))


@dataclass(frozen=True)
class Kernel(ShardFn):
    def __call__(self, x: Any) -> Any:
        return kernel(x)


def test_a_local_function_with_its_own_backward_is_used_on_the_shards() -> None:
    x, _, _ = p.values()

    def loss(x: Any) -> Any:
        return sh.sum(local(Kernel(), x, out=x.type))

    for grad in (sh.grad(loss), jax.jit(sh.grad(loss))):
        p.assert_gradients(grad(x), x, np.full_like(p.X, 5))


# stop_gradient and constant


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_stop_gradient_keeps_the_type_and_stops_the_gradient(compiled: bool) -> None:
    x, _, _ = p.values()
    grad = sh.grad(lambda x: sh.sum(sh.stop_gradient(x) * x))
    p.assert_gradients((jax.jit(grad) if compiled else grad)(x), x, p.X)
    tree = sh.stop_gradient({"typed": x, "plain": jnp.ones(2)})
    assert tree["typed"].type == x.type
    assert not isinstance(tree["plain"], sh.Array)


def test_a_traced_rate_costs_an_all_reduce_backward_and_a_constant_one_none() -> None:
    x, _, _ = p.values()

    def traced(rate: Any, x: Any) -> Any:
        return sh.sum(x * rate)

    def held(rate: Any, x: Any) -> Any:
        return sh.sum(sh.constant(rate) * x)

    both = (0, 1)
    assert [e for e in p.equations(sh.grad(traced, both), jnp.float32(0.5), x) if "U->I" in e]
    assert not [e for e in p.equations(sh.grad(held, both), jnp.float32(0.5), x) if "U->I" in e]
    rate, grad = sh.grad(held, both)(jnp.float32(0.5), x)
    assert float(rate) == 0
    p.assert_gradients(grad, x, np.full_like(p.X, 0.5))


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_a_constant_is_replicated_by_policy_or_as_told(policy: str) -> None:
    with sh.policy(policy):
        x = sh.array(p.X, "f32[4@dp,8]{I:tp}")
        assert str(sh.constant(x).type) == "f32[4@dp,8]"
        assert sh.constant(x, to="R").type.state("tp") is sh.State.REDUCED
        assert sh.constant(x, to="I").type.state("tp") is sh.State.INVARIANT
    with pytest.raises(sh.ShardingTypeError, match="replicated as `R` or `I`"):
        sh.constant(x, to="U")


# reinterpret: each row of the law, forward and backward


@pytest.mark.parametrize(
    ("given", "target", "axis", "shape"),
    [
        ("f32[4@dp,8]", "V", "dp", (2, 8)),
        ("f32[4,8]{R:dp}", "V", "dp", (4, 8)),
        ("f32[4,8]{I:dp}", "V", "dp", (4, 8)),
    ],
    ids=["S->V", "R->V", "I->V"],
)
def test_values_become_varying_and_their_gradients_come_back(
    given: str, target: str, axis: str, shape: tuple[int, ...]
) -> None:
    x = sh.array(p.X, given)
    varying = sh.reinterpret(x, **{axis: target})
    assert varying.type.shape == shape
    assert varying.type.state(axis) is sh.State.VARYING

    def loss(x: Any) -> Any:
        y = sh.reinterpret(x, **{axis: target})
        return sh.sum(sh.reinterpret(y * y, **{axis: "U"}))

    copies = 1 if "@dp" in given else 2  # a replicated value is on two devices, and both count
    grad = sh.grad(loss)(x)
    p.assert_gradients(grad, x, 2 * copies * p.X)


def test_varying_values_become_shards_again() -> None:
    x = sh.array(p.X, "f32[4@dp,8]")
    back = sh.reinterpret(sh.reinterpret(x, dp="V"), dp=0)
    assert back.type == x.type
    p.assert_close(back, p.X)
    p.assert_close(sh.reinterpret(sh.reinterpret(x, "f32[2,8]{V:dp}"), "f32[4@dp,8]"), p.X)


def test_the_backward_of_a_reinterpretation_communicates_only_from_invariant() -> None:
    def loss(x: Any) -> Any:
        return sh.sum(sh.reinterpret(sh.reinterpret(x, dp="V"), dp="U"))

    summed = p.equations(sh.grad(loss), sh.array(p.X, "f32[4,8]{I:dp}"))
    assert sum("psum[dp]" in e for e in summed) == 1
    free = p.equations(sh.grad(loss), sh.array(p.X, "f32[4,8]{R:dp}"))
    assert not [e for e in free if "psum" in e or "dp: U->" in e]
    assert "reinterpret[dp: V->U]" in free


@pytest.mark.parametrize(
    ("given", "change", "words"),
    [
        ("f32[4,8]{U:dp}", {"dp": "V"}, "from unreduced to varying"),
        ("f32[4,8]{R:dp}", {"dp": "U"}, "from reduced to unreduced"),
        ("f32[4@dp,8]", "f32[4,8]{V:dp}", "cannot be read as"),
        ("f32[4@dp,8]", "f32[4,8@dp]", "cannot be read as|shards another dim"),
        ("f32[4@dp,8]", {}, "needs a type or axes by name"),
        ("f32[4@dp,8]", {"dp": "Q"}, "cannot be reinterpreted as 'Q'"),
    ],
    ids=["U->V", "R->U", "size", "dim", "nothing", "letter"],
)
def test_an_unsound_reinterpretation_is_refused(given: str, change: str | dict[str, Any], words: str) -> None:
    x = sh.array(p.X, given)
    with pytest.raises(sh.ShardingTypeError, match=words):
        _ = sh.reinterpret(x, change) if isinstance(change, str) else sh.reinterpret(x, **change)
