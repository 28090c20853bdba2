"""Decompositions and triangular solves of matrices that are sharded by rows: TSQR, and substitution by blocks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes._compat.jaxprs import jaxpr_of
from shtypes.core.reshard import move
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.table import BODIES
from shtypes.lifting.ways.choice import CALLS, name_of, way
from shtypes.ops.arithmetic import add, subtract
from shtypes.ops.reinterpret import stop_gradient
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import (
    Axes,
    across_shards,
    all_gather_invariant,
    all_to_all,
    as_sharded,
    axes_of,
    axis_index,
    axis_size,
    bound,
    of_device,
    part,
    psum,
    sharded,
    type_of,
)
from shtypes.types import State


def _signs(top: Any, r: Any) -> Any:
    """The signs of the diagonal of R that LAPACK's QR of all the matrix has, from the first rows of Q.

    Each reflection takes the sign opposite to its pivot's; the pivots are those of an elimination (Ballard et al.,
    Reconstructing Householder vectors from TSQR, 2014), each a part of the diagonal of ``r``. One that is zero but for
    rounding makes the diagonal negative, as LAPACK does.
    """
    n = top.shape[-1]
    zero = 8 * n * np.finfo(top.dtype).eps

    def step(k: Any, state: Any) -> Any:
        a, signs = state
        pivot = a[..., k, k]
        is_positive = jnp.where(jnp.abs(pivot.real) > zero, pivot.real, r[..., k, k].real) >= 0
        sign = jnp.where(is_positive, -1, 1).astype(a.dtype)
        column = jnp.where(jnp.arange(n) > k, a[..., :, k], 0) / (pivot - sign)[..., None]
        return a - column[..., :, None] * a[..., k, None, :], signs.at[..., k].set(sign)

    return lax.fori_loop(0, n, step, (top, jnp.ones_like(r[..., 0])))[1]


@of_device("qr")
def _qr(a: Any) -> Any:
    return jnp.linalg.qr(a)


@of_device("factors")
def _rows(own: Any, q: Any, r: Any, device: Any) -> Any:
    """A device's rows of Q, and the signs of R; zeros on other devices than the first."""
    n = own.shape[-1]
    rows = own @ lax.dynamic_slice_in_dim(q, device * n, n, q.ndim - 2)
    return rows, jnp.where(device == 0, _signs(rows[..., :n, :], r), 0)


@of_device("signed")
def _signed(q: Any, r: Any, signs: Any) -> Any:
    return q * signs[..., None, :], r * signs[..., :, None]


@of_device("quotient")
def _quotient(x: Any, r: Any) -> Any:
    return lax.linalg.triangular_solve(r, x)


@of_device("product")
def _inner(q: Any, quotient: Any) -> Any:
    return _multiplied(q.mT.conj(), quotient)


def _turn(inner: Any) -> Any:
    """The antisymmetric part of a tangent, which keeps Q orthonormal."""
    lower = jnp.tril(inner, -1)
    return lower - lower.mT.conj() + (inner - inner.real) * jnp.eye(inner.shape[-1], dtype=inner.dtype)


@of_device("tangent")
def _tangent_of_rows(q: Any, quotient: Any, inner: Any) -> Any:
    return quotient + _multiplied(q, _turn(inner) - inner)


@of_device("tangent")
def _tangent_of_triangle(r: Any, inner: Any) -> Any:
    return _multiplied(inner - _turn(inner), r)


@of_device("product")
def _times(q: Any, u: Any) -> Any:
    return q @ u


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3, 4))
def _decomposed(x: Any, axes: Axes, dim: int, name: str, has_signs: bool) -> tuple[Any, Any]:
    """A device's rows of Q, and R, with the signs of one device or any, of which singular values are the same."""
    with across_shards(name):
        own, r = _qr(x)
        q, r = _qr(all_gather_invariant(r, axes, dim))
        rows, signs = _rows(own, q, r, axis_index(x, axes))
        return tuple(_signed(rows, r, psum(signs, axes, State.INVARIANT))) if has_signs else (rows, r)


@_decomposed.defjvp
def _of_the_whole(axes: Axes, dim: int, name: str, has_signs: bool, primals: Any, tangents: Any) -> Any:
    """The JVP of the QR of all the matrix: the rows of a device may be singular."""
    q, r = _decomposed(*primals, axes, dim, name, has_signs)
    with across_shards(name):
        quotient = _quotient(*tangents, r)
        inner = psum(_inner(q, quotient), axes, State.INVARIANT)
        return (q, r), (_tangent_of_rows(q, quotient, inner), _tangent_of_triangle(r, inner))


