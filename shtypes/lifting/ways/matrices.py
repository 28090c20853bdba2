"""Decompositions and triangular solves of matrices that are sharded by rows: TSQR, and substitution by blocks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes._compat.derivative_rules import cholesky_reads_lower
from shtypes._compat.eqn_frames import is_of_jax
from shtypes._compat.jaxprs import jaxpr_of
from shtypes.dispatch.apply import is_typed
from shtypes.lifting.ways.choice import CALLS, gathered_first, name_of, way
from shtypes.ops.arithmetic import add, subtract
from shtypes.ops.sharded_reductions import as_varying, shard_of
from shtypes.ops.shards import (
    Axes,
    across_shards,
    all_gather,
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


_qr = of_device("qr")(jnp.linalg.qr)


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
def _quotient(q: Any, r: Any, dx: Any) -> Any:
    """The quotient of a tangent by R, and a device's term of its product with Q."""
    quotient = lax.linalg.triangular_solve(r, dx)
    return quotient, _multiplied(q.mT.conj(), quotient)


def _turn(inner: Any) -> Any:
    """The antisymmetric part of a tangent, which keeps Q orthonormal."""
    lower = jnp.tril(inner, -1)
    return lower - lower.mT.conj() + (inner - inner.real) * jnp.eye(inner.shape[-1], dtype=inner.dtype)


@of_device("tangent")
def _tangents(q: Any, r: Any, quotient: Any, inner: Any) -> Any:
    """The tangents of a device's rows of Q, and of R."""
    rest = inner - _turn(inner)
    return quotient - _multiplied(q, rest), _multiplied(rest, r)


_times = of_device("product")(jnp.matmul)


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
        quotient, inner = _quotient(q, r, *tangents)
        return (q, r), tuple(_tangents(q, r, quotient, psum(inner, axes, State.INVARIANT)))


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
    right = _oriented(shard_of(b, d, axes), not left, False)
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


def _unpacked(packed: Any, size: int) -> tuple[Any, Any]:
    """The rows of a factor of one device before its diagonal triangle, and this."""
    before = packed[..., : packed.shape[-1] - size * (size + 1) // 2]
    triangle = jnp.zeros((*packed.shape[:-1], size, size), packed.dtype)
    triangle = triangle.at[(..., *np.tril_indices(size))].set(packed[..., before.shape[-1] :])
    return before.reshape(*packed.shape[:-1], size, -1), triangle


@of_device("factor")
def _extended(rows: Any, own: Any, packed: Any, device: Any, k: int, last: bool) -> Any:
    """Appends the next block to the rows of a factor, from the packed rows of device ``k``."""
    before, triangle = _unpacked(packed, own.shape[-1])
    block = jnp.where(device == k, triangle, 0)
    if not last:
        own = own - _multiplied(rows, before.mT.conj())
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


@of_device("factor")
def _joined(packed: Sequence[Any], failed: Any, size: int) -> Any:
    """The complete factor from the packed rows of all devices."""
    rows = [jnp.concatenate(_unpacked(p, size), -1) for p in packed]
    factor = jnp.concatenate(
        [jnp.pad(r, [(0, 0)] * (r.ndim - 1) + [(0, len(rows) * size - r.shape[-1])]) for r in rows], -2
    )
    return jnp.where(failed > 0, jnp.tril(jnp.full_like(factor, jnp.nan)), factor)


@of_device("solution")
def _right_solution(factor: Any, rows: Any) -> Any:
    return lax.linalg.triangular_solve(factor, rows, lower=True, transpose_a=True, conjugate_a=True)


@of_device("tangent")
def _tangent_of_factor(factor: Any, columns: Any, device: Any) -> Any:
    """Columns of the tangent ``L phi(L^-1 S L^-H)`` of a factor ``L``, from those of ``S L^-H``."""
    x = lax.linalg.triangular_solve(factor, columns, left_side=True, lower=True)
    above = jnp.arange(x.shape[-2])[:, None] - (jnp.arange(x.shape[-1]) + device * x.shape[-1])
    return _multiplied(factor, jnp.where(above > 0, x, jnp.where(above == 0, x / 2, 0)))


@of_device("symmetrized")
def _of_lower_triangle(rows: Any, columns: Any, device: Any) -> Any:
    """The rows of the Hermitian matrix with the lower triangle of a matrix, from its rows and columns."""
    size, n = rows.shape[-2:]
    above = (jnp.arange(size) + device * size)[:, None] - jnp.arange(n)
    return jnp.where(above > 0, rows, jnp.where(above == 0, rows.real, columns.mT.conj()))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3, 4, 5))
