"""How far apart two computations of one value may be: by what rounding can do, on any processor, and by nothing else.

Each operation rounds: its result is off by at most half of `eps`, the distance between two numbers next to one another,
relative to the largest number that it adds. So two computations of one value, whose longest chain has n roundings, in
whatever order and by whatever instructions, differ by at most n·eps of the largest element. Roundings go either way, so
that √n·eps is what is seen; the rest is room for sums that are smaller than their terms.

`chain_errors` counts the chain in the program of the reference, so that a test chooses no tolerance. Where a problem is
badly conditioned and makes errors larger than that, the test says by which factor, and why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from tests.compiling import compiled

#: The roundings of a short program: sums of some hundred numbers, or of fewer between functions that are approximated.
SHORT: Final = 128
#: The roundings of a short program of narrow floats, which is computed with wide ones: on the way in and out.
NARROW: Final = 2
#: An approximated function is within so many roundings of the exact one, whichever instructions compute it.
FUNCTION: Final = 8
#: A function that is a series or an iteration.
SERIES: Final = 512
#: As many terms a pending sum has here.
DEVICES: Final = 8
#: The steps of a loop that nobody counts.
STEPS: Final = 8


def eps(dtype: Any) -> float:
    """The distance from one to the next number; 0 for what is exact."""
    dtype = jnp.dtype(dtype)
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0  # type: ignore[no-untyped-call]


def off_by(found: Any, wanted: Any) -> float:
    """The largest difference, relative to the largest element; infinite where one has a number and the other has none.

    Raises:
        AssertionError: the shapes differ.
    """
    assert np.shape(found) == np.shape(wanted), f"shape {np.shape(found)}, not {np.shape(wanted)}"
    kind = np.complex128 if np.iscomplexobj(found) or np.iscomplexobj(wanted) else np.float64
    a, b = np.asarray(found).astype(kind), np.asarray(wanted).astype(kind)
    finite = np.isfinite(a) & np.isfinite(b)
    if not (finite | (a == b) | (np.isnan(a) & np.isnan(b))).all():
        return math.inf
    largest = float(np.max(np.abs(b), initial=0, where=finite))
    difference = float(np.max(np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)), initial=0))
    return difference / (largest or 1.0)


def assert_close(found: Any, wanted: Any, roundings: float | None = None, what: Any = "") -> None:
    """Compares two arrays; exactly, those without floats.

    Args:
        found: What is tested.
        wanted: The reference.
        roundings: Those of the longest chain; by default those of a short program.
        what: For the message.
    """
    found, wanted = np.asarray(found), np.asarray(wanted)
    coarse = max(eps(found.dtype), eps(wanted.dtype))
    count = roundings if roundings is not None else SHORT if coarse <= eps(np.float32) else NARROW
    assert_within(found, wanted, count * coarse, what)


def assert_within(found: Any, wanted: Any, most: float, what: Any = "") -> None:
    """Compares two arrays: the largest difference, relative to the largest element, is at most ``most``."""
    assert most < 0.3, f"{what}: within {most:.2g} says nothing"
    off = off_by(found, wanted)
    assert off <= most, f"{what}: off by {off:.2g}, and rounding explains {most:.2g}\n{found}\nnot\n{wanted}"


# counted in a program


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FUNCTIONS: Final = _names(
    "acos acosh asin asinh atan atan2 atanh cbrt cos cosh erf erfc exp exp2 expm1 log log1p logistic pow rsqrt sin sinh"
    " sqrt tan tanh"
)
_SERIES: Final = _names(
    "bessel_i0e bessel_i1e digamma erf_inv igamma igammac igamma_grad_a lgamma polygamma random_gamma_grad"
    " regularized_incomplete_beta zeta"
)
_SOLVERS: Final = _names(
    "cholesky eig eigh geqrf householder_product lu qr schur svd triangular_solve tridiagonal_solve"
)
_EXACT: Final = _names(
    "abs broadcast_in_dim ceil clamp complex concatenate conj copy dynamic_slice dynamic_update_slice expand_dims floor"
    " gather imag iota max min neg pad real reduce_max reduce_min reshape rev round select_n sign slice sort squeeze"
    " stop_gradient top_k transpose"
)
_SUMS: Final = ("cum", "fft", "conv_general_dilated", "scatter", "reduce_window", "select_and_scatter", "reduce_prod")


def computed(f: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, Any]:
    """The results of a plain program on arrays, and how far rounding may take those of the typed one from each.

    The typed program's operands and results may be pending sums, of a term on each device.
    """
    traced = jax.jit(f, **options).trace(*args)
    errors = chain_errors(traced.jaxpr.jaxpr, start=DEVICES)
    values = compiled(traced.lower())(*args)
    return jax.tree.map(np.asarray, values), jax.tree.unflatten(jax.tree.structure(values), errors)


def chain_errors(jaxpr: Any, start: int = 0) -> list[float]:
    """What rounding can change each result of a program by, relative to its largest element.

    Args:
        jaxpr: The program, of plain arrays.
        start: The roundings of its operands.
    """
    known: dict[Any, float] = {v: start * _eps_of(v) for v in jaxpr.invars}

    def read(atom: Any) -> float:
        return 0.0 if hasattr(atom, "val") else known.get(atom, 0.0)

    for eqn in jaxpr.eqns:
        worst = max([read(v) for v in eqn.invars], default=0.0)
        bodies = [b for p in eqn.params.values() for b in _programs(p)]
        if bodies:
            times = eqn.params.get("length", STEPS if eqn.primitive.name == "while" else 1)
            worst += times * max(e for body in bodies for e in [0.0, *chain_errors(body)])
        for v in eqn.outvars:
            known[v] = worst + (0.0 if bodies else _count(eqn) * _eps_of(v))
    return [read(v) for v in jaxpr.outvars]


def _programs(param: Any) -> list[Any]:
    """The programs in a parameter of an equation."""
    inside = [getattr(p, "jaxpr", p) for p in (param if isinstance(param, (tuple, list)) else [param])]
    return [p for p in inside if hasattr(p, "eqns")]


def _eps_of(v: Any) -> float:
    dtype = getattr(v.aval, "dtype", None)
    return 0.0 if dtype is None or jnp.issubdtype(dtype, jax.dtypes.extended) else eps(dtype)


def _count(eqn: Any) -> float:
    """How often an element of the result is rounded in one equation."""
    name = eqn.primitive.name
    if name in _EXACT or not eqn.invars:
        return 0
    shape = getattr(eqn.invars[0].aval, "shape", ())
    if name == "convert_element_type" and _eps_of(eqn.outvars[0]) > _eps_of(eqn.invars[0]):
        return DEVICES  # of a pending sum each term is rounded
    if name == "dot_general":
        return float(math.prod(shape[d] for d in eqn.params["dimension_numbers"][0][0]))
    if name == "reduce_sum":
        return float(math.prod(shape[d] for d in eqn.params["axes"]))
    if name == "integer_pow":
        return abs(int(eqn.params["y"]))
    if name.startswith(_SUMS):
        return math.prod(shape)
    if name in _SOLVERS:
        return SERIES + math.prod(shape)
    return FUNCTION if name in _FUNCTIONS else SERIES if name in _SERIES else 1
