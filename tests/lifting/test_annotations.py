"""Annotations of shardings in plain programs are reshards of typed values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P

import shtypes as sh
from tests.random_checks import denoted
from tests.tolerance import assert_close

RNG = np.random.default_rng(0)
X, W = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 8)))
CONTRACT = (((1,), (0,)), ((), ()))

#: Forms of ``x @ w`` whose result is to be sharded over ``dp`` on dim 0.
FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "constraint": lambda x, w: jax.lax.with_sharding_constraint(x @ w, P("dp", None)),
    "constraint of a tree": lambda x, w: jax.lax.with_sharding_constraint({"y": x @ w}, P("dp"))["y"],
    "reshard": lambda x, w: jax.reshard(x @ w, P("dp", None)),
    "einsum": lambda x, w: jnp.einsum("ab,bc->ac", x, w, out_sharding=P("dp", None)),
    "matmul": lambda x, w: jnp.matmul(x, w, out_sharding=P("dp", None)),
    "dot_general": lambda x, w: jax.lax.dot_general(x, w, CONTRACT, out_sharding=P("dp")),
    "device_put": lambda x, w: jax.device_put(x @ w, P("dp")),
    "of an index": lambda x, w: (x @ w).at[:, jnp.arange(8)].get(out_sharding=P("dp")),
    "under vmap": lambda x, w: jax.vmap(lambda row: jax.lax.with_sharding_constraint(row @ w, P(None)))(x),
    "in a scan": lambda x, w: jax.lax.scan(lambda c, _: (jax.reshard(x @ w, P("dp")), None), x @ w, None, length=2)[0],
}


@pytest.fixture(autouse=True)
def _on_a_mesh() -> Any:
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})):
        yield


def _total(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, w: jnp.sum(jnp.sin(f(x, w)))


@pytest.mark.parametrize("form", FORMS)
def test_an_annotation_finishes_a_pending_sum_and_places_its_result(form: str) -> None:
    x, w = sh.array(X, "f32[8@dp, 16@tp]"), sh.array(W, "f32[16@tp, 8]")
    if form == "in a scan":  # the carry comes in as it goes out
        w = sh.reshard(w, "[16, 8]")
        x = sh.reshard(x, "[8@dp, 16]")
    y = sh.lift(FORMS[form])(x, w)
    assert str(y.type) == "f32[8@dp,8]"
    assert_close(denoted(y), X @ W, 100)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_through_an_annotation_are_those_of_one_device(form: str) -> None:
    x, w = sh.array(X, "f32[8@dp, 16]"), sh.array(W, "f32[16, 8]")
    wanted = jax.grad(lambda x, w: jnp.sum(jnp.sin(x @ w)), argnums=(0, 1))(X, W)
    outside = sh.jit(sh.grad(lambda x, w: sh.all_reduce(sh.lift(_total(FORMS[form]))(x, w), "dp"), argnums=(0, 1)))(
        x, w
    )
    inside = sh.jit(sh.lift(jax.grad(_total(FORMS[form]), argnums=(0, 1))))(x, w)
    for found in (outside, inside):
        for gradient, right in zip(found, wanted, strict=True):
            assert_close(denoted(gradient), right, 400)


def test_jax_adds_no_reshard_where_nobody_wrote_one() -> None:
    x = sh.array(X, "f32[8@dp, 16@tp]")
    lifted = sh.lift(lambda x: jnp.where(x > 0, x, 0))
    assert lifted(x).type == x.type
    assert not sh.ledger(lifted, x)


def test_jax_adds_no_reshard_of_what_vmap_broadcasts() -> None:
    x, v = sh.array(X, "f32[8, 16@tp]"), sh.array(X[0], "f32[16@tp]")
    scaled = sh.lift(jax.vmap(lambda row, v: row * v, in_axes=(0, None)))
    assert scaled(x, v).type == x.type
    assert not sh.ledger(scaled, x, v)
    hessian = sh.lift(jax.hessian(lambda v: jnp.sum(v**3)))
    assert not sh.ledger(hessian, v)
    found = hessian(v)
    assert found.type.axes(sh.State.SHARDED) == ("tp",)
    assert_close(denoted(found), np.diag(6 * X[0]), 10)


def test_an_axis_that_the_mesh_lacks_is_an_error() -> None:
    with pytest.raises(sh.ShardingTypeError, match="`data`, which is no axis of the mesh"):
        sh.lift(lambda x: jax.lax.with_sharding_constraint(x, P("data")))(sh.array(X, "f32[8@dp, 16@tp]"))


def test_jaxs_own_functions_are_back_after_a_trace() -> None:
    before = jax.lax.with_sharding_constraint, jnp.einsum, jax.lax.dot_general, jax.reshard
    sh.lift(jnp.sin)(sh.array(X, "f32[8@dp, 16@tp]"))
    assert before == (jax.lax.with_sharding_constraint, jnp.einsum, jax.lax.dot_general, jax.reshard)


def _parameters(fn: Any) -> Any:
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):  # no function, or none of Python
        return ()


@pytest.mark.parametrize("module", [jnp, jax.lax, jax.random], ids=lambda module: str(module.__name__))
def test_every_function_that_takes_an_annotation_is_another_in_a_trace(module: Any) -> None:
    own = {name: f for name, f in vars(module).items() if not name.startswith("_") and not isinstance(f, type)}
    others: set[str] = set()

    def program(x: Any) -> Any:
        others.update(name for name, f in own.items() if getattr(module, name) is not f)
        return x + 1

    sh.lift(program)(sh.array(X, "f32[8@dp, 16@tp]"))
    assert others - {"full_like", "with_sharding_constraint", "scan", "while_loop"} == {
        name for name, f in own.items() if "out_sharding" in _parameters(f)
    } - {"full_like"}
