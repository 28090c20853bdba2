"""`einsum`, `matmul`, `dot` and `tensordot` against JAX on one device, over random types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import check, close, sampled, some

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def equation(text: str) -> Callable[..., Any]:
    return lambda m, *xs: m.einsum(text, *xs)


def operands_of(text: str) -> list[Any]:
    return [arr(*(4,) * len(labels.replace("...", "b"))) for labels in text.partition("->")[0].split(",")]


#: Equations, of operands in which each label has four elements.
EQUATIONS = (
    *("ij->ij", "ij->ji", "ij->i", "ij->", "ii->i", "ii->", "ii", "iij->ij", "ba", "...i->...", "ij,jk->ik", "ij,jk"),
    *("ij,ij->", "ij,ij->ij", "i,j->ij", "i,i", "i,->i", ",->", "iij,j->i", "ii,ii->i", "ij,jj->i", "bij,bjk->bik"),
    *("bij,jk->bk", "ij,k->i", "...ij,...jk->...ik", "...ij,...jk", "i...,j...->ij...", "ij,jk,kl->il"),
    *("ij,ij,ij->ij", "i,ij,j->", "ij,jk,kl,lm->im"),
)
MESHES = [{"x": 2}, {"x": 4}, {"x": 2, "y": 2}, {"x": 2, "y": 4}]


@pytest.mark.one_in(11)
@pytest.mark.parametrize("axes", MESHES, ids=lambda axes: "x".join(map(str, axes.values())))
def test_every_equation_that_types_is_right_forward_and_backward(axes: dict[str, int]) -> None:
    mesh = sh.make_mesh(axes)
    cases = [
        case
        for seed, text in enumerate(EQUATIONS[:: 1 if mesh.axis_sizes[-1] == 2 else some(4, 2)])
        for case in sampled(mesh, equation(text), *operands_of(text), id=text, count=some(1, 5), seed=seed)
    ]
    assert len(cases) > some(4, 20)
    check(mesh, cases)


def test_the_gradient_of_a_real_operand_beside_a_complex_one_is_real() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    w, z = np.arange(4, dtype=np.float32), np.complex64(1 + 2j)

    def loss(m: Any, w: Any, z: Any) -> Any:
        return m.sum(m.real(m.einsum(",i->i", z, w) * (2 - 1j)))

    x = sh.array(w, "f32[4@x]")
    found = sh.grad(lambda w: loss(sh, w, z))(x)  # at once: each op is compiled alone
    close(np.asarray(found), jax.grad(lambda w: loss(jnp, w, z))(w), "the gradient")
    assert str(found.type) == "f32[4@x]"
