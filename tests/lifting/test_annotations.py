"""Annotations of shardings in plain programs are reshards of typed values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import P
from jax.lax import with_sharding_constraint as constrained
from jax.numpy import einsum as imported_einsum
from jax.sharding import reshard as imported_reshard

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


def _with_default(x: Any, w: Any, product: Any = jnp.matmul, placed: Any = jax.reshard) -> Any:
    return placed(product(x, w, out_sharding=P("dp")), P("dp", None))


class _Layer:
    """Keeps a function of JAX, as modules of libraries do."""

    product = staticmethod(jax.lax.dot_general)

    def __call__(self, x: Any, w: Any) -> Any:
        return self.product(x, w, CONTRACT, out_sharding=P("dp"))


def _on_users_mesh(f: Callable[[Any, Any, Any], Any], kind: Any) -> Callable[[Any, Any], Any]:
    mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(kind,) * 2)
    return lambda x, w: f(x, w, jax.NamedSharding(mesh, P("dp", None)))


EXPLICIT, AUTO = jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto
FORMS |= {
    "imported constraint": lambda x, w: constrained(x @ w, P("dp")),
    "imported reshard": lambda x, w: imported_reshard(x @ w, P("dp")),
    "imported einsum": lambda x, w: imported_einsum("ab,bc->ac", x, w, out_sharding=P("dp")),
    "a default": _with_default,
    "kept by a class": _Layer(),
    "a method": lambda x, w: (x @ w).reshape(4, 16).reshape(8, 8, out_sharding=P("dp")),
    "jit's result": jax.jit(lambda x, w: x @ w, out_shardings=P("dp")),
    "jit's arguments": jax.jit(lambda x, w: x @ w, in_shardings=(P("dp"), P())),
    "jit in jit": jax.jit(jax.jit(jnp.matmul, out_shardings=P("dp"))),
    "auto_axes": jax.sharding.auto_axes(lambda x, w: x @ w, out_sharding=P("dp")),
    "auto_axes, where it is called": lambda x, w: jax.sharding.auto_axes(jnp.matmul)(x, w, out_sharding=P("dp")),
    "of an argument": lambda x, w: jax.reshard(x @ w, P(jax.typeof(x).sharding.spec[0], None)),
    "of an argument, in a gradient": lambda x, w: jax.value_and_grad(
        lambda x: (jnp.sum(y := jax.reshard(x @ w, P(jax.typeof(x).sharding.spec[0]))), y), has_aux=True
    )(x)[0][1],
    "constraint on an explicit mesh": _on_users_mesh(lambda x, w, s: constrained(x @ w, s), EXPLICIT),
    "constraint on an auto mesh": _on_users_mesh(lambda x, w, s: constrained(x @ w, s), AUTO),
    "einsum on an explicit mesh": _on_users_mesh(lambda x, w, s: jnp.matmul(x, w, out_sharding=s), EXPLICIT),
    "device_put on an explicit mesh": _on_users_mesh(lambda x, w, s: jax.device_put(x @ w, s), EXPLICIT),
    "broadcast": lambda x, w: jnp.broadcast_to(x @ w, (1, 8, 8), out_sharding=P(None, "dp"))[0],
    "in cond": lambda x, w: jax.lax.cond(
        True, lambda y: jax.reshard(y, P("dp")), lambda y: jax.reshard(-y, P("dp")), x @ w
    ),
    "in checkpoint": jax.checkpoint(lambda x, w: jax.reshard(x @ w, P("dp"))),
}


pytestmark = pytest.mark.mesh({"dp": 2, "tp": 4})


def _total(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, w: jnp.sum(jnp.sin(f(x, w)))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("form", FORMS)
def test_an_annotation_finishes_a_pending_sum_and_places_its_result(form: str) -> None:
    x, w = sh.array(X, "f32[8@dp, 16@tp]"), sh.array(W, "f32[16@tp, 8]")
    if form == "in a scan":  # the carry comes in as it goes out
        w = sh.reshard(w, "[16, 8]")
        x = sh.reshard(x, "[8@dp, 16]")
    y = sh.lift(FORMS[form])(x, w)
    assert str(y.type) == "f32[8@dp,8]"
    assert_close(denoted(y), X @ W, 100)


@pytest.mark.one_in(13)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_through_an_annotation_are_those_of_one_device(form: str) -> None:
    x, w = sh.array(X, "f32[8@dp, 16]"), sh.array(W, "f32[16, 8]")
    wanted = jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.sin(x @ w)), argnums=(0, 1)))(X, W)
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
    with pytest.raises(sh.ShardingTypeError, match=r"does not take f32\[8@dp,16@tp\]") as caught:
        sh.lift(lambda x: jax.lax.with_sharding_constraint(x, P("data")))(sh.array(X, "f32[8@dp, 16@tp]"))
    assert "data of P('data',) is not found" in caught.value.why
    assert "test_annotations.py" in caught.value.where


def test_a_constant_that_a_program_places_is_placed() -> None:
    made = sh.lift(lambda x: (jnp.zeros((8, 4), out_sharding=P("dp")), jnp.ones(3), x))(sh.array(X, "f32[8@dp, 16]"))
    assert str(made[0].type) == "f32[8@dp,4]"
    assert type(made[1]) is not type(made[0])


def test_modules_of_a_library_take_annotations_as_they_are() -> None:
    x = sh.array(X, "f32[8@dp, 16@tp]")
    embed, linear = nnx.Embed(4, 8, rngs=nnx.Rngs(0)), nnx.Linear(16, 8, rngs=nnx.Rngs(0))
    rows = sh.lift(lambda x: embed(jnp.argmax(x[:, :4], 1), out_sharding=P("dp")) + x[:, :1])(
        sh.reshard(x, "[8@dp, 16]")
    )
    assert rows.type.dims[0].axes == ("dp",)
    assert str(sh.lift(lambda x: linear(x, out_sharding=P("dp")))(x).type) == "f32[8@dp,8]"


def test_the_sharding_of_an_argument_is_what_its_type_says() -> None:
    seen: dict[str, Any] = {}

    def program(x: Any, w: Any) -> Any:
        seen.update(x=jax.typeof(x).sharding, w=jax.typeof(w).sharding, mesh=jax.sharding.get_abstract_mesh())
        return jax.lax.with_sharding_constraint(x * 2, jax.typeof(x).sharding)

    x = sh.array(X, "f32[8@dp, 16@tp]")
    assert sh.lift(program)(x, sh.array(W, "f32[16@(tp,dp), 8]")).type == x.type
    assert (seen["x"].spec, seen["w"].spec) == (P("dp", "tp"), P(("tp", "dp"), None))
    assert seen["mesh"].axis_names == ("dp", "tp") == seen["x"].mesh.axis_names
    assert seen["mesh"].axis_sizes == (2, 4)


#: Annotations with the sharding of a value that the program makes itself, or that a function of it is given.
SAME: dict[str, Callable[[Any, Any], Any]] = {
    "constraint": lambda x, w: jax.lax.with_sharding_constraint(x @ w, jax.typeof(jnp.sin(x[:, :8])).sharding),
    "reshard": lambda x, w: jax.reshard(x @ w, jax.typeof(x[:, :8] * 2).sharding),
    "einsum": lambda x, w: jnp.einsum("ab,bc->ac", x, w, out_sharding=jax.typeof(x[:, :8] * 2).sharding),
    "jit": lambda x, w: jax.jit(jnp.matmul, out_shardings=jax.typeof(x[:, :8] + 1).sharding)(x, w),
    "in jit": jax.jit(lambda x, w: jax.reshard(x @ w, jax.typeof(x).sharding)),
    "in a jit for each": lambda x, w: [
        f := jax.jit(lambda y: jax.reshard(y * 2, jax.typeof(y).sharding)),
        jax.reshard(x @ w, jax.typeof(f(x[:, :8])).sharding) + 0 * jnp.sum(f(w)),
    ][1],
    "in vmap": lambda x, w: jax.vmap(lambda y, z: jax.reshard(y, jax.typeof(z).sharding), (0, None))(
        (x @ w)[None].repeat(2, 0), x[:, :8] * 2
    )[0],
    "in scan": lambda x, w: jax.lax.scan(
        lambda c, _: (jax.reshard(x @ w, jax.typeof(c).sharding), None), x[:, :8] * 0, None, length=2
    )[0],
    "auto_axes": lambda x, w: jax.sharding.auto_axes(jnp.matmul, out_sharding=jax.typeof(x[:, :8] * 1).sharding)(x, w),
    "spec": lambda x, w: jax.reshard(x @ w, jax.typeof(jnp.cos(x[:, :8])).sharding.spec),
    "parts of a spec": lambda x, w: jax.reshard(x @ w, P(*jax.typeof(x * 2).sharding.spec[:1], None)),
    "an entry of a spec": lambda x, w: jax.lax.with_sharding_constraint(
        x @ w, jax.NamedSharding(jax.sharding.get_abstract_mesh(), P(jax.typeof(x * 2).sharding.spec[0]))
    ),
    "specs of two values": lambda x, w: jax.reshard(
        x @ w, P(jax.typeof(x + 1).sharding.spec[0], jax.typeof(w + 1).sharding.spec[1])
    ),
    "in auto_axes in a jit": jax.jit(
        lambda x, w: jax.sharding.auto_axes(jnp.matmul, out_sharding=P(jax.typeof(x).sharding.spec[0]))(x, w)
    ),
    "an entry, in vmap": lambda x, w: jax.vmap(lambda y, z: jax.reshard(y, P(jax.typeof(z).sharding.spec[0])), (0, 1))(
        (x @ w)[None].repeat(2, 0), jnp.stack([x, x], 1)
    )[0],
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("form", SAME)
def test_the_sharding_of_another_value_is_how_that_lies(form: str) -> None:
    x, w = sh.array(X, "f32[8@dp, 16]"), sh.array(W, "f32[16, 8]")
    y = sh.lift(SAME[form])(x, w)
    assert str(y.type) == "f32[8@dp,8]"
    assert_close(denoted(y), X @ W, 100)
    gradient = sh.jit(sh.grad(lambda x: sh.all_reduce(sh.sum(sh.sin(sh.lift(SAME[form])(x, w))), "dp")))(x)
    assert_close(denoted(gradient), np.cos(X @ W) @ W.T, 400)


@pytest.mark.parametrize(
    "ask",
    [
        lambda spec: spec[0] == "dp",
        lambda spec: "dp" in spec,
        lambda spec: jax.sharding.get_abstract_mesh().shape[spec[0]],
        lambda spec: spec[0] == spec[1],
    ],
)
def test_what_is_not_known_while_a_program_is_traced_is_refused_in_words(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(sh.ShardingTypeError, match="of a value that it makes itself") as caught:
        sh.lift(lambda x: [jax.reshard(x, P("dp")), ask(jax.typeof(x * 2).sharding.spec)])(
            sh.array(X, "f32[8@dp, 16@tp]")
        )
    assert "test_annotations.py" in caught.value.where


@pytest.mark.parametrize("spec", [P("dp", None, None), P("dp", "dp"), P(("dp", "dp")), P("ep"), P(3)], ids=str)
@pytest.mark.parametrize(
    "annotate",
    [jax.reshard, jax.device_put, lambda x, spec: jnp.zeros(x.shape, out_sharding=spec)],
    ids=["reshard", "device_put", "zeros"],
)
def test_a_spec_that_is_none_of_the_value_is_refused_on_its_line(
    annotate: Callable[[Any, Any], Any], spec: Any
) -> None:
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.lift(lambda x: annotate(x, spec))(sh.array(X, "f32[8@dp, 16]"))
    assert "test_annotations.py" in caught.value.where
    assert "a part of shtypes" not in str(caught.value)


def test_a_memory_is_no_annotation() -> None:
    with pytest.raises(sh.ShardingTypeError, match="puts a value into a memory"):
        sh.lift(lambda x: jax.device_put(x, jax.memory.Space.Host))(sh.array(X, "f32[8@dp, 16]"))


def test_no_function_of_jax_is_another_in_a_trace() -> None:
    modules = (jnp, jax.lax, jax.random, jax.nn, jax, jax.sharding)
    own = [(m, name, f) for m in modules for name, f in vars(m).items() if callable(f)]
    others: list[str] = []

    def program(x: Any) -> Any:
        others.extend(name for m, name, f in own if getattr(m, name) is not f)
        return x + 1

    sh.lift(program)(sh.array(X, "f32[8@dp, 16@tp]"))
    assert not others
