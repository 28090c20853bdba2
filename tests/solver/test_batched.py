"""What is computed of each row by itself: a plan with its rows sharded sends the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import shtypes as sh
from tests.solver.models import f32

ROWS, SIZE = 8, 4
MESHES: Final[tuple[Mapping[str, int], ...]] = ({"x": 4}, {"x": 2, "y": 2, "z": 2})


def _projected(a: Any, b: Any, r: Any) -> Any:
    """The projection of a distribution to fixed atoms: two updates, by indices that one group of equations gives."""
    atoms = jnp.linspace(-2.0, 2.0, SIZE)
    moved = (jnp.clip(r[:, None] + 0.9 * atoms, -2, 2) + 2) / (4 / 3)
    below, above = jnp.floor(moved).astype(int), jnp.ceil(moved).astype(int)
    p, rows = jax.nn.softmax(b), jnp.arange(ROWS)[:, None]
    table = jnp.zeros((ROWS, SIZE)).at[rows, below].add(p * (above - moved + (below == above)))
    return table.at[rows, above].add(p * (moved - below))


def _conjugate_gradients(a: Any, b: Any, r: Any) -> Any:
    def solved(a: Any, b: Any) -> Any:
        return jax.scipy.sparse.linalg.cg(lambda x: a @ (a.T @ x) + x, b, maxiter=2)[0]

    return jax.vmap(solved)(a, b)


@jax.custom_vjp
def _implicit(a: Any, b: Any) -> Any:
    return jnp.linalg.solve(a, b[..., None])[..., 0]


def _implicit_forward(a: Any, b: Any) -> Any:
    x = _implicit(a, b)
    return x, (a, x)


def _implicit_backward(kept: Any, ct: Any) -> Any:
    a, x = kept
    w = jnp.linalg.solve(jnp.swapaxes(a, -1, -2), ct[..., None])[..., 0]
    return -w[..., :, None] * x[..., None, :], w


_implicit.defvjp(_implicit_forward, _implicit_backward)

PROGRAMS: Final[dict[str, Callable[..., Any]]] = {
    "solve": lambda a, b, r: jax.vmap(jnp.linalg.solve)(a + 3 * jnp.eye(SIZE), b),
    "least squares": jax.vmap(lambda a, b, r: jnp.linalg.lstsq(a, b)[0]),
    "conjugate gradients": _conjugate_gradients,
    "implicit derivative": lambda a, b, r: _implicit(a + 3 * jnp.eye(SIZE), b),
    "branches of each row": jax.vmap(lambda a, b, r: lax.cond(r > 0, lambda a, b: a @ b, lambda a, b: a.T @ b, a, b)),
    "loop": lambda a, b, r: lax.fori_loop(0, 3, lambda i, c: jnp.einsum("bij,bj->bi", a, c), b),
    "projected distribution": _projected,
}


@pytest.mark.one_in(10)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_by_themselves_send_the_loss(name: str, mesh: Mapping[str, int]) -> None:
    axes, n = ",".join(mesh), 1
    for size in mesh.values():
        n *= size

    def loss(a: Any, b: Any, r: Any, c: Any) -> Any:
        return jnp.sum(PROGRAMS[name](a, b, r) * c)

    fixed = {"a": f"[_@({axes}), _, _]", "b": f"[_@({axes}), _]", "r": f"[_@({axes})]", "c": f"[_@({axes}), _]"}
    args = f32(ROWS, SIZE, SIZE), f32(ROWS, SIZE), f32(ROWS), f32(ROWS, SIZE)
    quickest = sh.suggest(loss, *args, mesh=mesh, grad=True, fixed=fixed)[0]
    assert quickest.bytes == quickest.ledger.total.bytes == 2 * 4 * (n - 1) // n
