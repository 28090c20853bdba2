"""Tall matrices that are sharded by rows: each device decomposes its own, then the small factors of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from shtypes.lifting.ways.choice import way
from shtypes.ops.reinterpret import stop_gradient
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import Axes, bound, gathered, index, of_device, placed, type_of


@of_device("top")
def _stacked(r: Any, q: Any) -> Any:
    """The factor of a device beside the first rows of its orthonormal one."""
    return jnp.concatenate([r, q[..., : r.shape[-1], :]], -1)


@of_device("signs")
def _signs(top: Any) -> Any:
    """The signs of the diagonal by which Householder reflections give these first rows of an orthonormal factor.

    Each reflection takes the sign opposite to its pivot's; the pivots are those of an elimination (Ballard et al.,
    Reconstructing Householder vectors from TSQR, 2014).
    """
    n = top.shape[-1]

    def step(k: Any, state: Any) -> Any:
        a, signs = state
        pivot = a[..., k, k]
        sign = jnp.where(pivot.real >= 0, -1, 1).astype(a.dtype)
        column = jnp.where(jnp.arange(n) > k, a[..., :, k], 0) / (pivot - sign)[..., None]
        return a - column[..., :, None] * a[..., k, None, :], signs.at[..., k].set(sign)

    start = (top, jnp.ones(top.shape[:-1], top.dtype))
    return lax.fori_loop(0, n, step, start)[1]


@of_device("top")
def _top(stacked: Any, q: Any, n: int) -> Any:
    """The first rows of the product of the devices' orthonormal factors."""
    return stacked[..., :n, n:] @ q[..., :n, :]


@of_device("upper")
def _factors(stacked: Any, n: int) -> Any:
    return stacked[..., :n]


@of_device("qr")
def _qr(a: Any) -> Any:
    return jnp.linalg.qr(a)


@of_device("product")
def _product(own: Any, q: Any, signs: Any, me: Any) -> Any:
    """The device's rows of the orthonormal factor."""
    n = own.shape[-1]
    mine = lax.dynamic_slice_in_dim(q, me * n, n, q.ndim - 2)
    return own @ mine * signs[..., None, :]


@of_device("signed")
def _signed(r: Any, signs: Any) -> Any:
    return r * signs[..., :, None]


def _tall(x: Any) -> Axes:
    """The axes of the rows of a tall matrix; empty if it is none."""
    t = type_of(x)
    rows, columns = t.dims[-2:]
    return rows.axes if not columns.axes and t.local_shape[-2] >= columns.size > 0 else ()


def _decomposed(x: Any, axes: Axes) -> tuple[Any, Any]:
    """The factors of a tall matrix: the rows of each device of the orthonormal one, and the triangular one."""
    t = type_of(x)
    n, d = t.shape[-1], t.ndim - 2
    own, r = _qr(as_varying(x, axes))
    stacked = gathered(_stacked(r, own), axes, d)
    q, r = _qr(_factors(stacked, n))
    signs = _signs(stop_gradient(_top(stacked, q, n)))
    return _product(own, q, signs, index(x, axes)), _signed(r, signs)


@way("qr")
def tall_qr(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends two square matrices for each other device."""
    (x,), p = operands, eqn.params
    axes = _tall(x) if not p["full_matrices"] and not p.get("pivoting") else ()
    if not axes:
        return None
    q, r = _decomposed(x, axes)
    return [placed(q, type_of(x).ndim - 2, axes), r]


@way("svd")
def tall_svd(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends two square matrices for each other device."""
    (x,), p = operands, eqn.params
    axes = _tall(x) if not (p["compute_uv"] and p["full_matrices"]) and p.get("subset_by_index") is None else ()
    if not axes:
        return None
    q, r = _decomposed(x, axes)
    s, *vectors = bound(eqn)(r)
    if not vectors:
        return [s]
    u, v = vectors
    return [s, placed(_times(q, u), type_of(x).ndim - 2, axes), v]


@of_device("product")
def _times(q: Any, u: Any) -> Any:
    return q @ u
