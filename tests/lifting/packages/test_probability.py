"""Gaussian processes, MCMC, models and their states: tinygp, blackjax, numpyro, dynamax."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lifting.frameworks.judging import Module, array
from tests.lifting.packages.programs import OVER_DATA, WHOLE, Program, cases, check, of

pytestmark = [
    pytest.mark.nightly,
    # The packages' own, of other packages and of JAX.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def _tinygp() -> Module:
    """A covariance of sharded points: its factors are of the whole matrix, on each device."""
    tinygp: Any = pytest.importorskip("tinygp")

    def f(theta: Any, x: Any, y: Any) -> Any:
        kernel = jnp.exp(theta[0]) * tinygp.kernels.Matern52(jnp.exp(theta[1]))
        return tinygp.GaussianProcess(kernel, x, diag=0.1).log_probability(y)

    x = np.linspace(0, 3, 16).astype(np.float32)
    return of(f, 0.1 * array(2), x, array(16), data=["[_]", "[_@dp]", "[_@dp]"])


def _density(x: Any, y: Any) -> Any:
    return lambda w: -jnp.sum(jax.nn.softplus(-y * (x @ w))) - 0.5 * jnp.sum(w**2)


def _blackjax_hmc() -> Module:
    blackjax: Any = pytest.importorskip("blackjax")

    def f(w: Any, x: Any, y: Any) -> Any:
        kernel = blackjax.hmc(_density(x, y), 1e-2, jnp.ones(4), num_integration_steps=3)
        return kernel.step(jax.random.key(0), kernel.init(w))[0].position

    types = {"data": ["[_]", "[_@dp, _]", "[_@dp]"], "both": ["[_@tp]", "[_@dp, _@tp]", "[_@dp]"]}
    return of(f, array(4), array(16, 4), np.sign(array(16)), **types)


def _blackjax_nuts() -> Module:
    """Its loop ends when it turns: no gradient goes through it, in plain JAX neither."""
    blackjax: Any = pytest.importorskip("blackjax")

    def f(w: Any, x: Any, y: Any) -> Any:
        kernel = blackjax.nuts(_density(x, y), 1e-1, jnp.ones(4), max_num_doublings=3)
        return jax.lax.stop_gradient(kernel.step(jax.random.key(0), kernel.init(w))[0].position)

    return of(f, array(4), array(16, 4), np.sign(array(16)), data=["[_]", "[_@dp, _]", "[_@dp]"])


def _numpyro() -> Module:
    numpyro: Any = pytest.importorskip("numpyro")
    infer: Any = pytest.importorskip("numpyro.infer.util")
    dist: Any = numpyro.distributions

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([4]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    def f(w: Any, scale: Any, x: Any, y: Any) -> Any:
        return infer.potential_energy(model, (x, y), {}, {"w": w, "scale": scale})

    types = {"data": ["[_]", "[]", "[_@dp, _]", "[_@dp]"], "both": ["[_@tp]", "[]", "[_@dp, _@tp]", "[_@dp]"]}
    return of(f, array(4), np.asarray(0.3, np.float32), array(16, 4), array(16), **types)


def _of_sequences(model: Any, shape: tuple[int, ...]) -> Module:
    """The log probability of a batch of sequences."""
    leaves, tree = jax.tree.flatten(model.initialize(jax.random.key(0))[0])
    leaves = [np.asarray(x) for x in leaves]

    def f(ys: Any, *leaves: Any) -> Any:
        params = jax.tree.unflatten(tree, leaves)
        return jax.vmap(lambda y: model.marginal_log_prob(params, y))(ys)

    return of(f, array(*shape), *leaves, data=[OVER_DATA[len(shape)], *(WHOLE[x.ndim] for x in leaves)])


def _dynamax_kalman() -> Module:
    dynamax: Any = pytest.importorskip("dynamax.linear_gaussian_ssm")
    return _of_sequences(dynamax.LinearGaussianSSM(2, 3), (4, 6, 3))


def _dynamax_hmm() -> Module:
    dynamax: Any = pytest.importorskip("dynamax.hidden_markov_model")
    return _of_sequences(dynamax.GaussianHMM(3, 2), (4, 6, 2))


#: A likelihood of sharded data sends its own sum, and one of each gradient that is finished on the way. A triangular
#: solve takes whole columns: the HMM's, whose batch lies in them, are gathered.
PROGRAMS: Final = {
    "tinygp-log-probability": Program(_tinygp, {"data": 80}),
    "blackjax-HMC": Program(_blackjax_hmc, {"data": 111, "both": 270}),
    "blackjax-NUTS": Program(_blackjax_nuts, {"data": 160}),
    "numpyro-potential-energy": Program(_numpyro, {"data": 4, "both": 55}),
    "dynamax-Kalman-filter": Program(_dynamax_kalman, {"data": 4}),
    "dynamax-HMM": Program(_dynamax_hmm, {"data": 120}),
}


@pytest.mark.parametrize(("name", "layout"), cases(PROGRAMS))
def test_a_likelihood_is_that_of_one_device(name: str, layout: str) -> None:
    check(PROGRAMS[name], layout)
