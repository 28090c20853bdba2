"""Products of values beyond einsum: dot_general, kron, cross, one-dimensional convolutions, ragged products.

All are linear in each factor: what is sharded and summed over is unreduced, and nothing is communicated.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shtypes.core.array import Array, ArrayLike
from shtypes.core.localfn import LocalFn
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public, published
from shtypes.ops.arithmetic import astype, multiply
from shtypes.ops.cumulative import diff
from shtypes.ops.dispatch import as_ints, beside_others, dtype_name, inexact, lift, meeting
from shtypes.ops.einsum import einsum
from shtypes.ops.index import getitem
from shtypes.ops.labelled import all_whole, multilinear, product
from shtypes.ops.reduce import normalize_dims
from shtypes.ops.reduce import sum as sum_
from shtypes.ops.shape import expand_dims, moveaxis, reshape
from shtypes.ops.whole import apply_whole, function
from shtypes.rules.labelled import ProductDims
from shtypes.types import dtypes


@public
def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out: Any = None,
) -> Array:
    """A product over any pairs of dims, as `jax.lax.dot_general`; typed as `einsum`.

    Args:
        lhs (...): Left operand.
        rhs (...): Right operand.
        dimension_numbers: ``((summed of lhs, summed of rhs), (batch of lhs, batch of rhs))``.
        precision: As in `jax.numpy`.
        preferred_element_type: The dtype of the result, and so of each partial sum.
        out: A type to reshard the result to.

    Returns:
        (...): The batch dims, then the other dims of ``lhs``, then those of ``rhs``.

    Communicates: nothing but what ``out`` asks for. Transpose: einsums.
    """
    values = meeting([lhs, rhs])
    n, m = (jax.typeof(v).ndim for v in values)
    (summed_l, summed_r), (batch_l, batch_r) = (
        tuple(as_ints(dims, "the dims of `dot_general`") for dims in pair) for pair in dimension_numbers
    )
    letters = string.ascii_letters
    a, b = list(letters[:n]), list(letters[n : n + m])
    pairs = [*zip(summed_l, summed_r, strict=False), *zip(batch_l, batch_r, strict=False)]
    fits = len(summed_l) == len(summed_r) and len(batch_l) == len(batch_r)
    if not fits or any(not (0 <= i < n and 0 <= j < m) for i, j in pairs):
        raise ShardingTypeError(f"`dot_general` over {dimension_numbers} does not fit arrays of {n} and {m} dims")
    for i, j in pairs:
        b[j] = a[i]
    kept = [a[i] for i in batch_l]
    kept += [c for i, c in enumerate(a) if i not in (*summed_l, *batch_l)]
    kept += [c for j, c in enumerate(b) if j not in (*summed_r, *batch_r)]
    equation = f"{''.join(a)},{''.join(b)}->{''.join(kept)}"
    return einsum(equation, *values, out=out, precision=precision, preferred_element_type=preferred_element_type)


@public
def batch_matmul(lhs: ArrayLike, rhs: ArrayLike, precision: Any = None) -> Array:
    """Matrix products over equal leading dims, as `jax.lax.batch_matmul`; typed as `einsum`."""
    return einsum("...nk,...km->...nm", lhs, rhs, precision=precision)


@public
def kron(a: ArrayLike, b: ArrayLike) -> Array:
    """The Kronecker product, as `jax.numpy.kron`.

    Per axis: an outer product, typed as `einsum`, whose dims merge in pairs as in `reshape`: those of ``a`` may be
    sharded, those of ``b`` only where the dim of ``a`` has one element on each device.

    Args:
        a (...): A factor.
        b (...): The other.

    Communicates: nothing. Transpose: einsums.
    """
    x, y = meeting([a, b])
    n, m = jax.typeof(x).ndim, jax.typeof(y).ndim
    x, y = (expand_dims(v, tuple(range(max(n, m) - k))) if k < max(n, m) else v for v, k in ((x, n), (y, m)))
    shapes = jax.typeof(x).shape, jax.typeof(y).shape
    count = len(shapes[0])
    letters = string.ascii_letters
    left, right = letters[:count], letters[count : 2 * count]
    pairs = "".join(i + j for i, j in zip(left, right, strict=True))
    merged = tuple(i * j for i, j in zip(*shapes, strict=True))
    return reshape(einsum(f"{left},{right}->{pairs}", x, y), merged)


@public
def cross(
    a: ArrayLike, b: ArrayLike, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Array:
    """The cross product of vectors along a dim, as `jax.numpy.cross`.

    Per axis: as a product; the other dims may be sharded, that of the vectors must be whole.

    Args:
        a (..., 3): Vectors.
        b (..., 3): Vectors; the other dims broadcast.
        axisa: Where the vectors of ``a`` lie,
        axisb: those of ``b``,
        axisc: and those of the result.
        axis: All three.

    Communicates: nothing. Transpose: cross products.
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = meeting([a, b])
    x, y = moveaxis(x, axisa, -1), moveaxis(y, axisb, -1)
    types = jax.typeof(x), jax.typeof(y)

    def plan(shape: tuple[int, ...]) -> ProductDims:
        batch = tuple(shape[:-1] if vectors else shape)
        names = [("batch", d) for d in range(len(batch))]
        labels = tuple((*_aligned(t.shape[:-1], batch, names), ("component", i)) for i, t in enumerate(types))
        result = (*names, *([("made", 0)] if vectors else []))
        whole = frozenset({("component", 0), ("component", 1)})
        return ProductDims(labels, tuple(zip(result, shape, strict=True)), whole)

    vectors = 3 in (types[0].shape[-1], types[1].shape[-1])
    made = product("cross", multilinear("cross", jnp.cross), [x, y], plan)
    return moveaxis(made, -1, axisc) if vectors else made


