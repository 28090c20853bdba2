"""`einsum`, `matmul`, `dot` and `tensordot` against JAX on one device, over random types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.core.shard_fn import _jaxpr
from tests.end_to_end import Case, check, close, sampled, some

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


@pytest.mark.one_in(23)
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
    close(np.asarray(found), jax.jit(jax.grad(lambda w: loss(jnp, w, z)))(w), "the gradient")
    assert str(found.type) == "f32[4@x]"


# convolutions against JAX on one device, over random types


NHWC = ("NHWC", "HWIO", "NHWC")


def test_features_that_are_summed_over_give_a_pending_sum() -> None:
    mesh = sh.make_mesh({"dp": 2, "tp": 4})
    x, w = arr(4, 6, 6, 8), arr(3, 3, 8, 4)
    conv = lambda m, x, w: m.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)  # noqa: E731
    types = ("f32[4@dp,6,6,8@tp]", "f32[3,3,8,4]")
    for policy in ("partial", "jax"):
        with sh.policy(policy):
            check(mesh, [Case(conv, (x, w), types, out="f32[4@dp,6,6,4]{U:tp}")])
    half = [sh.array(v.astype("bfloat16"), t[3:], mesh=mesh) for v, t in zip((x, w), types, strict=True)]
    out = "[4@dp,6,6,4@tp]"
    y = sh.conv_general_dilated(
        half[0], half[1], (1, 1), "SAME", dimension_numbers=NHWC, preferred_element_type="f32", out=out
    )
    assert str(y.type) == "f32[4@dp,6,6,4@tp]"


def test_a_sharded_spatial_dim_is_refused_with_prices() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        sh.conv(sh.array(arr(4, 4, 6, 6), "f32[4,4,6@x,6]"), arr(8, 4, 3, 3), (1, 1), "SAME")
    error = info.value
    assert error.what == "`conv` acts along dim 2, which is sharded on mesh axis `x`"
    assert error.why == "each device holds only its slice of that dim, and the result needs all of it"
    assert {str(f) for f in error.fixes} >= {
        'sh.reshard(x, "[4@x,4,6,6]")   [forward: all-to-all over `x`, 576 B/device; '
        "backward: all-to-all over `x`, 576 B/device]",
        'sh.reshard(x, "[4,4,6,6]")   [forward: all-gather over `x`, 1152 B/device; '
        "backward: reduce-scatter over `x`, 1152 B/device]",
    }


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x, w: sh.conv(x, w, (1,), "SAME"), "`conv` does not take these arguments"),
        (lambda x, w: sh.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHW")),
         "`conv_general_dilated` does not take `dimension_numbers=('NHWC', 'HWIO', 'NHW')`"),
        (lambda x, w: sh.conv(x, w[..., :0], (1, 1), "SAME"),
         "`conv` of shapes (4, 4, 6, 6) and (8, 4, 3, 0) has windows without elements"),
    ],
)  # fmt: skip
def test_convolutions_that_do_not_fit_say_why(call: Callable[..., Any], what: str) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        call(sh.array(arr(4, 4, 6, 6), "[...]"), arr(8, 4, 3, 3))
    assert info.value.what.startswith(what)


def test_the_dtype_of_a_product_of_equal_dtypes_is_read_and_not_traced() -> None:
    _jaxpr.cache_clear()
    with sh.use_mesh(sh.abstract_mesh({"x": 2})):
        x, y, z = (sh.abstract_array(t) for t in ("f32[4@x, 6]", "f32[6, 8]", "bf16[6, 8]"))
        assert sh.einsum("ij,jk->ik", x, y).dtype == np.float32
        assert _jaxpr.cache_info().misses == 0
        assert sh.einsum("ij,jk->ik", x, z).dtype == np.float32
        assert _jaxpr.cache_info().misses > 0
