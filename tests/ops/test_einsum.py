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


EQUATIONS: list[tuple[str, tuple[Any, ...]]] = [
    ("ij->ij", (arr(4, 4),)),
    ("ij->ji", (arr(4, 8),)),
    ("ij->i", (arr(4, 8),)),
    ("ij->", (arr(4, 8),)),
    ("ii->i", (arr(4, 4),)),
    ("ii->", (arr(4, 4),)),
    ("ii", (arr(4, 4),)),
    ("iij->ij", (arr(4, 4, 4),)),
    ("ba", (arr(4, 8),)),
    ("...i->...", (arr(4, 4, 4),)),
    ("ij,jk->ik", (arr(4, 8), arr(8, 4))),
    ("ij,jk", (arr(4, 8), arr(8, 4))),
    ("ij,ij->", (arr(4, 8), arr(4, 8))),
    ("ij,ij->ij", (arr(4, 8), arr(4, 8))),
    ("i,j->ij", (arr(4), arr(8))),
    ("i,i", (arr(8), arr(8))),
    ("i,->i", (arr(8), arr())),
    (",->", (arr(), arr())),
    ("iij,j->i", (arr(4, 4, 4), arr(4))),
    ("ii,ii->i", (arr(4, 4), arr(4, 4))),
    ("ij,jj->i", (arr(4, 4), arr(4, 4))),
    ("bij,bjk->bik", (arr(4, 4, 4), arr(4, 4, 4))),
    ("bij,jk->bk", (arr(4, 4, 4), arr(4, 8))),
    ("ij,k->i", (arr(4, 4), arr(4))),
    ("ij,jk->ik", (arr(4, 1), arr(8, 4))),
    ("ij,ij->ij", (arr(4, 1), arr(4, 8))),
    ("...ij,...jk->...ik", (arr(4, 4, 4), arr(4, 4))),
    ("...ij,...jk", (arr(4, 1, 4, 4), arr(4, 4, 4))),
    ("i...,j...->ij...", (arr(4, 4), arr(4, 4))),
    ("ij,jk,kl->il", (arr(4, 8), arr(8, 4), arr(4, 8))),
    ("ij,ij,ij->ij", (arr(4, 4), arr(4, 4), arr(4, 4))),
    ("i,ij,j->", (arr(4), arr(4, 8), arr(8))),
    ("ij,jk,kl,lm->im", (arr(4, 4), arr(4, 4), arr(4, 4), arr(4, 4))),
    ("i,j,k,l->ijkl", (arr(4), arr(4), arr(4), arr(4))),
]
MESHES = [{"x": 2}, {"x": 4}, {"x": 2, "y": 2}, {"x": 2, "y": 4}]


@pytest.mark.one_in(11)
@pytest.mark.parametrize("axes", MESHES, ids=lambda axes: "x".join(map(str, axes.values())))
def test_every_equation_that_types_is_right_forward_and_backward(axes: dict[str, int]) -> None:
    mesh = sh.make_mesh(axes)
    cases = [
        case
        for seed, (text, operands) in enumerate(EQUATIONS[:: 1 if mesh.axis_sizes[-1] == 2 else some(4, 2)])
        for case in sampled(mesh, equation(text), *operands, id=text, count=some(1, 5), seed=seed)
    ]
    assert len(cases) > some(4, 20)
    check(mesh, cases)


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "vector @ vector": (lambda m, a, b: a @ b, (arr(8), arr(8))),
    "matrix @ vector": (lambda m, a, b: a @ b, (arr(4, 8), arr(8))),
    "vector @ matrix": (lambda m, a, b: a @ b, (arr(8), arr(8, 4))),
    "matrix @ matrix": (lambda m, a, b: a @ b, (arr(4, 8), arr(8, 4))),
    "batch @ matrix": (lambda m, a, b: a @ b, (arr(2, 4, 8), arr(8, 4))),
    "matrix @ batch": (lambda m, a, b: a @ b, (arr(4, 8), arr(2, 8, 4))),
    "batch @ vector": (lambda m, a, b: a @ b, (arr(2, 4, 8), arr(8))),
    "vector @ batch": (lambda m, a, b: a @ b, (arr(8), arr(2, 8, 4))),
    "batch @ stretched batch": (lambda m, a, b: m.matmul(a, b), (arr(2, 4, 4), arr(4, 1, 4, 4))),
    "dot of vectors": (lambda m, a, b: m.dot(a, b), (arr(8), arr(8))),
    "dot of a batch and a batch": (lambda m, a, b: m.dot(a, b), (arr(2, 4, 8), arr(4, 8, 2))),
    "dot of a batch and a vector": (lambda m, a, b: a.dot(b), (arr(2, 4, 8), arr(8))),
    "dot with a scalar": (lambda m, a, b: m.dot(a, b), (arr(4, 4), arr())),
    "tensordot over two": (lambda m, a, b: m.tensordot(a, b), (arr(2, 4, 8), arr(4, 8, 2))),
    "tensordot over none": (lambda m, a, b: m.tensordot(a, b, 0), (arr(4), arr(4, 2))),
    "tensordot over one": (lambda m, a, b: m.tensordot(a, b, 1), (arr(2, 4), arr(4, 2))),
    "tensordot over a pair": (lambda m, a, b: m.tensordot(a, b, (0, 1)), (arr(4, 2), arr(2, 4))),
    "tensordot over lists": (lambda m, a, b: m.tensordot(a, b, ([0, -1], [1, 0])), (arr(4, 2, 8), arr(8, 4, 2))),
    "tensordot over all": (lambda m, a, b: m.tensordot(a, b, 2), (arr(4, 8), arr(4, 8))),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("axes", [{"x": 2}, {"x": 2, "y": 2}], ids=lambda axes: "x".join(map(str, axes.values())))
def test_every_product_that_types_is_right_forward_and_backward(axes: dict[str, int]) -> None:
    mesh = sh.make_mesh(axes)
    cases = [
        case
        for seed, (name, (fn, operands)) in enumerate(PRODUCTS.items())
        for case in sampled(mesh, fn, *operands, id=name, count=some(2, 5), seed=seed)
    ]
    assert len(cases) > 0.5 * len(PRODUCTS)
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
