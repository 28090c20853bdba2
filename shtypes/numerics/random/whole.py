"""Samples of which no device can compute its shard alone (by rejection, or of matrices): each computes all."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax

from shtypes.core.array import Array
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import as_ints, as_operands
from shtypes.errors import ShardingTypeError
from shtypes.numerics.bits.samples import default_float, default_int, type_or_shape
from shtypes.numerics.bits.samples_whole import sample_whole
from shtypes.numerics.random.samples import distribution


@public
def gamma(key: Any, a: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array:
    """Gamma numbers of shape ``a``, as `jax.random.gamma`.

    Each device makes all of the numbers and keeps its own part: so they are the same on every mesh, and are made as
    often as there are devices.

    Args:
        key (): A key.
        a (...): A number, or an array that broadcasts to the result; whole on each device.
        type: The type of the result, as in `uniform`; by default that of the parameters together.
        dtype: The dtype, where the type leaves it out.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a text or shape; by default that of the key.

    Returns:
        (...): The samples; they have a gradient for ``a``.

    Raises:
        ShardingTypeError: a parameter is sharded or unreduced, or does not broadcast.

    Communicates: nothing; the cast of an invariant parameter communicates backward. Transpose: by JAX.
    """
    type = type_or_shape(type, shape)
    return sample_whole("gamma", jax.random.gamma, key, [a], type, dtype, mesh, default_float())


def _whole(name: str, what: str, *params: str, default: Callable[[], str] = default_float) -> Callable[..., Array]:
    def make(key: Any, values: list[Any], type: Any, dtype: Any, mesh: Any) -> Any:
        return sample_whole(name, getattr(jax.random, name), key, values, type, dtype, mesh, default())

    return distribution(name, f"{what}, as `jax.random.{name}`; see `gamma`.", params, make)


loggamma = _whole("loggamma", "Logarithms of gamma numbers of shape ``a``", "a")
beta = _whole("beta", "Beta numbers", "a", "b")
chisquare = _whole("chisquare", "Chi-square numbers of ``df`` degrees of freedom", "df")
f = _whole("f", "Numbers of an F distribution", "dfnum", "dfden")
t = _whole("t", "Numbers of Student's t distribution", "df")
poisson = _whole("poisson", "Poisson integers of mean ``lam``", "lam", default=default_int)
binomial = _whole("binomial", "How many of ``n`` trials succeed with probability ``p``", "n", "p")
wald = _whole("wald", "Wald numbers (inverse Gaussian)", "mean")


@public
def generalized_normal(
    key: Any, p: float, type: Any = (), dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array:
    """Generalised normal numbers of power ``p``, as `jax.random.generalized_normal`; see `gamma`."""
    type = type_or_shape(type, shape)
    native = jax.random.generalized_normal
    return sample_whole("generalized_normal", native, key, [], type, dtype, mesh, default_float(), p=float(p))


@public
def maxwell(key: Any, type: Any = (), dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array:
    """Maxwell numbers, as `jax.random.maxwell`; see `gamma`."""
    type = type_or_shape(type, shape)
    return sample_whole("maxwell", jax.random.maxwell, key, [], type, dtype, mesh, default_float())


@public
def double_sided_maxwell(
    key: Any, loc: float, scale: float, type: Any = (), dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array:
    """Maxwell numbers with a random sign, as `jax.random.double_sided_maxwell`; see `gamma`."""
    type = type_or_shape(type, shape)
    params: dict[str, Any] = {"loc": float(loc), "scale": float(scale)}
    native = jax.random.double_sided_maxwell
    return sample_whole("double_sided_maxwell", native, key, [], type, dtype, mesh, default_float(), **params)


# of vectors and matrices: the type is that of all of it; a shape is that of the batch, as in JAX


@public
def dirichlet(
    key: Any, alpha: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array:
    """Points of a simplex, as `jax.random.dirichlet`; see `gamma`.

    Args:
        key (): A key.
        alpha (..., n): Concentrations.
        type: The type of the result (..., n), or the shape of its batch.
        dtype: The dtype, where the type leaves it out.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a text or shape.
    """
    type = type_or_shape(type, shape)
    ((alpha,), _) = as_operands([alpha])
    *batch, n = jax.typeof(alpha).shape or _vector("dirichlet", alpha)
    native = jax.random.dirichlet
    return sample_whole("dirichlet", native, key, [alpha], type, dtype, mesh, default_float(), event=(n,), batch=batch)


@public
def multivariate_normal(
    key: Any,
    mean: Any,
    cov: Any,
    type: Any = None,
    dtype: Any = None,
    method: str = "cholesky",
    *,
    shape: Any = None,
    mesh: Any = None,
) -> Array:
    """Normal vectors, as `jax.random.multivariate_normal`; see `gamma`.

    Args:
        key (): A key.
        mean (..., n): Means.
        cov (..., n, n): Covariances.
        type: The type of the result (..., n), or the shape of its batch.
        dtype: The dtype, where the type leaves it out.
        method: ``"cholesky"``, ``"eigh"`` or ``"svd"``.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a text or shape.
    """
    type = type_or_shape(type, shape)
    (mean, cov), _ = as_operands([mean, cov])
    means = jax.typeof(mean).shape or _vector("multivariate_normal", mean)
    batch = jax.numpy.broadcast_shapes(means[:-1], jax.typeof(cov).shape[:-2])
    native = jax.random.multivariate_normal
    options = {"event": means[-1:], "batch": batch, "method": method}
    return sample_whole(
        "multivariate_normal",
        native,
        key,
        [mean, cov],
        type_or_shape(type, shape),
        dtype,
        mesh,
        default_float(),
        **options,
    )


@public
def multinomial(
    key: Any,
    n: Any,
    p: Any,
    type: Any = None,
    dtype: Any = None,
    *,
    shape: Any = None,
    unroll: int = 1,
    mesh: Any = None,
) -> Array:
    """How often each class is sampled in ``n`` trials, as `jax.random.multinomial`; see `gamma`.

    Args:
        key (): A key.
        n (...): Numbers of trials.
        p (..., k): Probabilities.
        type: The type of the result (..., k), or the shape of its batch.
        dtype: The dtype, where the type leaves it out.
        shape: The whole shape of the result by name, as in JAX, instead of ``type``.
        unroll: As in JAX.
        mesh: The mesh of a text or shape.
    """
    (n, p), _ = as_operands([n, p])
    classes = jax.typeof(p).shape or _vector("multinomial", p)
    if shape is not None:
        *batch, last = as_ints(shape, "the shape of `multinomial`") or (0,)
        if last != classes[-1]:
            raise ShardingTypeError(f"the shape of `multinomial` ends in the number of classes, {classes[-1]}: {shape}")
        shape = tuple(batch)
    options = {"event": classes[-1:], "batch": jax.numpy.broadcast_shapes(jax.typeof(n).shape, classes[:-1])}
    options_of_jax: dict[str, Any] = {**options, "unroll": operator.index(unroll)}
    target = type_or_shape(type, shape)
    return sample_whole(
        "multinomial", _multinomial, key, [n, p], target, dtype, mesh, default_float(), **options_of_jax
    )


def _multinomial(key: Any, n: Any, p: Any, *, shape: tuple[int, ...], dtype: Any, unroll: int) -> Any:
    return jax.random.multinomial(key, n.astype(dtype), p, shape=(*shape, p.shape[-1]), dtype=dtype, unroll=unroll)


@public
def orthogonal(
    key: Any, n: int, type: Any = (), dtype: Any = None, m: int | None = None, *, shape: Any = None, mesh: Any = None
) -> Array:
    """Orthogonal matrices, as `jax.random.orthogonal`; see `gamma`.

    Args:
        key (): A key.
        n: How many rows.
        type: The type of the result (..., n, m), or the shape of its batch.
        dtype: The dtype, where the type leaves it out.
        m: How many columns; n by default.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a text or shape.
    """
    type = type_or_shape(type, shape)
    rows = operator.index(n)
    event = rows, rows if m is None else operator.index(m)
    options: dict[str, Any] = {"event": event, "n": rows, "m": m}
    return sample_whole(
        "orthogonal",
        jax.random.orthogonal,
        key,
        [],
        type_or_shape(type, shape),
        dtype,
        mesh,
        default_float(),
        **options,
    )


@public
def ball(
    key: Any, d: int, p: float = 2, type: Any = (), dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array:
    """Points of the unit ball of ``d`` dims in the norm ``p``, as `jax.random.ball`; see `gamma`.

    Args:
        key (): A key.
        d: How many dims.
        p: The norm.
        type: The type of the result (..., d), or the shape of its batch.
        dtype: The dtype, where the type leaves it out.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a text or shape.
    """
    type = type_or_shape(type, shape)
    size = operator.index(d)
    options: dict[str, Any] = {"event": (size,), "d": size, "p": p}
    return sample_whole("ball", jax.random.ball, key, [], type, dtype, mesh, default_float(), **options)


def _vector(name: str, x: Any) -> Any:
    raise ShardingTypeError(f"`{name}` needs a vector, not {jax.typeof(x)}")
