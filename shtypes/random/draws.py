"""Draws of which each device makes its own part: every element is made of its own bits."""

from __future__ import annotations

import operator
from typing import Any

import jax
import numpy as np

from shtypes import dtypes
from shtypes.ops.dispatch import is_number, lift
from shtypes.ops.draws import default_float, default_int, draw
from shtypes.ops.draws_whole import draw_whole
from shtypes.ops.elementwise import less
from shtypes.where import public


@public
def uniform(
    key: Any, type: Any = (), dtype: Any = None, minval: float = 0.0, maxval: float = 1.0, *, mesh: Any = None
) -> Any:
    """Numbers in ``[minval, maxval)``: the global array that `jax.random.uniform` draws, each device its own part.

    Args:
        key (): A key; replicated, or varying for a varying draw.
        type: A text such as ``"f32[8@x,4]{U:y}"``, a type, or a shape, which is replicated by policy.
        dtype: The dtype, where the type leaves it out; the default float.
        minval: The least number.
        maxval: The end, not included.
        mesh: The mesh of a text or shape; by default that of the key.

    Returns:
        (...): The draw. It has no gradient.

    Raises:
        ShardingTypeError: the key varies where the type does not; the type is sharded and the key's generator makes all
            numbers at once (any but threefry).

    Communicates: nothing.
    """
    return draw("uniform", key, type, dtype, mesh, default_float(), minval=float(minval), maxval=float(maxval))


@public
def normal(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Standard normal numbers, as `jax.random.normal`; see `uniform`."""
    return draw("normal", key, type, dtype, mesh, default_float())


@public
def truncated_normal(
    key: Any, lower: float, upper: float, type: Any = (), dtype: Any = None, *, mesh: Any = None
) -> Any:
    """Standard normal numbers between bounds, as `jax.random.truncated_normal`; see `uniform`."""
    bounds = {"lower": float(lower), "upper": float(upper)}
    return draw("truncated_normal", key, type, dtype, mesh, default_float(), **bounds)


@public
def bernoulli(key: Any, p: Any = 0.5, type: Any = None, *, mesh: Any = None) -> Any:
    """True with probability ``p``, as `jax.random.bernoulli`; see `uniform`.

    Args:
        key (): A key.
        p (...): A number, or typed probabilities: then the draw lies as they do.
        type: The type; one value by default.
        mesh: The mesh of a text or shape.
    """
    if is_number(p):
        return draw("bernoulli", key, () if type is None else type, "bool", mesh, "bool", p=float(p), mode="low")
    ((p,), _) = lift([p])
    t = jax.typeof(p)
    return less(draw("uniform", key, t if type is None else type, t.dtype_name, mesh, "f32"), p)


@public
def randint(key: Any, type: Any = (), minval: int = 0, maxval: int = 2, dtype: Any = None, *, mesh: Any = None) -> Any:
    """Integers in ``[minval, maxval)``, as `jax.random.randint`; see `uniform`."""
    default = dtypes.from_numpy(jax.dtypes.canonicalize_dtype(np.int64))
    bounds = {"minval": operator.index(minval), "maxval": operator.index(maxval)}
    return draw("randint", key, type, dtype, mesh, default, **bounds)


@public
def bits(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Random bits as unsigned integers, as `jax.random.bits`; see `uniform`."""
    return draw("bits", key, type, dtype, mesh, "u32")


@public
def exponential(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Exponential numbers, as `jax.random.exponential`; see `uniform`."""
    return draw("exponential", key, type, dtype, mesh, default_float())


@public
def gumbel(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Gumbel numbers, as `jax.random.gumbel`; see `uniform`."""
    return draw("gumbel", key, type, dtype, mesh, default_float())


@public
def laplace(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Laplace numbers, as `jax.random.laplace`; see `uniform`."""
    return draw("laplace", key, type, dtype, mesh, default_float())


@public
def logistic(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Logistic numbers, as `jax.random.logistic`; see `uniform`."""
    return draw("logistic", key, type, dtype, mesh, default_float())


@public
def cauchy(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Cauchy numbers, as `jax.random.cauchy`; see `uniform`."""
    return draw("cauchy", key, type, dtype, mesh, default_float())


@public
def rademacher(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Minus one or one, as `jax.random.rademacher`; see `uniform`."""
    default = dtypes.from_numpy(jax.dtypes.canonicalize_dtype(np.int64))
    return draw("rademacher", key, type, dtype, mesh, default)


@public
def lognormal(key: Any, sigma: Any = 1.0, type: Any = None, dtype: Any = None, *, mesh: Any = None) -> Any:
    """Numbers whose logarithms are normal, as `jax.random.lognormal`; see `uniform`. Of arrays: as `gamma`."""
    return _of_numbers("lognormal", key, {"sigma": sigma}, type, dtype, mesh, default_float())


@public
def rayleigh(key: Any, scale: Any, type: Any = None, dtype: Any = None, *, mesh: Any = None) -> Any:
    """Rayleigh numbers, as `jax.random.rayleigh`; see `uniform`. Of arrays: as `gamma`."""
    return _of_numbers("rayleigh", key, {"scale": scale}, type, dtype, mesh, default_float())


@public
def pareto(key: Any, b: Any, type: Any = None, dtype: Any = None, *, mesh: Any = None) -> Any:
    """Pareto numbers, as `jax.random.pareto`; see `uniform`. Of arrays: as `gamma`."""
    return _of_numbers("pareto", key, {"b": b}, type, dtype, mesh, default_float())


@public
def weibull_min(
    key: Any, scale: Any, concentration: Any, type: Any = None, dtype: Any = None, *, mesh: Any = None
) -> Any:
    """Weibull numbers, as `jax.random.weibull_min`; see `uniform`. Of arrays: as `gamma`."""
    return _of_numbers(
        "weibull_min", key, {"scale": scale, "concentration": concentration}, type, dtype, mesh, default_float()
    )


@public
def triangular(
    key: Any, left: Any, mode: Any, right: Any, type: Any = None, dtype: Any = None, *, mesh: Any = None
) -> Any:
    """Triangular numbers, as `jax.random.triangular`; see `uniform`. Of arrays: as `gamma`."""
    return _of_numbers(
        "triangular", key, {"left": left, "mode": mode, "right": right}, type, dtype, mesh, default_float()
    )


@public
def geometric(key: Any, p: Any, type: Any = None, dtype: Any = None, *, mesh: Any = None) -> Any:
    """How many trials the first success takes, as `jax.random.geometric`; see `uniform`. Of arrays: as `gamma`."""
    return _of_numbers("geometric", key, {"p": p}, type, dtype, mesh, default_int())


def _of_numbers(name: str, key: Any, params: dict[str, Any], type: Any, dtype: Any, mesh: Any, default: str) -> Any:
    """A draw whose parameters are numbers; where they are arrays, all of it is drawn at once."""
    if all(is_number(v) for v in params.values()):
        numbers = {n: float(v) for n, v in params.items()}
        return draw(name, key, () if type is None else type, dtype, mesh, default, **numbers)
    return draw_whole(name, getattr(jax.random, name), key, list(params.values()), type, dtype, mesh, default)
