"""Functions mapped over a dim of typed values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests import small_models as p

EITHER = pytest.mark.parametrize("vmap", [jax.vmap, sh.vmap], ids=["jax", "sh"])


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    return p.mesh()


def rows() -> Any:
    return sh.array(p.ROWS, "f32[5, batch@dp, hidden]")


@pytest.mark.core
@EITHER
def test_a_function_is_mapped_over_its_leading_dim(vmap: Any) -> None:
    out = vmap(sh.silu)(rows())
    assert out.type == sh.ShType.parse("f32[5,4@dp,8]")
    p.assert_close(out, p.one_device(jax.nn.silu, p.ROWS))


@EITHER
def test_an_argument_may_stay_unmapped(vmap: Any) -> None:
    x = sh.array(p.ROWS, "f32[5, 4, 8]")
    _, w, _ = p.values()
    out = vmap(lambda x, w: x @ w, in_axes=(1, None))(x, w)
    assert out.type == sh.ShType.parse("f32[4, 5, 16@tp]")
    p.assert_close(out, np.einsum("abh,hi->bai", p.ROWS, p.W_IN))


@EITHER
@pytest.mark.parametrize("out_axes", [1, 2, -1], ids=str)
def test_the_mapped_dim_goes_where_it_is_wanted(vmap: Any, out_axes: int) -> None:
    out = vmap(sh.silu, out_axes=out_axes)(rows())
    p.assert_close(out, np.moveaxis(p.one_device(jax.nn.silu, p.ROWS), 0, out_axes))


def test_a_result_that_is_not_mapped_is_repeated() -> None:
    _, w, _ = p.values()
    x, repeated = sh.vmap(lambda x, w: (x, w), in_axes=(0, None), out_axes=(0, 1))(rows(), w)
    p.assert_close(x, p.ROWS)
    assert repeated.type == sh.ShType.parse("f32[8, 5, 16@tp]")
    p.assert_close(repeated, np.stack([p.W_IN] * 5, 1))
    p.assert_close(sh.vmap(lambda: w, axis_size=2)(), np.stack([p.W_IN] * 2))


def test_a_result_may_be_promised_not_to_be_mapped() -> None:
    _, w, _ = p.values()
    _, kept = sh.vmap(lambda x, w: (x, w * 2.0), in_axes=(0, None), out_axes=(0, None))(rows(), w)
    assert kept.type == w.type
    p.assert_close(kept, 2 * p.W_IN)


def test_a_repeated_result_has_the_sum_for_its_gradient() -> None:
    _, w, _ = p.values()
    grad = sh.grad(lambda w: sh.sum(sh.vmap(lambda x, w: w, in_axes=(0, None))(rows(), w)))(w)
    p.assert_gradients(grad, w, 5 * np.ones_like(p.W_IN))


def test_trees_and_plain_arrays_are_mapped_together() -> None:
    gains = jnp.arange(5.0)
    out = sh.vmap(lambda tree: {"y": tree["x"] * tree["gain"], "n": tree["gain"]})({"x": rows(), "gain": gains})
    p.assert_close(out["y"], p.ROWS * np.arange(5.0)[:, None, None])
    np.testing.assert_array_equal(out["n"], gains)


def mapped(f: Callable[..., Any]) -> Callable[..., Any]:
    return sh.vmap(f, in_axes=(0, None, None))


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("typed", "reference"),
    [
        (mapped(sh.grad(p.loss)), jax.vmap(jax.grad(p.reference_loss), in_axes=(0, None, None))),
        (jax.jit(mapped(p.mlp)), jax.vmap(p.reference_mlp, in_axes=(0, None, None))),
        (mapped(jax.jit(p.mlp)), jax.vmap(p.reference_mlp, in_axes=(0, None, None))),
        (mapped(jax.checkpoint(sh.grad(p.loss))), jax.vmap(jax.grad(p.reference_loss), in_axes=(0, None, None))),
        (
            sh.grad(lambda x, *ws: sh.sum(mapped(p.mlp)(x, *ws)), argnums=(0, 1, 2)),
            jax.grad(lambda x, *ws: jax.vmap(lambda x: p.reference_mlp(x, *ws))(x).sum(), argnums=(0, 1, 2)),
        ),
    ],
    ids=["vmap(grad)", "jit(vmap)", "vmap(jit)", "vmap(checkpoint(grad))", "grad(vmap)"],
)
def test_a_map_composes(typed: Callable[..., Any], reference: Callable[..., Any]) -> None:
    _, w_in, w_out = p.values()
    found = typed(rows(), w_in, w_out)
    p.assert_close(found, p.one_device(reference, p.ROWS, p.W_IN, p.W_OUT))


def test_a_loop_is_mapped() -> None:
    ws = p.stack()
    found = sh.vmap(lambda x: p.looped(ws, x))(rows())
    p.assert_close(found, p.one_device(jax.vmap(lambda x: p.reference_looped(p.STACK, x)), p.ROWS))
    twice = sh.vmap(sh.vmap(sh.silu), in_axes=1, out_axes=1)(sh.array(p.ROWS, "f32[5,4,8@dp]"))
    p.assert_close(twice, p.one_device(jax.nn.silu, p.ROWS))


def test_a_mapped_loop_leaves_the_steps_that_are_done() -> None:
    x = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    halved = sh.vmap(lambda row: sh.while_loop(lambda v: sh.sum(v) > 2, lambda v: v * 0.5, row))
    wanted = np.stack([row / next(d for d in 2.0 ** np.arange(9) if row.sum() / d <= 2) for row in x])
    np.testing.assert_array_equal(np.asarray(sh.jit(halved)(sh.array(x, "[4, 2]"))), wanted)


def test_jaxs_own_does_not_map_over_a_sharded_dim() -> None:
    x = sh.array(p.X, p.X_TYPE)
    with pytest.raises(
        sh.ShardingTypeError, match=r"cannot map over dim 0 of f32\[batch@dp, hidden\].*sharded over `dp`"
    ):
        jax.vmap(sh.silu)(x)


def test_pending_sums_are_mapped() -> None:
    x, w_in, w_out = p.values()
    hidden = sh.silu(x @ w_in)
    pending = sh.vmap(lambda h: sh.einsum("i,ih->h", h, w_out), in_axes=0)(sh.all_gather(hidden, "dp"))
    assert pending.type == sh.ShType.parse("f32[4,8]{U:tp}")
    p.assert_close(pending, p.one_device(p.reference_mlp, p.X, p.W_IN, p.W_OUT))


@pytest.mark.parametrize(
    ("typed", "reference"),
    [
        (lambda x, y: x / y, lambda x, y: x / y),
        (lambda x, y: sh.interp(y, p.ROWS[0, 0], x), lambda x, y: jnp.interp(y, p.ROWS[0, 0], x)),
    ],
    ids=["quotient", "interpolation"],
)
def test_what_is_linear_in_some_operands_only_is_so_when_it_is_mapped(
    typed: Callable[..., Any], reference: Callable[..., Any]
) -> None:
    x, ys = np.arange(1.0, 9.0, dtype=np.float32), np.arange(1.0, 25.0, dtype=np.float32).reshape(3, 8)
    one, many = sh.array(x, "[8]"), sh.array(ys, "[3, 8]")
    _, moved = jax.jvp(sh.vmap(lambda row: typed(one, row)), (many,), (many,))
    _, wanted = jax.jvp(jax.vmap(lambda row: reference(x, row)), (ys,), (ys,))
    p.assert_close(moved, wanted)
