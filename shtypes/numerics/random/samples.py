"""Samples of which each device computes its shard: every element follows from its bits."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax

from shtypes.context.signature_errors import bound, signature_of
from shtypes.context.user_line import named
from shtypes.core.array import Array
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import as_operands, is_number
from shtypes.numerics.bits.samples import default_float, default_int, sample, type_or_shape
from shtypes.numerics.bits.samples_whole import sample_whole
from shtypes.ops.elementwise import less

#: A function from a key, parameters, a type, a dtype and a mesh to samples.
Make = Callable[[Any, list[Any], Any, Any, Any], Any]


def distribution(
    name: str, doc: str, params: tuple[str, ...], make: Make, optional: tuple[float, ...] = ()
) -> Callable[..., Array]:
    """A public function of a key, of parameters with these names, and of what every distribution takes.

    ``optional`` are the defaults of the last parameters.
    """
    required = len(params) - len(optional)
    defaults = dict(zip(params[required:], optional, strict=True))
    parameters = ["key", *params[:required], *(f"{n}={v}" for n, v in defaults.items()), "type=None", "dtype=None"]
    signature = signature_of(", ".join([*parameters, "*", "shape=None", "mesh=None"]), operands=0)

    def op(*args: Any, **kwargs: Any) -> Array:
        arguments = bound(name, signature, args, kwargs)
        target = type_or_shape(arguments["type"], arguments["shape"])
        values: Array = make(
            arguments["key"], [arguments[p] for p in params], target, arguments["dtype"], arguments["mesh"]
        )
        return values

    return public(named(op, name, doc, "shtypes.numerics.random", signature))


def _plain(name: str, what: str, default: Callable[[], str] = default_float) -> Callable[..., Array]:
    """A distribution without parameters."""

    def op(key: Any, type: Any = (), dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array:
        return sample(name, key, type_or_shape(type, shape), dtype, mesh, default())

    return public(named(op, name, f"{what}, as `jax.random.{name}`; see `uniform`.", "shtypes.numerics.random"))


def _of_numbers(
    name: str, what: str, *params: str, default: Callable[[], str] = default_float, optional: tuple[float, ...] = ()
) -> Callable[..., Array]:
    """A distribution whose parameters are numbers; where they are arrays, each device makes all of it."""

    def make(key: Any, values: list[Any], type: Any, dtype: Any, mesh: Any) -> Any:
        if all(map(is_number, values)):
            numbers = {n: float(v) for n, v in zip(params, values, strict=True)}
            return sample(name, key, () if type is None else type, dtype, mesh, default(), **numbers)
        return sample_whole(name, getattr(jax.random, name), key, values, type, dtype, mesh, default())

    doc = f"{what}, as `jax.random.{name}`; see `uniform`. Of arrays: as `gamma`."
    return distribution(name, doc, params, make, optional)


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
    """Numbers in ``[minval, maxval)``: the global array that `jax.random.uniform` makes, each device its own part.

    Args:
        key (): A key; replicated, or varying for a varying result.
        type: A text such as ``"f32[8@x,4]{U:y}"``, a type, or a shape, which is replicated by policy.
        dtype: The dtype, where the type leaves it out; the default float.
        minval: The least number.
        maxval: The end, not included.
        shape: A shape by name, as in JAX, instead of ``type``.
        mesh: The mesh of a text or shape; by default that of the key.

    Returns:
        (...): The samples. They have no gradient.

    Raises:
        ShardingTypeError: the key varies where the type does not; the type is sharded and the key's generator makes all
            numbers at once (any but threefry).

    Communicates: nothing.
    """
    bounds = {"minval": float(minval), "maxval": float(maxval)}
    return sample("uniform", key, type_or_shape(type, shape), dtype, mesh, default_float(), **bounds)


@public
def truncated_normal(
    key: Any,
    lower: float,
    upper: float,
    type: Any = (),
    dtype: Any = None,
    *,
    shape: Any = None,
    mesh: Any = None,
) -> Array:
    """Standard normal numbers between bounds, as `jax.random.truncated_normal`; see `uniform`."""
    bounds = {"lower": float(lower), "upper": float(upper)}
    return sample("truncated_normal", key, type_or_shape(type, shape), dtype, mesh, default_float(), **bounds)


@public
def bernoulli(key: Any, p: Any = 0.5, type: Any = None, *, shape: Any = None, mesh: Any = None) -> Array:
    """True with probability ``p``, as `jax.random.bernoulli`; see `uniform`.

    Args:
        key (): A key.
        p (...): A number, or typed probabilities: then the samples lie as they do.
        type: The type; one value by default.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a text or shape.
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
    return sample("randint", key, type_or_shape(type, shape), dtype, mesh, default_int(), **bounds)


normal = _plain("normal", "Standard normal numbers")
bits = _plain("bits", "Random bits as unsigned integers", lambda: "u32")
exponential = _plain("exponential", "Exponential numbers")
gumbel = _plain("gumbel", "Gumbel numbers")
laplace = _plain("laplace", "Laplace numbers")
logistic = _plain("logistic", "Logistic numbers")
cauchy = _plain("cauchy", "Cauchy numbers")
rademacher = _plain("rademacher", "Minus one or one", default_int)
lognormal = _of_numbers("lognormal", "Numbers whose logarithms are normal", "sigma", optional=(1.0,))
rayleigh = _of_numbers("rayleigh", "Rayleigh numbers", "scale")
pareto = _of_numbers("pareto", "Pareto numbers", "b")
weibull_min = _of_numbers("weibull_min", "Weibull numbers", "scale", "concentration")
triangular = _of_numbers("triangular", "Triangular numbers", "left", "mode", "right")
geometric = _of_numbers("geometric", "How many trials the first success takes", "p", default=default_int)