def _aligned(shape: Sequence[int], target: Sequence[int], names: Sequence[Any]) -> list[Any]:
    """The label of each dim of a shape that is broadcast; None where it stretches."""
    ahead = len(target) - len(shape)
    return [names[ahead + d] if n == target[ahead + d] else None for d, n in enumerate(shape)]


# vectors


def _of_vectors(name: str, what: str, default: str) -> Callable[..., Array]:
    native = getattr(jnp, name)

    def op(a: Any, v: Any, mode: str = default, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
        dtype = None if preferred_element_type is None else dtypes.to_numpy(dtype_name(preferred_element_type))
        params = {"mode": mode, "precision": precision, "preferred_element_type": dtype}
        return all_whole(name, multilinear(name, native, **params), [a, v])

    return published(
        op,
        name,
        f"""{what} of two vectors, as `jax.numpy.{name}`: linear in both; the vectors must be whole.

    Args:
        a (n): A vector; one of the two may be unreduced.
        v (m): The other.
        mode: ``"full"``, ``"same"`` or ``"valid"``.
        precision: As in `jax.numpy`.
        preferred_element_type: The dtype of the result.

    Raises:
        ShardingTypeError: a vector is sharded, or both are unreduced.

    Communicates: nothing. Transpose: by JAX.
    """,
    )


convolve = _of_vectors("convolve", "The convolution", "full")
correlate = _of_vectors("correlate", "The correlation", "valid")


@public
def polyval(p: ArrayLike, x: ArrayLike, *, unroll: int | None = None) -> Array:
    """A polynomial at places, as `jax.numpy.polyval`: linear in its coefficients, which must be whole.

    Args:
        p (n, ...): The coefficients, the highest power first; they may be unreduced. Their other dims are those of
            several polynomials, and broadcast with the places.
        x (...): The places; every state but unreduced is kept.
        unroll: As in JAX; changes no value.

    Communicates: nothing. Transpose: by JAX.
    """
    p, x = meeting([p, x])
    t, places = jax.typeof(p), jax.typeof(x)
    if not t.ndim:
        raise ShardingTypeError(f"`polyval` takes coefficients along a dim, not {t}")

    def plan(shape: tuple[int, ...]) -> ProductDims:
        own = [("place", d) for d in range(len(shape))]
        labels = ("coefficient", *_aligned(t.shape[1:], shape, own)), tuple(_aligned(places.shape, shape, own))
        result = tuple(zip(own, shape, strict=True))
        return ProductDims(labels, result, frozenset({"coefficient"}), ids=frozenset({1}))

    given = {} if unroll is None else {"unroll": operator.index(unroll)}
    fn = multilinear("polyval", jnp.polyval, frozenset({1}), **given)
    return product("polyval", fn, [p, x], plan)


@public
def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: Any = 1.0, axis: int = -1) -> Array:
    """The integral by trapezoids, as `jax.numpy.trapezoid`: linear in ``y``; the dim must be whole.

    Args:
        y (..., n, ...): Values; they may be unreduced.
        x (n) or (..., n, ...): Their places; the distances are ``dx`` by default.
        dx: The distance.
        axis: The dim.

    Communicates: nothing. Transpose: by JAX.
    """
    values, constants = lift([y] if x is None else [y, x])
    (dim,) = normalize_dims(axis, jax.typeof(values[0]).ndim, "trapezoid")
    if x is None:
        kept = [d for d in range(jax.typeof(values[0]).ndim) if d != dim]
        fn = function("trapezoid", jnp.trapezoid, linear=True, dx=dx, axis=dim)
        return apply_whole("trapezoid", fn, values[0], [dim], [kept])
    dtype = inexact(*(jax.typeof(v).dtype for v in values))
    heights, places = beside_others([astype(v, dtype) for v in values], constants)
    moved = moveaxis(heights, dim, -1)
    places = places if jax.typeof(places).ndim == 1 else moveaxis(places, axis, -1)
    pairs = getitem(moved, (..., slice(1, None))) + getitem(moved, (..., slice(None, -1)))
    return sum_(multiply(pairs, diff(places)), -1) * 0.5


@public
def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
) -> Array:
    """Runs of rows, each by its own matrix, as `jax.lax.ragged_dot`: the product of a mixture of experts.

    Per axis: as an einsum of ``mk,gkn->mn``: a sharded ``k`` gives a pending sum, ``n`` may be sharded. Rows and groups
    must be whole, since a row's group follows from how many come before.

    Args:
        lhs (m, k): Rows, those of the first group first.
        rhs (g, k, n): A matrix for each group.
        group_sizes (g): How many rows each group has: integers, never unreduced.
        precision: As in `jax.numpy`.
        preferred_element_type: The dtype of the result.
        group_offset: Not supported by JAX either.

    Returns:
        (m, n): The products.

    Raises:
        ShardingTypeError: rows or groups are sharded, or the operands do not meet.

    Communicates: nothing. Transpose: ragged products.
    """
    if group_offset is not None:
        raise ShardingTypeError("`ragged_dot` knows no `group_offset`")
    dtype = None if preferred_element_type is None else dtypes.to_numpy(dtype_name(preferred_element_type))
    params = {"precision": precision, "preferred_element_type": dtype}
    fn: LocalFn = multilinear("ragged_dot", lax.ragged_dot, frozenset({2}), **params)

    def plan(shape: tuple[int, ...]) -> ProductDims:
        labels = (("rows", "k"), ("groups", "k", "n"), ("groups",))
        result = tuple(zip(("rows", "n"), shape, strict=True))
        return ProductDims(labels, result, frozenset({"rows", "groups"}), ids=frozenset({2}))

    return product("ragged_dot", fn, [lhs, rhs, group_sizes], plan)
