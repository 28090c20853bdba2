"""Samples and initialisers are the same array to the last bit on 1, 2 and 8 devices, and that of `jax.random`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import close, host
from tests.numerics.test_random import SAMPLERS as OF_PARTS
from tests.tolerance import assert_close

MESHES = [{"x": 1, "y": 1}, {"x": 2, "y": 1}, {"x": 2, "y": 4}]
TYPES = ["[8@x,16]", "[8@y,16@x]", "[8,16@(x,y)]"]
KEY = 7
A = np.linspace(0.5, 3, 16, dtype=np.float32)
COV = (np.eye(16) + 0.1).astype(np.float32)
ROWS = np.arange(8 * 5, dtype=np.float32).reshape(8, 5)
LOGITS = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
S = (8, 16)

#: A sample of a type, and of the same numbers by JAX.
SAMPLERS: dict[str, tuple[Any, Any]] = {
    "lognormal": (lambda k, t: sh.random.lognormal(k, 0.5, t), lambda k: jax.random.lognormal(k, 0.5, S)),
    "rayleigh": (lambda k, t: sh.random.rayleigh(k, 2.0, t), lambda k: jax.random.rayleigh(k, 2.0, S)),
    "pareto": (lambda k, t: sh.random.pareto(k, 2.0, t), lambda k: jax.random.pareto(k, 2.0, S)),
    "weibull_min": (lambda k, t: sh.random.weibull_min(k, 2, 3, t), lambda k: jax.random.weibull_min(k, 2.0, 3.0, S)),
    "triangular": (
        lambda k, t: sh.random.triangular(k, 0, 1, 3, t),
        lambda k: jax.random.triangular(k, 0.0, 1.0, 3.0, S),
    ),
    "geometric": (lambda k, t: sh.random.geometric(k, 0.3, t), lambda k: jax.random.geometric(k, 0.3, S)),
    "gamma": (lambda k, t: sh.random.gamma(k, A, t), lambda k: jax.random.gamma(k, A, S)),
    "beta": (lambda k, t: sh.random.beta(k, 2.0, A, t), lambda k: jax.random.beta(k, 2.0, A, S)),
    "t": (lambda k, t: sh.random.t(k, 3.0, t), lambda k: jax.random.t(k, 3.0, S)),
    "chisquare": (lambda k, t: sh.random.chisquare(k, 3.0, t), lambda k: jax.random.chisquare(k, 3.0, S)),
    "poisson": (lambda k, t: sh.random.poisson(k, A, t), lambda k: jax.random.poisson(k, A, S)),
    "binomial": (lambda k, t: sh.random.binomial(k, 9.0, 0.3, t), lambda k: jax.random.binomial(k, 9.0, 0.3, S)),
    "maxwell": (sh.random.maxwell, lambda k: jax.random.maxwell(k, S)),
    "rayleigh of an array": (lambda k, t: sh.random.rayleigh(k, A, t), lambda k: jax.random.rayleigh(k, A, S)),
    "dirichlet": (lambda k, t: sh.random.dirichlet(k, A, t), lambda k: jax.random.dirichlet(k, A, (8,))),
    "multivariate_normal": (
        lambda k, t: sh.random.multivariate_normal(k, A, COV, t),
        lambda k: jax.random.multivariate_normal(k, A, COV, (8,)),
    ),
    "orthogonal": (lambda k, t: sh.random.orthogonal(k, 8, t, m=16), lambda k: jax.random.orthogonal(k, 8, m=16)),
    "ball": (lambda k, t: sh.random.ball(k, 16, 2, t), lambda k: jax.random.ball(k, 16, 2, (8,))),
    "choice": (lambda k, t: sh.random.choice(k, 20, t), lambda k: jax.random.choice(k, 20, S)),
    "choice without replacement": (
        lambda k, t: sh.random.choice(k, 200, t, replace=False),
        lambda k: jax.random.choice(k, 200, S, replace=False),
    ),
    "choice by weight": (
        lambda k, t: sh.random.choice(k, 16, t, p=A / 28),
        lambda k: jax.random.choice(k, 16, S, p=A / 28),
    ),
    "init uniform": (sh.init.uniform(2.0), jax.nn.initializers.uniform(2.0)),
    "init truncated_normal": (sh.init.truncated_normal(), jax.nn.initializers.truncated_normal()),
    "init orthogonal": (sh.init.orthogonal(2.0), jax.nn.initializers.orthogonal(2.0)),
    "init constant": (sh.init.constant(3.0), jax.nn.initializers.constant(3.0)),
    "init zeros": (sh.init.zeros, jax.nn.initializers.zeros),
    "init ones": (sh.init.ones, jax.nn.initializers.ones),
    **{
        f"init {name}": (getattr(sh.init, name)(), getattr(jax.nn.initializers, name)())
        for name in (
            "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "lecun_normal", "lecun_uniform",
        )
    },
}  # fmt: skip


def wanted_of(name: str, f: Callable[..., Any], key: Any) -> Any:
    return f(key, S) if name.startswith("init ") and name in SAMPLERS else f(key)


ALL = OF_PARTS | SAMPLERS
#: What compiles quickly: among them every initialiser.
QUICK = [n for n in ALL if n.startswith("init") and n != "init by outputs"] + ["geometric", "choice"]


def check_alike(names: list[str]) -> None:
    first: dict[str, Any] = {}
    for axes, t in zip(MESHES, TYPES, strict=True):
        sh.set_mesh(sh.make_mesh(axes))
        run = sh.jit(lambda key, t=t: {name: ALL[name][0](key, t) for name in names})
        for name, value in jax.block_until_ready(run(sh.random.key(KEY))).items():
            assert value.type == sh.ShType.parse(t, value.type.mesh, like=value.type)
            found = host(value)
            close(found, first.setdefault(name, found), f"{name} of {t} on {axes}")
    wanted = jax.jit(lambda key: {name: wanted_of(name, ALL[name][1], key) for name in names})(jax.random.key(KEY))
    for name, found in first.items():
        assert found.dtype == wanted[name].dtype, name
        close(found, wanted[name], name)


@pytest.mark.nightly
def test_initialisers_and_samples_are_the_same_on_every_mesh() -> None:
    check_alike(QUICK)


@pytest.mark.nightly
def test_all_samples_are_the_same_on_every_mesh() -> None:
    check_alike([name for name in ALL if name not in QUICK])


def test_every_initialiser_is_among_them() -> None:
    public = {n for n in vars(sh.init) if n[0].islower() and hasattr(jax.nn.initializers, n)}
    tested = {name.removeprefix("init ") for name in QUICK}
    assert public - tested == {  # the next test has the first, others are names of those above
        "delta_orthogonal", "kaiming_normal", "kaiming_uniform", "variance_scaling", "xavier_normal", "xavier_uniform",
    }  # fmt: skip
    for other, name in (("kaiming", "he"), ("xavier", "glorot")):
        for kind in ("normal", "uniform"):
            assert getattr(sh.init, f"{other}_{kind}") is getattr(sh.init, f"{name}_{kind}")


@pytest.mark.nightly
def test_kernels_are_initialised_alike() -> None:
    plain = jax.nn.initializers.delta_orthogonal()(jax.random.key(KEY), (3, 4, 8))
    for axes in MESHES:
        sh.set_mesh(sh.make_mesh(axes))
        found = sh.init.delta_orthogonal()(sh.random.key(KEY), "f32[3, 4@x, 8@y]")
        assert_close(host(found), plain)


@pytest.mark.nightly
def test_rows_and_classes_are_chosen_as_in_jax() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    key, plain = sh.random.key(KEY), jax.random.key(KEY)
    rows = sh.array(ROWS, "[8@x,5]")
    sampled = sh.random.choice(key, rows, "[4@y]")
    assert sampled.type == sh.ShType.parse("f32[4@y,5]{U:x}", sampled.type.mesh)
    np.testing.assert_array_equal(host(sampled), jax.random.choice(plain, ROWS, (4,)))
    more = sh.random.categorical(key, sh.array(LOGITS, "[8@x,16]"), shape=(3, 8))
    np.testing.assert_array_equal(host(more), jax.random.categorical(plain, LOGITS, shape=(3, 8)))


@pytest.mark.nightly
def test_orders_and_samples_without_replacement_are_those_of_jax() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    key, plain = sh.random.key(KEY), jax.random.key(KEY)
    mixed = sh.random.permutation(key, sh.array(ROWS, "[_,_]"), axis=1, independent=True)
    np.testing.assert_array_equal(host(mixed), jax.random.permutation(plain, ROWS, axis=1, independent=True))
    unlike = sh.random.categorical(key, LOGITS, shape=(3, 8), replace=False)
    np.testing.assert_array_equal(host(unlike), jax.random.categorical(plain, LOGITS, shape=(3, 8), replace=False))


@pytest.mark.nightly
def test_classes_are_sampled_where_no_device_has_all_of_them() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    key, wanted = sh.random.key(KEY), jax.random.categorical(jax.random.key(KEY), LOGITS)
    logits = sh.array(LOGITS, "[8@x,16@y]")
    np.testing.assert_array_equal(host(sh.random.categorical(key, logits, out="[8@x]")), wanted)
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.random.categorical(key, logits)
    assert 'sh.random.categorical(..., out="[8@x]")' in str(caught.value)


@pytest.mark.nightly
def test_a_gamma_sample_has_a_gradient() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    found = sh.grad(lambda a: sh.sum(sh.random.gamma(sh.random.key(KEY), a, "[16@x]")))(sh.array(A, "[16]"))
    assert found.type == sh.ShType.parse("f32[16]{U:x}", found.type.mesh)
    wanted = jax.jit(jax.grad(lambda a: jnp.sum(jax.random.gamma(jax.random.key(KEY), a, (16,)))))(A)
    assert_close(host(found), wanted)


def test_keys_come_from_their_words() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    key = sh.random.key(KEY)
    again = sh.random.wrap_key_data(sh.random.key_data(key))
    np.testing.assert_array_equal(host(sh.random.bits(again, (4,))), host(sh.random.bits(key, (4,))))
    assert sh.random.key_impl(key) == jax.random.key_impl(jax.random.key(0))
    np.testing.assert_array_equal(host(sh.random.bits(sh.random.clone(key))), host(sh.random.bits(key)))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda k: sh.random.gamma(k, sh.ones("f32[4@x]")), "`gamma` acts along dim 0, which is sharded"),
        (lambda k: sh.random.gamma(k, sh.ones("f32[4]{U:x}")), "`gamma` is nonlinear in rhs"),
        (lambda k: sh.random.gamma(k, A, "[4]"), "`gamma` of parameters of shape [16] cannot make f32[4]"),
        (lambda k: sh.random.orthogonal(k, 4, "[3,4]"), "`orthogonal` of parameters of shape [4, 4] cannot make"),
        (lambda k: sh.random.dirichlet(k, 1.0), "`dirichlet` needs a vector, not"),
        (lambda k: sh.random.wrap_key_data(sh.zeros("f32[2]")), "the words of a key are u32[..., n], not f32[2]"),
        (lambda k: sh.random.categorical(k, LOGITS, shape=(3,)), "the shape of `categorical` ends in that of the rows"),
    ],
)  # fmt: skip
def test_what_cannot_be_sampled_says_why(call: Callable[[Any], Any], what: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    with pytest.raises(sh.ShardingTypeError) as caught:
        call(sh.random.key(0))
    assert caught.value.what.startswith(what)


def test_samples_have_types_where_there_are_no_devices() -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 64})):
        key = sh.random.key(0)
        assert sh.random.key_impl(key) == "threefry2x32"
        assert str(sh.typeof(sh.random.gamma(key, 2.0, "[128@x]"))) == "f32[128@x]"
        assert str(sh.typeof(sh.random.permutation(key, 8))) == "i32[8]"
        assert str(sh.typeof(sh.random.choice(key, 8, "[64@x]"))) == "i32[64@x]"
        assert str(sh.typeof(sh.init.orthogonal()(key, "f32[128@x, 4]"))) == "f32[128@x,4]"


def test_bounds_of_a_truncated_normal_may_be_arrays() -> None:
    low = np.linspace(-1, 0.5, 4, dtype=np.float32)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        samples = sh.random.truncated_normal(sh.random.key(0), low, 1.0, "f32[4@x]")
    expected = jax.random.truncated_normal(jax.random.key(0), low, 1.0, (4,), np.float32)
    np.testing.assert_allclose(np.asarray(samples), np.asarray(expected), rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.mesh({"x": 2, "y": 4})
def test_a_varying_sample_that_is_computed_in_full_is_another_one_on_each_device() -> None:
    parts = host(sh.reinterpret(sh.random.gamma(sh.random.key(KEY), 2.0, "f32[3]{V:(x,y)}"), x=0, y=0))
    for i, j in np.ndindex(2, 4):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(KEY), i), j)
        assert_close(parts.reshape(2, 4, 3)[i, j], jax.random.gamma(key, 2.0, (3,)))
