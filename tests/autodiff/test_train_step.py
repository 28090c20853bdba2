"""A loss with its gradients in the arguments' types: the values of plain JAX, and what the sums send."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.autodiff import train_step as train_step_
from shtypes.core.reshard import reshard_cotangent
from tests import small_models as p
from tests.end_to_end import host
from tests.tolerance import assert_close


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    return p.mesh()


def loss(w: Any, x: Any) -> Any:
    return sh.sum(sh.square(x @ w["kernel"] + w["bias"] * w["scale"]))


def plain_loss(w: Any, x: Any) -> Any:
    return jnp.sum(jnp.square(x @ w["kernel"] + w["bias"] * w["scale"]))


def arguments(kernel: str, bias: str, x: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    weights = {
        "kernel": sh.array(rng.normal(size=(8, 4)), kernel),
        "bias": sh.array(rng.normal(size=4), bias),
        "scale": 2.0,
    }
    return weights, sh.array(rng.normal(size=(16, 8)), x)


LAYOUTS = {
    "replicated over data": ("f32[8, 4]", "f32[4]", "f32[16@dp, 8]"),
    "sharded by features": ("f32[8, 4@tp]", "f32[4@tp]", "f32[16@dp, 8]"),
    "one axis idle": ("f32[8, 4@tp]", "f32[4@tp]", "f32[16, 8]"),
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_gradients_are_those_of_one_device_in_the_arguments_types(layout: tuple[str, str, str], policy: str) -> None:
    with sh.policy(policy):
        w, x = arguments(*layout)
        value, (by_w, by_x) = sh.jit(sh.train_step(loss, argnums=(0, 1)))(w, x)
        expected, (plain_w, plain_x) = jax.jit(jax.value_and_grad(plain_loss, argnums=(0, 1)))(
            *jax.tree.map(host, (w, x))
        )
        assert_close(host(value), expected)
        for got, want, argument in (
            (by_w["kernel"], plain_w["kernel"], w["kernel"]),
            (by_w["bias"], plain_w["bias"], w["bias"]),
            (by_x, plain_x, x),
        ):
            assert got.type == argument.type
            assert_close(host(got), want)


def test_the_sums_are_in_the_backward_pass_of_the_ledger() -> None:
    w, x = arguments(*LAYOUTS["sharded by features"])
    before, after = sh.ledger(sh.value_and_grad(loss), w, x), sh.ledger(sh.train_step(loss), w, x)
    sums = [e for e in after.backward() if e not in before.entries]
    assert after.forward() == before.forward()
    assert {(e.kind, e.axes, str(e.src.dtype_name)) for e in sums} == {("all-reduce", ("dp",), "f32")}
    devices, shards = 2, 2
    assert sum(e.bytes for e in sums) == sum(2 * (devices - 1) * 4 * n // devices // shards for n in (8 * 4, 4))


def test_a_scope_may_forbid_the_sums_and_says_what_they_would_send() -> None:
    w, x = arguments(*LAYOUTS["sharded by features"])
    refusal = r"forbids all-reduce over `dp` in the backward(.|\n)*each device would send 64 B"
    with sh.no_comm("backward"), pytest.raises(sh.ShardingTypeError, match=refusal):
        sh.train_step(lambda w, x: sh.sum(sh.square(x @ w)))(w["kernel"], x)


def test_other_results_come_with_the_loss() -> None:
    w, x = arguments(*LAYOUTS["sharded by features"])

    def with_logits(w: Any, x: Any) -> Any:
        return loss(w, x), {"logits": x @ w["kernel"]}

    (value, aux), gradient = sh.train_step(with_logits, has_aux=True)(w, x)
    assert aux["logits"].type == sh.ShType.parse("f32[16@dp, 4@tp]")
    assert gradient["kernel"].type == w["kernel"].type
    assert_close(host(value), host(loss(w, x)))


def test_a_plain_array_keeps_its_plain_gradient() -> None:
    _, x = arguments(*LAYOUTS["one axis idle"])

    def scaled(scale: Any, x: Any) -> Any:
        return sh.sum(sh.square(x)) * jnp.sum(scale)

    _, gradient = sh.train_step(scaled)(jnp.ones(3), x)
    assert not isinstance(gradient, sh.Array)
    np.testing.assert_allclose(gradient, np.full(3, np.sum(np.square(host(x), dtype=np.float64))), rtol=1e-4)


def test_only_what_changes_its_type_is_resharded(monkeypatch: pytest.MonkeyPatch) -> None:
    resharded: list[str] = []

    def noting(ct: Any, t: Any, **options: Any) -> Any:
        resharded.append(f"{ct.type} -> {t}")
        return reshard_cotangent(ct, t, **options)

    monkeypatch.setattr(train_step_, "reshard_cotangent", noting)
    weights, x = arguments("[_, _@tp]", "[_]", "[_@dp, _]")
    sh.check(sh.train_step(loss), weights, x)
    assert not [line for line in resharded if line.split(" -> ")[0] == line.split(" -> ")[1]]
    assert resharded


def test_a_scope_that_forbids_to_finish_a_gradient_is_told_where_it_can_be_finished() -> None:
    def loss(w: Any, x: Any) -> Any:
        return sh.sum(sh.square(x @ w))

    with sh.use_mesh(sh.abstract_mesh({"dp": 2, "tp": 4})):
        w, x = "f32[16, 32@tp]", "f32[8@dp, 16]"
        with pytest.raises(sh.ShardingTypeError, match="forbids all-reduce over `dp` in the backward") as caught:
            sh.ledger(sh.no_comm(sh.train_step(loss)), w, x)
        (hint,) = caught.value.hints
        assert hint == 'sh.value_and_grad(loss) in the scope, and sh.reshard(gradient, "[16,32@tp]") after the scope'

        def step(w: Any, x: Any) -> Any:
            value, gradient = sh.no_comm(sh.value_and_grad(loss))(w, x)
            return value, sh.reshard(gradient, "[16,32@tp]")

        assert sh.ledger(step, w, x).total == sh.ledger(sh.train_step(loss), w, x).total