@way("qr", "svd")
def by_small_factors(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Gathers R of all shards, one square matrix of each, where no shard has fewer rows than columns (TSQR)."""
    (x,), p, t = operands, eqn.params, type_of(operands[0])
    (rows, columns), d = t.dims[-2:], t.ndim - 2
    is_thin = not (p["full_matrices"] and p.get("compute_uv", True))
    is_all = not p.get("pivoting") and p.get("subset_by_index") is None
    is_tall = not columns.axes and t.local_shape[d] >= columns.size > 0
    if not (rows.axes and is_thin and is_all and is_tall):
        return None
    q, r = _decomposed(as_varying(x, rows.axes), rows.axes, d, name_of(eqn), p.get("compute_uv", True))
    if eqn.primitive.name == "qr":
        return [as_sharded(q, d, rows.axes), r]
    s, *vectors = bound(eqn)(r)  # no vectors, or left and right ones
    return [s, *(y if i else as_sharded(_times(q, y), d, rows.axes) for i, y in enumerate(vectors))]


# triangles


@of_device("oriented")
def _oriented(x: Any, flips: bool, conjugates: bool) -> Any:
    x = x.conj() if conjugates else x
    return x.mT if flips else x


def _multiplied(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


@of_device("solution")
def _own_solution(a: Any, right: Any, device: Any, k: int, by_rows: bool, lower: bool, unit: bool) -> Any:
    """Solves the diagonal block of device ``k``; zeros on other devices."""
    size = right.shape[-2]
    block = lax.dynamic_slice_in_dim(a, device * size, size, a.ndim - 1 if by_rows else a.ndim - 2)
    x = lax.linalg.triangular_solve(block, right, left_side=True, lower=lower, unit_diagonal=unit)
    return jnp.where(device == k, x, 0)


@of_device("product")
def _known(a: Any, x: Any, device: Any, k: int, by_rows: bool, lower: bool) -> Any:
    """Multiplies a device's part of the triangle, in the rows of block ``k``, by the solved part of the solution."""
    size = a.shape[-2 if by_rows else -1]
    block = lax.slice_in_dim(a, k * size, (k + 1) * size, axis=a.ndim - 1 if by_rows else a.ndim - 2)
    return _multiplied(jnp.where(device > k if by_rows == lower else device < k, block, 0), x)


@way("triangular_solve")
def by_substitution(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Solves block by block, each with an all-reduce of a shard of the right side; backward as much."""
    if not all(map(is_typed, operands)):
        return None
    (a, b), p = operands, eqn.params
    rows, columns = type_of(a).dims[-2:]
    left, axes = p["left_side"], rows.axes or columns.axes
    d = type_of(b).ndim - (2 if left else 1)
    if not axes or (rows.axes and columns.axes) or axes_of(b, d) not in ((), axes) or not type_of(b).size:
        return None
    flips = p["transpose_a"] == left
    by_rows, lower = bool(rows.axes) != flips, p["lower"] != flips
    device, n = axis_index(a, axes), axis_size(a, axes)
    right = _oriented(as_varying(b if axes_of(b, d) else sharded(b, d, axes), axes), not left, False)
    a = _oriented(as_varying(a, axes), flips, p["conjugate_a"])
    order = range(n) if lower else range(n)[::-1]
    parts: list[Any] = []  # the solved blocks: zeros on other devices
    for k in order:
        known = right
        if parts and not by_rows:
            known = subtract(right, psum(_known(a, functools.reduce(add, parts), device, k, by_rows, lower), axes))
        parts.append(_own_solution(a, known, device, k, by_rows, lower, p["unit_diagonal"]))
        if by_rows and k != order[-1]:
            right = subtract(right, _known(a, psum(parts[-1], axes), device, k, by_rows, lower))
    return [as_sharded(_oriented(functools.reduce(add, parts), not left, False), d, axes)]


@of_device("symmetrized")
def _symmetrized(x: Any, turned: Any, by_columns: bool) -> Any:
    """The rows of ``(a + a^H) / 2`` of a device, from its rows and columns."""
    rows, columns = (turned, x) if by_columns else (x, turned)
    return (rows + columns.mT.conj()) / 2


@of_device("packed")
def _packed(rows: Any, own: Any, device: Any, k: int) -> Any:
    """Packs the rows of the factor of device ``k`` and its diagonal triangle; zeros on other devices."""
    size = own.shape[-1]
    own = own - _multiplied(rows, rows.mT.conj())
    triangle = lax.linalg.cholesky(jnp.where(device == k, own, jnp.eye(size, dtype=own.dtype)), symmetrize_input=False)
    flat = rows.reshape(*rows.shape[:-2], -1)
    return jnp.where(device == k, jnp.concatenate([flat, triangle[(..., *np.tril_indices(size))]], -1), 0)


@of_device("factor")
def _extended(rows: Any, own: Any, packed: Any, device: Any, k: int, last: bool) -> Any:
    """Appends the next block to the rows of a factor, from the packed rows of device ``k``."""
    size, width = rows.shape[-2:]
    before, after = packed[..., : size * width], packed[..., size * width :]
    triangle = jnp.zeros_like(own).at[(..., *np.tril_indices(size))].set(after)
    block = jnp.where(device == k, triangle, 0)
    if not last:
        own = own - _multiplied(rows, before.reshape(rows.shape).mT.conj())
        of_later = lax.linalg.triangular_solve(triangle, own, lower=True, transpose_a=True, conjugate_a=True)
        block = jnp.where(device > k, of_later, block)
    return jnp.concatenate([rows, block], -1)


@of_device("failed")
def _failed(rows: Any) -> Any:
    """One if the factor of a device has NaN, else zero."""
    return jnp.isnan(rows).any((-2, -1), keepdims=True).astype("f")


@of_device("factor")
def _where_none_failed(rows: Any, failed: Any, device: Any) -> Any:
    size, n = rows.shape[-2:]
    lower = (jnp.arange(size) + device * size)[:, None] >= jnp.arange(n)
    return jnp.where((failed > 0) & lower, jnp.nan, rows)


def _is_cholesky(eqn: Any) -> bool:
    """Whether a call is `jnp.linalg.cholesky`, which makes its operand symmetric first."""
    names = [e.primitive.name for e in jaxpr_of(eqn.params["jaxpr"]).eqns if e.primitive.name != "conj"]
    alone = name_of(eqn) == "cholesky" and len(eqn.invars) == len(eqn.outvars) == 1
    return alone and names[:4] == ["transpose", "add", "div", "cholesky"]


@way(*CALLS, only=_is_cholesky)
def by_blocks(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Factors block by block; backward as much.

    Sends ``s + s ** 2 * (devices - 1 + 1 / rows)`` shards, ``s = (devices - 1) / devices``.

    Derivatives are those of one device for a symmetric matrix; JAX has others where it reads the lower one alone.
    """
    (x, *_), d = operands, eqn.outvars[0].aval.ndim - 2
    if not type_of(x).size:
        return None
    upper = jaxpr_of(eqn.params["jaxpr"]).eqns[-1].primitive.name in ("transpose", "conj")
    axes = axes_of(x, d + upper)
    if not axes or axes_of(x, d + 1 - upper):
        return None
    device, n = axis_index(x, axes), axis_size(x, axes)
    x = as_varying(x, axes)
    x = _symmetrized(x, all_to_all(x, axes, d + 1 - upper, d + upper), upper)
    size = type_of(x).shape[d]
    rows = part(x, 0, 0, d + 1)
    for k in range(n):
        own = part(x, k * size, (k + 1) * size, d + 1)
        packed = _packed(rows, own, device, k)
        rows = _extended(rows, own, packed if k == n - 1 else psum(packed, axes), device, k, k == n - 1)
    rows = _where_none_failed(rows, psum(_failed(stop_gradient(rows)), axes), device)
    return [as_sharded(_oriented(rows, upper, upper), d + upper, axes)]


@way(*CALLS, only=_is_cholesky)
def of_complete(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Gathers the matrix before it is made symmetric, which would send more on shards."""
    (x,), t = operands, type_of(operands[0])
    for axis in (*t.dims[-2].axes, *t.dims[-1].axes):
        t = t.with_axis(axis, State.REDUCED)
    return BODIES[eqn.primitive.name](eqn, [move(x, t, inserted=True)])
