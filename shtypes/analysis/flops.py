"""The operations of an equation: two for each term of a product, one for each element, leading terms otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from shtypes._compat.jaxprs import Cond, control, inner_jaxprs, jaxpr_of
from shtypes.analysis.device_steps import Kind, Step
from shtypes.types import dtypes


def is_convolution(eqn: Any) -> bool:
    """Whether an equation is a convolution."""
    return hasattr(eqn.params.get("dimension_numbers"), "rhs_spec")


def product_flops(eqn: Any) -> int | None:
    """Operations of a matrix product or convolution, from its contracted dims; None for anything else."""
    if "ragged_dot_dimension_numbers" in eqn.params:
        return round(_ragged_dot(eqn))
    if is_convolution(eqn):
        return round(_convolution(eqn))
    numbers = eqn.params.get("dimension_numbers")
    if isinstance(numbers, tuple) and len(numbers) == 2 and "preferred_element_type" in eqn.params:
        return round(_dot(eqn))
    return None


class Product(NamedTuple):
    """A matrix product or convolution, with the dtype of its operands by its short name."""

    flops: int
    dtype: str
    bytes: int  # of operands and results


def products(eqn: Any) -> list[Product]:
    """The products of an equation, those of its bodies too: of a while loop once, of branches the largest."""
    if (flops := product_flops(eqn)) is not None:
        nbytes = sum(_size(v.aval) * v.aval.dtype.itemsize for v in (*eqn.invars[:2], *eqn.outvars))
        return [Product(flops, dtypes.from_numpy(eqn.invars[0].aval.dtype), nbytes)]
    bodies = []
    for body, times in inner_jaxprs(eqn):
        once = [p for inner in jaxpr_of(body).eqns for p in products(inner)]
        n = 1 if times is None else times
        bodies.append([Product(n * p.flops, p.dtype, n * p.bytes) for p in once])
    if isinstance(control(eqn), Cond):
        return max(bodies, key=lambda body: sum(p.flops for p in body))
    return [p for body in bodies for p in body]


def step_flops(step: Step) -> int | None:
    """Operations of a step without bodies; None if unknown."""
    name, eqn = step.name, step.eqn
    if eqn is not None and (product := product_flops(eqn)) is not None:
        return product
    if name in _COUNTED:
        return round(_COUNTED[name](eqn))
    if name in _MOVES or step.kind in (Kind.VIEW, Kind.BARRIER, Kind.STORE):
        return 0
    if step.kind in (Kind.MAP, Kind.COSTLY):
        return sum(_size(v.aval) for v in step.results)
    if step.kind is Kind.FOLD or name.startswith("cum"):
        return sum(_size(v.aval) for v in step.operands)
    return None


def _size(aval: Any) -> int:
    """The number of elements."""
    return math.prod(aval.shape)


def _dot(eqn: Any) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return float(2 * _size(eqn.outvars[0].aval) * math.prod(eqn.invars[0].aval.shape[d] for d in contracted))


def _convolution(eqn: Any) -> float:
    kernel, features = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec[0]
    terms = math.prod(kernel) / kernel[features] / math.prod(eqn.params["lhs_dilation"])
    return float(2 * _size(eqn.outvars[0].aval) * terms)


def _ragged_dot(eqn: Any) -> float:
    rows, columns = eqn.invars[0].aval.shape[-2:], eqn.invars[1].aval.shape[-1]
    return float(2 * math.prod(rows) * columns)


def _window(eqn: Any) -> float:
    return float(_size(eqn.outvars[0].aval) * math.prod(eqn.params["window_dimensions"]))


def _sorted(eqn: Any) -> float:
    shape, dim = eqn.invars[0].aval.shape, eqn.params.get("dimension", -1)
    return float(math.prod(shape) * math.log2(max(2, shape[dim] if shape else 2)))


def _fft(eqn: Any) -> float:
    return 5 * _size(eqn.outvars[0].aval) * math.log2(max(2, math.prod(eqn.params["fft_lengths"])))


def _cubic(factor: float) -> Callable[[Any], float]:
    """The count of a matrix factorization: ``factor * rows * columns * min(rows, columns)``."""

    def flops(eqn: Any) -> float:
        *batch, rows, columns = eqn.invars[0].aval.shape
        return float(factor * math.prod(batch) * rows * columns * min(rows, columns))

    return flops


def _triangular_solve(eqn: Any) -> float:
    return float(_size(eqn.invars[1].aval) * eqn.invars[0].aval.shape[-1])


def _updates(eqn: Any) -> float:
    return _size(eqn.invars[-1].aval)


#: Operations whose count is neither one for each element nor zero; factorizations by their textbook leading term.
_COUNTED: Final[Mapping[str, Callable[[Any], float]]] = {
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window"), _window),
    **dict.fromkeys(("sort", "top_k", "approx_top_k"), _sorted),
    "fft": _fft,
    "cholesky": _cubic(1 / 3),
    "lu": _cubic(2 / 3),
    **dict.fromkeys(("qr", "geqrf", "householder_product"), _cubic(2)),
    **dict.fromkeys(("eigh", "eig", "svd", "schur", "tridiagonal", "hessenberg"), _cubic(9)),
    "triangular_solve": _triangular_solve,
    **dict.fromkeys(("scatter-add", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"), _updates),
    **dict.fromkeys(("argmax", "argmin"), lambda eqn: _size(eqn.invars[0].aval)),
    **dict.fromkeys(("select_and_scatter_add", "select_and_gather_add"), lambda eqn: _size(eqn.invars[0].aval)),
    **dict.fromkeys(("threefry2x32", "random_bits"), lambda eqn: 80 * sum(_size(v.aval) for v in eqn.outvars)),
}
#: Operations that only move elements.
_MOVES: Final = frozenset({
    *("slice", "dynamic_slice", "dynamic_update_slice", "gather", "scatter", "concatenate", "split", "pad", "rev"),
    *("transpose", "broadcast_in_dim", "iota", "select_n", "convert_element_type", "copy", "real", "imag", "complex"),
    *("axis_index", "is_finite", "random_wrap", "random_unwrap", "random_seed", "random_split", "random_fold_in"),
    "debug_callback",
})  # fmt: skip
