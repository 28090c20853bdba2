"""Plain JAX arrays in and out of the typed world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shtypes as sh
from tests.end_to_end import close, host, source

m: Any = sh  # for calls that a type checker refuses too

X = np.random.default_rng(8).normal(size=(4, 8)).astype(np.float32)
SPECS = [(P(), "[4,8]{I:(x,y)}"), (P("x"), "[4@x,8]{I:y}"), (P(("x", "y")), "[4@(x,y),8]"), (P("y", "x"), "[4@y,8@x]")]


@pytest.fixture(autouse=True)
def mesh() -> Iterator[Any]:
    found = sh.make_mesh({"x": 2, "y": 2})
    with sh.use_mesh(found):
        yield found


def total(x: Any) -> Any:
    return sh.reshard(sh.sum(x * x * X), "[]{I:(x,y)}").to_jax()


@pytest.mark.one_in(9)
@pytest.mark.core
@pytest.mark.parametrize(("spec", "text"), SPECS, ids=[text for _, text in SPECS])
def test_an_array_of_jax_means_what_jax_says_and_goes_back_free(mesh: Any, spec: Any, text: str) -> None:
    plain = jax.device_put(X, NamedSharding(mesh, spec))
    x = sh.from_jax(plain)
    assert x.type == sh.ShType.parse(f"f32{text}")
    close(host(x), X, text, 0)
    assert x.to_jax().sharding.is_equivalent_to(plain.sharding, 2)
    for gradient in (jax.grad(lambda v: total(sh.from_jax(v))), jax.grad(lambda v: total(sh.from_jax(v, "[4@y,8]")))):
        close(gradient(plain), 2 * X * X, text)
        close(jax.jit(gradient)(plain), 2 * X * X, text)


def test_pending_arrays_of_jax_keep_their_state(mesh: Any) -> None:
    reduced = sh.from_jax(jax.device_put(X, NamedSharding(mesh, P(None, None, reduced={"x"}))))
    assert reduced.type == sh.ShType.parse("f32[4,8]{R:x,I:y}")
    lhs = jax.device_put(X, NamedSharding(mesh, P(None, "x")))
    rhs = jax.device_put(X.T.copy(), NamedSharding(mesh, P("x", None)))
    out = NamedSharding(mesh, P(None, None, unreduced={"x"}))
    product = jax.jit(lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=out))(lhs, rhs)
    pending = sh.from_jax(product)
    assert pending.type == sh.ShType.parse("f32[4,4]{U:x,I:y}")
    close(host(pending), X @ X.T, "unreduced")
    close(host(sh.array(np.ones((4, 4), np.float32)) + product), X @ X.T + 1, "as an operand")
    with pytest.raises(sh.ShardingTypeError, match="inside a traced function"):
        jax.jit(sh.from_jax)(product)


@pytest.mark.parametrize("device", [0, 7])
def test_an_array_on_one_device_is_replicated_or_takes_a_type(device: int) -> None:
    plain = jax.device_put(X, jax.devices()[device])
    assert sh.from_jax(plain).type == sh.ShType.parse("f32[4,8]{I:(x,y)}")
    close(host(sh.from_jax(plain, "[4@x,8]{U:y}")), X, "typed", 0)


def test_axes_of_jax_s_automatic_mode_need_a_type() -> None:
    auto = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    plain = jax.device_put(X, NamedSharding(auto, P("x")))
    assert sh.from_jax(plain).type == sh.ShType.parse("f32[4@x,8]{I:y}")
    with sh.use_mesh(auto):
        with pytest.raises(sh.ShardingTypeError, match="automatic mode"):
            jax.jit(sh.from_jax)(plain)
        close(jax.jit(lambda v: sh.all_reduce(sh.from_jax(v, "[4,8]{U:x}")).to_jax())(plain), X, "auto", 0)
        close(jax.jit(jax.grad(lambda v: total(sh.from_jax(v, "[4@x,8]"))))(plain), 2 * X * X, "auto gradient")


def test_traced_plain_arrays_are_operands(mesh: Any) -> None:
    x = sh.array(X, "[4@x,8@y]")
    plain = jax.device_put(X, NamedSharding(mesh, P("x")))
    close(host(jax.jit(lambda v, x: x * v)(plain, x)), X * X, "float")
    close(host(jax.jit(lambda v, x: x * v)(jnp.asarray(X > 0), x)), X * (X > 0), "bool", 0)
    close(host(jax.jit(lambda n, x: x + n)(3, x)), X + 3, "weak integer")
    close(jax.grad(lambda v: total(sh.array(X, "[4@x,8]") * v))(plain), 2 * X**4, "gradient")


def test_results_work_in_jax() -> None:
    x = sh.array(X, "[4@x,8@y]")
    assert jax.typeof(jnp.sin(x.to_jax())).sharding.spec == P("x", "y")
    close(jax.jit(lambda x: jnp.sin(x.to_jax()))(x), np.sin(X), "jit")
    gradient = jax.grad(lambda x: jnp.sum(x.to_jax() ** 2))(sh.array(X, "[4,8]{R:(x,y)}"))
    assert gradient.type == sh.ShType.parse("f32[4,8]{U:(x,y)}")
    close(host(gradient), 2 * X, "gradient")


@pytest.mark.parametrize(
    "fn",
    [
        lambda: sh.from_jax(X),
        lambda: sh.from_jax(sh.array(X)),
        lambda: sh.from_jax(jnp.asarray(X), "bf16[4,8]"),
        lambda: sh.from_jax(jnp.asarray(X), "[4,9]"),
        lambda: m.to_jax(X),
        lambda: sh.to_jax(sh.array(X, "[4,8]{U:x}")),
        lambda: sh.ones("f32[4]{V:x}").to_jax(),
        lambda: jax.jit(sh.to_jax)(sh.array(X, "[4,8]{U:x}")),
    ],
    ids=source,
)
def test_what_has_no_counterpart_is_refused_with_the_line(fn: Callable[[], Any]) -> None:
    with pytest.raises(sh.ShardingTypeError) as raised:
        fn()
    assert raised.value.where.startswith("test_conversion.py:")
