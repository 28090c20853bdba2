"""Samples of which each device computes only its shard."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax

from shtypes.context.signature_errors import bound, signature_of
from shtypes.core.array import Array
from shtypes.core.eager_cache import public, published
from shtypes.dispatch.apply import as_operands, is_number
from shtypes.numerics.random.draw import SAMPLERS, default_int, sample, sample_replicated, type_or_shape
from shtypes.ops.create import default_float
from shtypes.ops.elementwise import less


def distribution(
    name: str,
    what: str,
    *params: str,
    default: Callable[[], str] = default_float,
    optional: tuple[float, ...] = (),
    only_numbers: bool = False,
) -> Callable[..., Array]:
    """A public function of a key, the named parameters, and the arguments of all distributions; samples ``what``.

    If the sampler is elementwise and the parameters are numbers, each device computes only its shard. ``optional`` are
    the defaults of the last parameters; if ``only_numbers``, no parameter may be typed.
    """
    required = len(params) - len(optional)
    defaults = [f"{n}={v}" for n, v in zip(params[required:], optional, strict=True)]
    written = ["key", *params[:required], *defaults, "type=None", "dtype=None", "*", "shape=None", "mesh=None"]
    signature = signature_of(", ".join(written), operands=0)
    shards = name in SAMPLERS

    def op(*args: Any, **kwargs: Any) -> Array:
        a = bound(name, signature, args, kwargs)
        type, values = type_or_shape(a["type"], a["shape"]), [a[p] for p in params]
        as_numbers = only_numbers or (shards and all(map(is_number, values)))
        numbers: dict[str, Any] = {n: float(a[n]) for n in params} if as_numbers else {}
        if shards and as_numbers:
            return sample(name, a["key"], () if type is None else type, a["dtype"], a["mesh"], default(), **numbers)
        operands = [] if as_numbers else values
        return sample_replicated(name, a["key"], operands, type, a["dtype"], a["mesh"], default=default(), **numbers)

    see = "see `uniform`" if shards else "see `gamma`"
    of_arrays = ". Of arrays: as `gamma`" if shards and params else ""
    return published(op, name, f"{what}, as `jax.random.{name}`; {see}{of_arrays}.", signature)


@public
def uniform(
    key: Any,
    type: Any = (),
    dtype: Any = None,
    minval: float = 0.0,
    maxval: float = 1.0,
    *,
    shape: Any = None,
    mesh: Any = None,
) -> Array:
    """Numbers in ``[minval, maxval)``: each device computes its shard of the array of `jax.random.uniform`.

    Args:
        key (): A key; replicated, or varying for a varying result.
        type: A type, also as a string such as ``"f32[8@x,4]{U:y}"``, or a shape, which is replicated by policy.
        dtype: The default dtype, if the type has none; by default JAX's float.
        minval: The minimum.
        maxval: The end, exclusive.
        shape: A shape by name, as in JAX, instead of ``type``.
        mesh: The mesh of a type as a string, or of a shape; by default that of the key.

    Returns:
        (...): The samples. They have no gradient.

    Raises:
        ShardingTypeError: the key varies where the type does not; the type is sharded and the key's generator cannot
            compute a shard alone (any but threefry).

    Communicates: nothing.
    """
    bounds = {"minval": float(minval), "maxval": float(maxval)}
    return sample("uniform", key, type, dtype, mesh, default_float(), shape=shape, **bounds)


@public
def bernoulli(key: Any, p: Any = 0.5, type: Any = None, *, shape: Any = None, mesh: Any = None) -> Array:
    """True with probability ``p``, as `jax.random.bernoulli`; see `uniform`.

    Args:
        key (): A key.
        p (...): A number, or typed probabilities, whose type the samples then have.
        type: The type; a scalar by default.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a type as a string, or of a shape.
    """
    type = type_or_shape(type, shape)
    if is_number(p):
        return sample("bernoulli", key, () if type is None else type, "bool", mesh, "bool", p=float(p), mode="low")
    ((p,), _) = as_operands([p])
    t = jax.typeof(p)
    return less(sample("uniform", key, t if type is None else type, t.dtype_name, mesh, "f32"), p)


@public
def randint(
    key: Any,
    type: Any = (),
    minval: int = 0,
    maxval: int = 2,
    dtype: Any = None,
    *,
    shape: Any = None,
    mesh: Any = None,
) -> Array:
    """Integers in ``[minval, maxval)``, as `jax.random.randint`; see `uniform`."""
    bounds = {"minval": operator.index(minval), "maxval": operator.index(maxval)}
    return sample("randint", key, type, dtype, mesh, default_int(), shape=shape, **bounds)


normal = distribution("normal", "Standard normal numbers")
bits = distribution("bits", "Random bits as unsigned integers", default=lambda: "u32")
truncated_normal = distribution("truncated_normal", "Standard normal numbers between bounds", "lower", "upper")
exponential = distribution("exponential", "Exponential numbers")
gumbel = distribution("gumbel", "Gumbel numbers")
laplace = distribution("laplace", "Laplace numbers")
logistic = distribution("logistic", "Logistic numbers")
cauchy = distribution("cauchy", "Cauchy numbers")
rademacher = distribution("rademacher", "Minus one or one", default=default_int)
lognormal = distribution("lognormal", "Numbers whose logarithms are normal", "sigma", optional=(1.0,))
rayleigh = distribution("rayleigh", "Rayleigh numbers", "scale")
pareto = distribution("pareto", "Pareto numbers", "b")
weibull_min = distribution("weibull_min", "Weibull numbers", "scale", "concentration")
triangular = distribution("triangular", "Triangular numbers", "left", "mode", "right")
geometric = distribution("geometric", "How many trials the first success takes", "p", default=default_int)
