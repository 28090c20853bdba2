"""Molecular dynamics, and the losses of reinforcement learning: jax_md, rlax."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lifting.frameworks.judging import Module, array, whole
from tests.lifting.packages.programs import OVER_DATA, WHOLE, Program, cases, check, of

pytestmark = [
    pytest.mark.nightly,
    # The packages' own, of other packages and of JAX.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def _particles() -> Any:
    grid = np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(-1, 3)
    return (2.0 * grid + 0.1 * array(8, 3)).astype(np.float32)


def _jax_md_lennard_jones() -> Module:
    """Energy and forces: each pair needs both particles, so one of the two copies is whole."""
    md: Any = pytest.importorskip("jax_md")
    energy = md.energy.lennard_jones_pair(md.space.periodic(4.0)[0])
    return of(lambda r: (energy(r), md.quantity.force(energy)(r)), _particles(), particles=["[_@dp, _]"])


def _jax_md_nve() -> Module:
    md: Any = pytest.importorskip("jax_md")
    displacement, shift = md.space.periodic(4.0)
    start, step = md.simulate.nve(md.energy.soft_sphere_pair(displacement), shift, 1e-2)

    def f(r: Any) -> Any:
        last = jax.lax.fori_loop(0, 3, lambda _, s: step(s), start(jax.random.key(0), r, kT=0.1))
        return last.position, last.momentum

    return of(f, _particles(), particles=["[_@dp, _]"])


def _rlax_vtrace() -> Module:
    """Policy gradient, value and entropy over trajectories, with advantages by V-trace."""
    rlax: Any = pytest.importorskip("rlax")

    def f(w: Any, seen: Any, actions: Any, rewards: Any, discounts: Any, values: Any) -> Any:
        def one(logits: Any, a: Any, r: Any, d: Any, v: Any) -> Any:
            rhos = jnp.exp(jax.nn.log_softmax(logits)[jnp.arange(len(a)), a])
            found = rlax.vtrace_td_error_and_advantage(v[:-1], v[1:], r, d, rhos)
            ones = jnp.ones_like(r)
            policy = rlax.policy_gradient_loss(logits, a, found.pg_advantage, ones)
            return policy + 0.5 * jnp.mean(found.errors**2) + 0.01 * rlax.entropy_loss(logits, ones)

        return jnp.mean(jax.vmap(one)(seen @ w, actions, rewards, discounts, values))

    inputs = array(16, 8), array(4, 6, 16), whole(8, 4, 6), array(4, 6), np.full((4, 6), 0.9, np.float32), array(4, 7)
    types = {
        "data": [WHOLE[2], *(OVER_DATA[x.ndim] for x in inputs[1:])],
        "tensor": ["[_@tp, _]", "[_, _, _@tp]", *(WHOLE[x.ndim] for x in inputs[2:])],
        "both": ["[_@tp, _]", "[_@dp, _, _@tp]", *(OVER_DATA[x.ndim] for x in inputs[2:])],
    }
    return of(f, *inputs, **types)


#: Of a loss over data its own sum. Of particles the positions, which all pairs need, and their cotangents.
PROGRAMS: Final = {
    "jax_md-LennardJones": Program(_jax_md_lennard_jones, {"particles": 96}),
    "jax_md-NVE": Program(_jax_md_nve, {"particles": 96}),
    "rlax-V-trace": Program(_rlax_vtrace, {"data": 4, "tensor": 580, "both": 580}),
}


@pytest.mark.parametrize(("name", "layout"), cases(PROGRAMS))
def test_a_program_is_that_of_one_device(name: str, layout: str) -> None:
    check(PROGRAMS[name], layout)
