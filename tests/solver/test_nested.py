"""`implicit_comm` of loops and branches: their ops are decided with the others, and mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import shtypes as sh
from tests.random_checks import denoted
from tests.small_models import one_device
from tests.tolerance import assert_within
from tests.traced.compiled import assert_compiled_as_said

STEPS: Final = 3


def _scanned(step: Callable[[Any], Any], x: Any) -> Any:
    return lax.scan(lambda x, _: (step(x), None), x, None, length=STEPS)[0]


def _while(step: Callable[[Any], Any], x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < STEPS, lambda s: (s[0] + 1, step(s[1])), (0, x))[1]


@pytest.mark.mesh({"x": 2, "y": 4})
def test_a_step_of_a_while_loop_sends_what_one_of_a_scan_sends() -> None:
    x, w, v = (sh.abstract_array(t) for t in ("f32[8@x,16]", "f32[16,32@y]", "f32[32@y,16]"))
    scanned, looped = (
        sh.ledger(sh.implicit_comm(sh.lift(lambda x, w, v, loop=loop: loop(lambda x: jnp.tanh(x @ w) @ v, x))), x, w, v)
        for loop in (_scanned, _while)
    )
    assert looped.total.bytes * STEPS == scanned.total.bytes > 0


@pytest.mark.mesh({"x": 4})
def test_what_no_step_changes_is_gathered_before_a_while_loop() -> None:
    x, w = sh.abstract_array("f32[64@x,8]"), sh.abstract_array("f32[8@x,8]")
    (sent,) = sh.ledger(sh.implicit_comm(sh.lift(lambda x, w: _while(lambda x: jnp.tanh(x @ w), x))), x, w)
    assert sent.times == 1


def _apart(x: Any, w: Any, v: Any) -> Any:
    return lax.cond(x[0, 0] > 0, lambda: jnp.sin(x @ w) @ v, lambda: x @ v)


def _in_steps(x: Any, w: Any, v: Any) -> Any:
    return _scanned(lambda y: lax.cond(jnp.sum(y) > 0, lambda: jnp.tanh(y @ w), lambda: y @ v), x)


def _in_one_another(x: Any, w: Any, v: Any) -> Any:
    return lax.switch(
        jnp.argmax(x[0]) % 3,
        [lambda: lax.cond(jnp.sum(x) > 0, lambda: x @ w, lambda: x @ v), lambda: jnp.cos(x @ w) @ v, lambda: x * 2],
    )


#: Programs of `x`, `w` and `v`, with the bytes that they send, and that their gradients do; as single ops, branches
#: sent 327 and 1,031 in the first, 342 and 1,046 in the third.
BRANCHES: Final[dict[str, tuple[Callable[..., Any], int, int]]] = {
    "apart": (_apart, 326, 646),
    "in steps": (_in_steps, 690, 1362),
    "in one another": (_in_one_another, 332, 652),
    "recomputed": (lambda x, w, v: jax.checkpoint(_apart)(jnp.sin(x), w, v), 327, 1196),
    "recomputed inside": (
        lambda x, w, v: lax.cond(x[0, 0] > 0, jax.checkpoint(lambda: jnp.sin(x @ w) @ v), lambda: x @ v),
        326,
        902,
    ),
    "swapped": (lambda x, w, v: lax.cond(x[0, 0] > 0, lambda: (w, v, 1.0), lambda: (v, w, x[0, 1])), 7, 14),
}


TYPES: Final = "f32[8@x,16@y]", "f32[16@y,16]", "f32[16,16@x]"


def _loss_of(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: sum(jnp.sum(jnp.cos(y)) for y in jax.tree.leaves(f(*xs)))


def _decided(f: Callable[..., Any]) -> list[Any]:
    """A program and its gradient."""
    return [sh.implicit_comm(sh.lift(f)), sh.grad(sh.implicit_comm(sh.lift(_loss_of(f))), argnums=(0, 1, 2))]


@pytest.mark.one_in(3)
@pytest.mark.mesh({"x": 2, "y": 4})
@pytest.mark.parametrize("name", BRANCHES)
def test_branches_are_decided_with_the_rest_of_the_program(name: str) -> None:
    f, *most = BRANCHES[name]
    args = [*map(sh.abstract_array, TYPES)]
    sent = [sh.ledger(each, *args).total.bytes for each in _decided(f)]
    assert all(n <= limit for n, limit in zip(sent, most, strict=True))


@pytest.mark.nightly
@pytest.mark.mesh({"x": 2, "y": 4})
@pytest.mark.parametrize("name", BRANCHES)
def test_decided_branches_mean_the_same_and_send_what_their_ledger_says(name: str) -> None:
    f, *_ = BRANCHES[name]
    rng = np.random.default_rng(0)
    arrays = [np.float32(rng.normal(size=(n, 16))) / 4 for n in (8, 16, 16)]
    args = [*map(sh.array, arrays, TYPES)]
    for typed, one in zip(_decided(f), (f, jax.grad(_loss_of(f), argnums=(0, 1, 2))), strict=True):
        for a, b in zip(jax.tree.leaves(typed(*args)), jax.tree.leaves(one_device(one, *arrays)), strict=True):
            assert_within(denoted(a), b, 1e-5)
        assert_compiled_as_said(typed, *args)


def _train(optimizer: optax.GradientTransformation, layers: int) -> sh.Ledger:
    """The ledger of a training step of a Megatron MLP with data parallelism."""

    def loss(ws: Any, x: Any, y: Any) -> Any:
        for up, bias, down in ws:
            x = x + jax.nn.gelu(x @ up + bias) @ down
        return jnp.mean((x - y) ** 2)

    def step(ws: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(ws, x, y)
        updates, state = optimizer.update(grads, state, ws)
        return optax.apply_updates(ws, updates), state, value

    types = {(256, 1024): "f32[256,1024@tp]", (1024,): "f32[1024@tp]", (1024, 256): "f32[1024@tp,256]"}
    ws = [[jax.ShapeDtypeStruct(shape, "float32") for shape in types]] * layers
    state = jax.eval_shape(optimizer.init, ws)
    mesh = sh.abstract_mesh({"dp": 2, "tp": 4})
    with sh.use_mesh(mesh):
        scalars = {"float32": "f32[]", "int32": "i32[]", "bool": "bool[]"}
        ws, state = jax.tree.map(lambda x: sh.abstract_array(types.get(x.shape, scalars[str(x.dtype)])), (ws, state))
        x = sh.abstract_array("f32[4096@dp,256]")
        return sh.ledger(sh.implicit_comm(sh.lift(step)), ws, state, x, x)


@pytest.mark.nightly
@pytest.mark.parametrize("layers", [2, 3, 4])
def test_a_training_step_gathers_weights_and_sums_gradients(layers: int) -> None:
    """Of each layer the weights over ``tp``, and the gradients over ``dp``: less than activations over ``tp``."""
    weights = 4 * (2 * 256 * 1024 + 1024)
    sent = layers * (weights * 3 // 4 + weights // 4)
    assert _train(optax.adamw(1e-3), layers).total.bytes <= sent * (1 + 1e-3)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "around",
    [lambda each: optax.MultiSteps(each, 4).gradient_transformation(), lambda each: optax.apply_if_finite(each, 3)],
    ids=["MultiSteps", "apply_if_finite"],
)
def test_an_optimizer_in_a_branch_sends_what_it_sends_by_itself(around: Callable[[Any], Any]) -> None:
    alone = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    sent, inside = (_train(optimizer, 2).total.bytes for optimizer in (alone, around(alone)))
    assert inside <= sent * (1 + 1e-4)
