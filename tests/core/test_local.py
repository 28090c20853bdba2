"""Local functions and their derivatives: what is bound for them, and that it is found once for all like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.core.local import Local, local_p

m: Any = sh  # for calls that a type checker refuses too


pytestmark = pytest.mark.mesh({"x": 2})


def square(x: Any, y: Any) -> Any:
    return x * x * y


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "two operands": (m.multiply, ("f32[4@x,3]", "f32[4@x,3]")),
    "one operand twice": (square, ("f32[4@x,3]", "f32[4@x,3]")),
    "broadcast": (m.multiply, ("f32[4@x,3]", "f32[3]")),
    "two dtypes, which JAX transposes": (m.multiply, ("f32[4@x,3]", "bf16[4@x,3]")),
    "einsum": (lambda x, w: m.einsum("ij,jk->ik", x, w), ("f32[4,6@x]", "f32[6@x,2]")),
    "einsum that loses a label": (lambda x, w: m.einsum("ij,jk->i", x, w), ("f32[4,6@x]", "f32[6@x,2]")),
    "a product of products": (lambda x, y: (x * y) * (x + y), ("f32[4@x,3]", "f32[4@x,3]")),
    "used before": (lambda x, y: m.einsum("ij,j->i", x * y, y) * m.sum(x, 1), ("f32[4@x,3]", "f32[3]")),
}


def zeros(*texts: str) -> tuple[Any, ...]:
    return tuple(sh.zeros(text) for text in texts)


@pytest.mark.parametrize(("f", "texts"), PRODUCTS.values(), ids=PRODUCTS)
def test_the_backward_pass_of_a_product_is_the_transpose_of_its_linear_program(f: Any, texts: tuple[str, ...]) -> None:
    """`jax.vjp` binds one operation for all tangents of a product, `jax.linearize` the sum of its terms."""
    xs = zeros(*texts)

    def by_vjp(ct: Any, *xs: Any) -> Any:
        return jax.vjp(f, *xs)[1](ct)

    def by_terms(ct: Any, *xs: Any) -> Any:
        return jax.linear_transpose(jax.linearize(f, *xs)[1], *xs)(ct)

    ct = sh.zeros(str(f(*xs).type.cotangent()))
    backward, terms = (jax.make_jaxpr(g)(ct, *xs) for g in (by_vjp, by_terms))
    assert str(backward) == str(terms)


@pytest.mark.parametrize(("f", "texts"), PRODUCTS.values(), ids=PRODUCTS)
def test_all_tangents_of_a_product_are_one_equation_where_they_are_only_transposed(f: Any, texts: Any) -> None:
    program = jax.make_jaxpr(f)(*zeros(*texts))
    operations = [eqn.params["operation"] for eqn in program.eqns if eqn.primitive is local_p]
    for operation in operations:
        xs = zeros(*map(str, operation.operands))

        def both(*ts: Any, operation: Local = operation, xs: Any = xs) -> Any:
            outs, _, push = operation.linearize(xs, [True] * len(xs), True)
            return outs, push(ts)

        assert len(jax.make_jaxpr(both)(*xs).eqns) <= 2, operation  # its own equation is one of them


def test_the_one_equation_computes_the_tangent() -> None:
    x, y, dx, dy = np.random.default_rng(0).normal(size=(4, 4, 3)).astype(np.float32)
    x, y, dx, dy = (sh.array(v, "f32[4@x,3]") for v in (x, y, dx, dy))
    operation = jax.make_jaxpr(m.multiply)(x, y).eqns[0].params["operation"]
    (moved,) = operation.linearize([x, y], [True, True], True)[2]([dx, dy])
    np.testing.assert_allclose(np.asarray(moved), np.asarray(dx * y + x * dy), rtol=4e-7, atol=4e-7)


def test_what_is_found_once_keeps_the_names_of_dims() -> None:
    with sh.dims(a=4, b=4):
        values = zeros("f32[a@x]", "f32[b@x]", "f32[a@x]")  # all of them live: equal types have one number then
    first, other, again = (str(jax.make_jaxpr(lambda x, y: jax.vjp(m.multiply, x, y)[1](x))(x, x)) for x in values)
    assert first == again
    assert first.count("[a@x]") == other.count("[b@x]") == 5  # two operands, the product, two cotangents


def test_a_tracer_that_left_its_trace_is_refused() -> None:
    kept = []

    def keep(x: Any) -> Any:
        kept.append(x)
        return x

    jax.vmap(keep)(sh.zeros("f32[2,4@x]"))
    with pytest.raises(sh.ShardingTypeError, match="unexpected tracer"):
        jax.make_jaxpr(lambda x: x + m.exp(kept[0]))(sh.zeros("f32[4@x]"))
