"""Arrays that follow from the positions of their elements: each device computes its shard, by the global index."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.context.signature_errors import bound, signature_of
from shtypes.context.user_line import named
from shtypes.core.array import Array, ArrayLike
from shtypes.core.device_put import type_of
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import as_ints, as_operands, dtype_name, is_number
from shtypes.errors import ShardingTypeError
from shtypes.ops.create import by_index
from shtypes.ops.functions import broadcast_in_dim, reshape, stack
from shtypes.types import dtypes


def _by_index(
    name: str, fn: Callable[..., Any], shape: tuple[int, ...], dtype: Any, type: Any, mesh: Any, **params: Any
) -> Array:
    t = type_of(type if type is not None else "[...]", mesh, shape=shape, dtype=dtype_name(dtype))
    return by_index(name, fn, t, **params)


def _float(dtype: Any) -> Any:
    return np.float64 if dtype is None else dtype  # converted to JAX's default float


def _on_diagonal(rows: Any, columns: Any, k: int) -> Any:
    return columns - rows == k


def _below(rows: Any, columns: Any, k: int) -> Any:
    return columns - rows <= k


def _sizes(name: str, rows: Any, columns: Any) -> tuple[int, int]:
    shape = as_ints(rows if columns is None else (rows, columns), f"the sizes of `{name}`")
    return (shape[0], shape[-1])


@public
def eye(N: Any, M: Any = None, k: int = 0, dtype: Any = None, *, type: Any = None, mesh: Any = None) -> Array:  # noqa: N803  # the names that JAX gives them
    """Ones on diagonal ``k`` and zeros elsewhere, as `jax.numpy.eye`.

    Args:
        N: The number of rows.
        M: The number of columns; as many by default.
        k: How far above the main diagonal.
        dtype: The dtype; the default float.
        type: A type with two dims, such as ``"[n@x, n]"``; replicated by policy by default.
        mesh: The mesh of a text; by default the one in context.

    Communicates: nothing; each device computes its shard.
    """
    return _by_index("eye", _on_diagonal, _sizes("eye", N, M), _float(dtype), type, mesh, k=operator.index(k))


@public
def identity(n: Any, dtype: Any = None, *, type: Any = None, mesh: Any = None) -> Array:
    """The identity matrix; see `eye`."""
    return eye(n, dtype=dtype, type=type, mesh=mesh)


@public
def tri(N: Any, M: Any = None, k: int = 0, dtype: Any = None, *, type: Any = None, mesh: Any = None) -> Array:  # noqa: N803  # the names that JAX gives them
    """Ones on and below diagonal ``k``, zeros above, as `jax.numpy.tri`; parameters as for `eye`."""
    return _by_index("tri", _below, _sizes("tri", N, M), _float(dtype), type, mesh, k=operator.index(k))


def _index_of(*indices: Any, dimension: int) -> Any:
    return indices[dimension]


@public
def broadcasted_iota(dtype: Any, shape: Sequence[int], dimension: int, *, type: Any = None, mesh: Any = None) -> Array:
    """At each element its index in one dim, as `jax.lax.broadcasted_iota`; the global index, whatever is sharded.

    Args:
        dtype: The dtype.
        shape: The shape.
        dimension: The dim whose indices are meant.
        type: A type such as ``"[8@x, 4]"``; replicated by policy by default.
        mesh: The mesh of a text; by default the one in context.

    Communicates: nothing.
    """
    sizes = as_ints(shape, "the shape of `broadcasted_iota`")
    dim = operator.index(dimension)
    if not 0 <= dim < len(sizes):
        raise ShardingTypeError(f"`broadcasted_iota` of shape {sizes} has no dim {dimension}")
    return _by_index("iota", _index_of, sizes, dtype, type, mesh, dimension=dim)


@public
def iota(dtype: Any, size: int, *, type: Any = None, mesh: Any = None) -> Array:
    """The numbers from 0 up, as `jax.lax.iota`; see `broadcasted_iota`."""
    return broadcasted_iota(dtype, (size,), 0, type=type, mesh=mesh)


@public
def indices(dimensions: Sequence[int], dtype: Any = None, sparse: bool = False) -> Array | tuple[Array, ...]:
    """The indices of a grid, one array for each dim, stacked; as `jax.numpy.indices`. Communicates: nothing."""
    sizes = as_ints(dimensions, "the dimensions of `indices`")
    name = np.int64 if dtype is None else dtype
    if sparse:
        ndim = len(sizes)
        shapes = [tuple(n if i == d else 1 for i in range(ndim)) for d, n in enumerate(sizes)]
        return tuple(broadcasted_iota(name, shape, d) for d, shape in enumerate(shapes))
    return stack([broadcasted_iota(name, sizes, d) for d in range(len(sizes))])


def _row(index: Any, native: Callable[..., Any], params: Any) -> Any:
    return native(**dict(params))[index]


def _spaced(name: str, dtype: Any, type: Any, mesh: Any, numbers: Sequence[Any], **params: Any) -> Array:
    """A function of `jax.numpy` that returns a vector for numbers, of which each device keeps its shard."""
    if not all(is_number(n) or isinstance(n, np.generic) for n in numbers):
        raise ShardingTypeError(
            f"`{name}` takes numbers, not arrays", hints=["sh.arange(n) * step + start, with typed arrays"]
        )
    native = getattr(jnp, name)
    native_params = tuple(
        sorted({**params, "dtype": None if dtype is None else dtypes.to_numpy(dtype_name(dtype))}.items())
    )
    struct = jax.eval_shape(lambda: native(**dict(native_params)))
    name_of_dtype = dtypes.from_numpy(struct.dtype)
    return _by_index(name, _row, struct.shape, name_of_dtype, type, mesh, native=native, params=native_params)


@overload
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: Literal[False] = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    type: Any = None,
    mesh: Any = None,
) -> Array: ...
@overload
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    *,
    retstep: Literal[True],
    dtype: Any = None,
    axis: int = 0,
    type: Any = None,
    mesh: Any = None,
) -> tuple[Array, float]: ...
@public
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    type: Any = None,
    mesh: Any = None,
) -> Array | tuple[Array, float]:
    """``num`` numbers from ``start`` to ``stop`` at equal distances, as `jax.numpy.linspace`.

    Args:
        start: The first number.
        stop: The end.
        num: How many.
        endpoint: Whether the end is one of them.
        retstep: Gives the distance too.
        dtype: The dtype.
        axis: Accepted for compatibility; ignored: the result has one dim.
        type: A type with one dim, such as ``"[_@x]"``; replicated by policy by default.
        mesh: The mesh of a text; by default the one in context.

    Communicates: nothing; each device computes its shard.
    """
    count = operator.index(num)
    values = _spaced(
        "linspace", dtype, type, mesh, (start, stop), start=start, stop=stop, num=count, endpoint=bool(endpoint)
    )
    parts = count - 1 if endpoint else count
    return (values, (stop - start) / parts if parts else float("nan")) if retstep else values


@public
def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
    *,
    type: Any = None,
    mesh: Any = None,
) -> Array:
    """Powers of ``base`` at equal distances of their exponents, as `jax.numpy.logspace`; see `linspace`."""
    arguments = {"start": start, "stop": stop, "num": operator.index(num), "endpoint": bool(endpoint), "base": base}
    return _spaced("logspace", dtype, type, mesh, (start, stop, base), **arguments)


@public
def geomspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
    axis: int = 0,
    *,
    type: Any = None,
    mesh: Any = None,
) -> Array:
    """Numbers at equal ratios, as `jax.numpy.geomspace`; see `linspace`."""
    arguments = {"start": start, "stop": stop, "num": operator.index(num), "endpoint": bool(endpoint)}
    return _spaced("geomspace", dtype, type, mesh, (start, stop), **arguments)


@public
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Array]:
    """The coordinates of a grid, one array for each vector, as `jax.numpy.meshgrid`.

    Args:
        *xi (n): Vectors; each keeps its state, and the dim of a sharded one is sharded.
        copy: Accepted for compatibility; ignored.
        sparse: Leaves the other dims at size 1.
        indexing: ``"xy"`` puts the second vector first, ``"ij"`` keeps the order.

    Communicates: nothing. Transpose: the sum over the other dims.
    """
    if indexing not in ("xy", "ij"):
        raise ShardingTypeError(f"`meshgrid` knows indexing 'xy' and 'ij', not {indexing!r}")
    vectors = [reshape(x, (-1,)) if jax.typeof(x).ndim != 1 else x for x in as_operands(xi)[0]]
    sizes = [jax.typeof(x).shape[0] for x in vectors]
    places = list(range(len(vectors)))
    if indexing == "xy" and len(places) > 1:
        places[:2] = 1, 0
    full = [sizes[places.index(d)] for d in range(len(sizes))]
    shapes = [[n if not sparse or d == place else 1 for d, n in enumerate(full)] for place in places]
    return [broadcast_in_dim(x, shape, (place,)) for x, shape, place in zip(vectors, shapes, places, strict=True)]


# constant index arrays, replicated


def _constant_of(native: Callable[..., Any], parameters: str, returns: str = "Array") -> Callable[..., Any]:
    name, signature = native.__name__, signature_of(parameters, returns, operands=0)

    def op(*args: Any, **kwargs: Any) -> Any:
        arguments = bound(name, signature, args, kwargs)
        with jax.ensure_compile_time_eval():  # in traced code too
            leaves, tree = jax.tree.flatten(native(**arguments))
            host = [np.asarray(leaf) for leaf in leaves]
        return jax.tree.unflatten(tree, [as_operands([x])[0][0] for x in host])

    doc = f"""`{native.__module__.replace("jax._src.", "jax.")}.{name}` of numbers, whole on every device.

    The parameters are JAX's: static numbers. Communicates: nothing. It has no gradient.
    """
    return public(named(op, name, doc, signature=signature))


bartlett, blackman, hamming, hanning = (
    _constant_of(native, "M") for native in (jnp.bartlett, jnp.blackman, jnp.hamming, jnp.hanning)
)
kaiser = _constant_of(jnp.kaiser, "M, beta")
diag_indices = _constant_of(jnp.diag_indices, "n, ndim=2", "tuple[Array, ...]")
tril_indices, triu_indices = (
    _constant_of(native, "n, k=0, m=None", "tuple[Array, Array]") for native in (jnp.tril_indices, jnp.triu_indices)
)
fftfreq, rfftfreq = (
    _constant_of(native, "n, d=1.0, *, dtype=None, device=None") for native in (jnp.fft.fftfreq, jnp.fft.rfftfreq)
)


@public
def tril_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """The positions on and below diagonal ``k`` of a matrix, as `jax.numpy.tril_indices_from`."""
    n, m = jax.typeof(as_operands([arr])[0][0]).shape[-2:]
    rows, columns = tril_indices(n, k, m)
    return rows, columns


@public
def triu_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """The positions on and above diagonal ``k`` of a matrix, as `jax.numpy.triu_indices_from`."""
    n, m = jax.typeof(as_operands([arr])[0][0]).shape[-2:]
    rows, columns = triu_indices(n, k, m)
    return rows, columns


@public
def diag_indices_from(arr: ArrayLike) -> tuple[Array, ...]:
    """The positions on the diagonal of an array of equal dims, as `jax.numpy.diag_indices_from`."""
    shape = jax.typeof(as_operands([arr])[0][0]).shape
    if len(shape) < 2 or len(set(shape)) != 1:
        raise ShardingTypeError(f"`diag_indices_from` needs dims of one size, not {shape}")
    return tuple(diag_indices(shape[0], len(shape)))