def _factored(x: Any, axes: Axes, dim: int, name: str, reads_all: bool, complete: bool) -> list[Any]:
    """A device's rows of the Cholesky factor, from its rows of the matrix; with ``complete`` also all of it.

    With ``reads_all`` the derivative reads all of the tangent, though the factor is that of the lower triangle.
    """
    with across_shards(name):
        device, n, size = axis_index(x, axes), axis_size(x, axes), type_of(x).shape[dim]
        rows, sent = part(x, 0, 0, dim + 1), []
        for k in range(n):
            own, last = part(x, k * size, (k + 1) * size, dim + 1), k == n - 1
            packed = _packed(rows, own, device, k)
            sent += [] if last and not complete else [psum(packed, axes)]
            rows = _extended(rows, own, packed if last else sent[k], device, k, last)
        failed = psum(_failed(rows), axes)
        return [_where_none_failed(rows, failed, device), *([_joined(sent, failed, size)] if complete else [])]


@_factored.defjvp
def _by_transposes(axes: Axes, dim: int, name: str, reads_all: bool, complete: bool, primals: Any, dots: Any) -> Any:
    """The JVP of JAX: solves along the rows of a device, and along its columns after a transpose."""
    rows, factor = _factored(*primals, axes, dim, name, reads_all, True)
    with across_shards(name):
        (dot,), device = dots, axis_index(rows, axes)
        if not reads_all:
            dot = _of_lower_triangle(dot, all_to_all(dot, axes, dim + 1, dim), device)
        columns = all_to_all(_right_solution(factor, dot), axes, dim + 1, dim)
        dot = all_to_all(_tangent_of_factor(factor, columns, device), axes, dim, dim + 1)
        if not complete:
            return [rows], [dot]
        return [rows, factor], [dot, all_gather(dot, axes, dim)]


def _is_cholesky(eqn: Any) -> bool:
    """Whether an equation is a Cholesky factor, or a call of `jnp.linalg.cholesky`, that of a symmetric matrix."""
    if "jaxpr" not in eqn.params:
        return True
    names = [e.primitive.name for e in jaxpr_of(eqn.params["jaxpr"]).eqns if e.primitive.name != "conj"]
    alone = name_of(eqn) == "cholesky" and len(eqn.invars) == len(eqn.outvars) == 1
    return alone and is_of_jax(eqn.params["jaxpr"]) and names[:4] == ["transpose", "add", "div", "cholesky"]


@way("cholesky", *CALLS, only=_is_cholesky)
def by_blocks(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Factors block by block: sends ``s ** 2 * (devices - 1 + 1 / rows)`` shards, ``s = (devices - 1) / devices``.

    To make the matrix symmetric, or of columns rows, sends ``s`` more. Backward two all-to-alls, ``2 s``,
    three where the derivative reads one triangle; and the rows of the last device forward.
    """
    (x, *_), d, calls = operands, eqn.outvars[0].aval.ndim - 2, "jaxpr" in eqn.params
    if not type_of(x).size:
        return None
    upper = calls and jaxpr_of(eqn.params["jaxpr"]).eqns[-1].primitive.name in ("transpose", "conj")
    by_columns = upper if calls else bool(axes_of(x, d + 1))
    axes = axes_of(x, d + by_columns)
    if not axes or axes_of(x, d + 1 - by_columns):
        return None
    x = as_varying(x, axes)
    if calls or by_columns:
        turned = all_to_all(x, axes, d + 1 - by_columns, d + by_columns)
        x = _symmetrized(x, turned, by_columns) if calls else turned
    (rows,) = _factored(x, axes, d, name_of(eqn), calls or not cholesky_reads_lower(), False)
    return [as_sharded(_oriented(rows, upper, upper), d + upper, axes)]


@way(*CALLS, only=_is_cholesky)
def of_complete(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Gathers the matrix before it is made symmetric, which would send more on shards."""
    return gathered_first(eqn, operands, (-2, -1))
