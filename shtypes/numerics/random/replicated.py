"""Samples that each device computes in full, because a shard cannot be computed alone (rejection, or matrices)."""

from __future__ import annotations

import operator
from typing import Any

import jax

from shtypes.core.array import Array
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import as_ints, as_operands
from shtypes.errors import ShardingTypeError
from shtypes.numerics.random.draw import default_int, sample_replicated
from shtypes.numerics.random.samples import distribution


@public
def gamma(key: Any, a: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array:
    """Gamma numbers of shape ``a``, as `jax.random.gamma`.

    Each device computes all of the numbers and keeps its shard: they are the same on every mesh, at the cost of every
    device.

    Args:
        key (): A key.
        a (...): A number, or an unsharded array that broadcasts to the result.
        type: The type of the result, as in `uniform`; by default the broadcast shape of the parameters.
        dtype: The default dtype, if the type has none.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a type as a string, or of a shape; by default that of the key.

    Returns:
        (...): The samples; differentiable by ``a``.

    Raises:
        ShardingTypeError: a parameter is sharded or unreduced, or does not broadcast.

    Communicates: nothing; the cast of an invariant parameter communicates backward. Transpose: by JAX.
    """
    return sample_replicated("gamma", key, [a], type, dtype, mesh, shape=shape)


loggamma = distribution("loggamma", "Logarithms of gamma numbers of shape ``a``", "a")
beta = distribution("beta", "Beta numbers", "a", "b")
chisquare = distribution("chisquare", "Chi-square numbers of ``df`` degrees of freedom", "df")
f = distribution("f", "Numbers of an F distribution", "dfnum", "dfden")
t = distribution("t", "Numbers of Student's t distribution", "df")
poisson = distribution("poisson", "Poisson integers of mean ``lam``", "lam", default=default_int)
binomial = distribution("binomial", "How many of ``n`` trials succeed with probability ``p``", "n", "p")
wald = distribution("wald", "Wald numbers (inverse Gaussian)", "mean")
maxwell = distribution("maxwell", "Maxwell numbers")
generalized_normal = distribution(
    "generalized_normal", "Generalised normal numbers of power ``p``", "p", only_numbers=True
)
double_sided_maxwell = distribution(
    "double_sided_maxwell", "Maxwell numbers with a random sign", "loc", "scale", only_numbers=True
)


# vectors and matrices: ``type`` is that of the result; a shape is that of the batch, as in JAX


@public
def dirichlet(
    key: Any, alpha: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array:
    """Points of a simplex, as `jax.random.dirichlet`; see `gamma`.

    Args:
        key (): A key.
        alpha (..., n): Concentrations.
        type: The type of the result (..., n), or the shape of its batch.
        dtype: The default dtype, if the type has none.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a type as a string, or of a shape.
    """
    ((alpha,), _) = as_operands([alpha])
    *batch, n = jax.typeof(alpha).shape or _vector("dirichlet", alpha)
    return sample_replicated("dirichlet", key, [alpha], type, dtype, mesh, shape=shape, event=(n,), batch=batch)


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
        dtype: The default dtype, if the type has none.
        method: ``"cholesky"``, ``"eigh"`` or ``"svd"``.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a type as a string, or of a shape.
    """
    (mean, cov), _ = as_operands([mean, cov])
    means = jax.typeof(mean).shape or _vector("multivariate_normal", mean)
    batch = jax.numpy.broadcast_shapes(means[:-1], jax.typeof(cov).shape[:-2])
    options: dict[str, Any] = {"event": means[-1:], "batch": batch, "method": method}
    return sample_replicated("multivariate_normal", key, [mean, cov], type, dtype, mesh, shape=shape, **options)


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
    """The number of samples of each class in ``n`` trials, as `jax.random.multinomial`; see `gamma`.

    Args:
        key (): A key.
        n (...): Numbers of trials.
        p (..., k): Probabilities.
        type: The type of the result (..., k), or the shape of its batch.
        dtype: The default dtype, if the type has none.
        shape: The full shape of the result by name, as in JAX, instead of ``type``.
        unroll: As in JAX.
        mesh: The mesh of a type as a string, or of a shape.
    """
    (n, p), _ = as_operands([n, p])
    classes = jax.typeof(p).shape or _vector("multinomial", p)
    if shape is not None:
        *rows, last = as_ints(shape, "the shape of `multinomial`") or (0,)
        if last != classes[-1]:
            raise ShardingTypeError(f"the shape of `multinomial` ends in the number of classes, {classes[-1]}: {shape}")
        shape = tuple(rows)
    batch = jax.numpy.broadcast_shapes(jax.typeof(n).shape, classes[:-1])
    options: dict[str, Any] = {"event": classes[-1:], "batch": batch, "unroll": operator.index(unroll)}
    return sample_replicated("multinomial", key, [n, p], type, dtype, mesh, shape=shape, native=_multinomial, **options)


def _multinomial(key: Any, n: Any, p: Any, *, shape: tuple[int, ...], dtype: Any, unroll: int) -> Any:
    return jax.random.multinomial(key, n.astype(dtype), p, shape=(*shape, p.shape[-1]), dtype=dtype, unroll=unroll)


@public
def orthogonal(
    key: Any, n: int, type: Any = (), dtype: Any = None, m: int | None = None, *, shape: Any = None, mesh: Any = None
) -> Array:
    """Orthogonal matrices, as `jax.random.orthogonal`; see `gamma`.

    Args:
        key (): A key.
        n: The number of rows.
        type: The type of the result (..., n, m), or the shape of its batch.
        dtype: The default dtype, if the type has none.
        m: The number of columns; n by default.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a type as a string, or of a shape.
    """
    rows = operator.index(n)
    event = rows, rows if m is None else operator.index(m)
    return sample_replicated("orthogonal", key, [], type, dtype, mesh, shape=shape, event=event, n=rows, m=m)


@public
def ball(
    key: Any, d: int, p: float = 2, type: Any = (), dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array:
    """Points of the ``d``-dimensional unit ball in the norm ``p``, as `jax.random.ball`; see `gamma`.

    Args:
        key (): A key.
        d: The number of dimensions.
        p: The norm.
        type: The type of the result (..., d), or the shape of its batch.
        dtype: The default dtype, if the type has none.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a type as a string, or of a shape.
    """
    size = operator.index(d)
    return sample_replicated("ball", key, [], type, dtype, mesh, shape=shape, event=(size,), d=size, p=p)


def _vector(name: str, x: Any) -> Any:
    raise ShardingTypeError(f"`{name}` needs a vector, not {jax.typeof(x)}")
