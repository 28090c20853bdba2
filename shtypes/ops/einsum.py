"""einsum and its family. A contraction over a sharded dim is unreduced; nothing is communicated unless ``out`` asks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import opt_einsum

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.dim_fns import DeviceSlice, Einsum
from shtypes.core.eager_cache import public
from shtypes.core.elementwise_fns import NamedFn, Permute
from shtypes.core.shard_fn import local_dtype
from shtypes.dispatch.apply import apply, as_operands, dtype_name, is_number
from shtypes.dispatch.reshard import reshard
from shtypes.errors import ShardingTypeError
from shtypes.ops.collective_matmul.einsum import overlapped_einsum
from shtypes.types import ShType, dtypes


@public
def einsum(
    equation: str,
    *operands: Any,
    out: Any = None,
    optimize: Any = "auto",
    overlap: Any = False,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """A sum of products over any number of operands, in the notation of `jax.numpy.einsum`.

    Per axis: a label that is sharded in some operand is sharded in the result if that has it, and the result is
    unreduced if it is contracted; operands that have the label and are replicated are sliced, for free. One unreduced
    operand needs the others reduced. More than two operands are contracted in pairs, in the order that costs least.

    Args:
        equation: Labels of each operand's dims, and of the result's: ``"sbh,hi->sbi"``. ``...`` stands for other dims.
        *operands (...): Typed values, or plain arrays.
        out: A type to reshard the result to, from the one it has by itself.
        optimize: How the order of contraction is chosen, as in `jax.numpy`.
        overlap: Whether what ``out`` asks for is overlapped with the products of two operands, as a ring of permutes:
            the gather of an operand, where ``out`` has the gathered dim; or the scatter of a pending sum.
            ``"bidirectional"`` sends one half of each piece each way. Derivatives are rings as well.
        precision: As in `jax.numpy`.
        preferred_element_type: The dtype of the result, and so of each partial sum.

    Returns:
        (...): The result; its type says which sums are pending.

    Raises:
        ShardingTypeError: the equation does not fit; two labels share a mesh axis; an unreduced operand meets one that
            is not replicated; ``overlap`` finds nothing to overlap.

    Communicates: nothing but what ``out`` asks for; an invariant operand that is cast communicates backward. With
    ``overlap``, the bytes of the collective as permutes; backward a gathered operand goes round again.
    Transpose: an einsum of the cotangent with the other operands, for each.
    """
    if not isinstance(equation, str):
        raise ShardingTypeError(
            f"`einsum` needs an equation first, not {type(equation).__name__}", hints=['sh.einsum("sbh,hi->sbi", x, w)']
        )
    if not operands:
        raise ShardingTypeError("`einsum` needs at least one operand", hints=['sh.einsum("sbh,hi->sbi", x, w)'])
    values, constants = as_operands(operands)
    explicit = rules.canonical_equation(equation, [x.type.ndim for x in values])
    dtype = _dtype(values, precision, preferred_element_type)
    if overlap is not False:
        return overlapped_einsum(explicit, values, constants, dtype, precision, out, overlap)
    y = _contract(explicit, values, constants, dtype, precision, optimize)
    return y if out is None else reshard(y, out)


_PROMOTED = NamedFn("einsum", lambda *xs: functools.reduce(jnp.multiply, xs), keeps_dtype=True)


def _dtype(values: Sequence[Any], precision: Any, preferred: Any) -> str:
    """The dtype of the result, as JAX promotes; a precision that JAX refuses is refused here."""
    names = tuple(x.type.dtype_name for x in values)
    dtype = local_dtype(_PROMOTED, names) if preferred is None else dtype_name(preferred)
    if not dtypes.differentiable(dtype) and any(map(dtypes.differentiable, names)):
        what = f"`einsum` of {' and '.join(names)} cannot have the dtype `{dtype}`"
        raise ShardingTypeError(what, why="each partial sum would be rounded")
    config: Any = jax.config
    chosen = preferred, precision, config.jax_default_matmul_precision
    if dtypes.differentiable(dtype) and all(x is None for x in chosen):
        return dtype  # nothing to refuse
    return local_dtype(Einsum("a,a->a", dtype, precision), (dtype, dtype))


def _contract(
    equation: str, values: list[Any], constants: frozenset[int], dtype: str, precision: Any, optimize: Any
) -> Any:
    """Contracts pair by pair, along the path with the fewest products."""
    if len(values) <= 2:
        return _pair(equation, values, constants, dtype, precision)
    pending = list(enumerate(values))
    fixed = set(constants)
    optimize = tuple(map(tuple, optimize)) if isinstance(optimize, list) else optimize
    for step, (positions, pair) in enumerate(_path(equation, tuple(x.type.shape for x in values), optimize)):
        taken = [pending.pop(i) for i in sorted(positions, reverse=True)]
        of_pair = frozenset(i for i, (key, _) in enumerate(taken) if key in fixed)
        result = _pair(pair, [x for _, x in taken], of_pair, dtype, precision)
        key = len(values) + step
        if len(of_pair) == len(taken):
            fixed.add(key)
        pending.append((key, result))
    return pending[0][1]


@functools.lru_cache(maxsize=1024)
def _path(equation: str, shapes: tuple[tuple[int, ...], ...], optimize: Any) -> list[tuple[tuple[int, ...], str]]:
    """The positions of the operands that each step contracts, and its equation."""
    _, info = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize=optimize)
    return [(tuple(positions), str(pair)) for positions, _, pair, *_ in info.contraction_list]


def _pair(equation: str, values: list[Any], constants: frozenset[int], dtype: str, precision: Any) -> Array:
    """One contraction of one or two operands."""

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return rules.einsum(equation, types, dtype, constants)

    value_types = tuple(x.type for x in values)
    inputs, output = equation.split("->")
    if len(values) == 1 and sorted(inputs) == sorted(output) and len(set(inputs)) == len(inputs):
        perm = tuple(inputs.index(label) for label in output)
        if value_types[0].dtype_name == dtype:
            return apply("einsum", Permute(perm), rule, *values)

    def local(types: tuple[ShType, ...]) -> Einsum:
        slices = tuple(s for i, t in enumerate(types) for s in _diagonals(i, inputs.split(",")[i], t))
        return Einsum(equation, dtype, precision, slices)

    return apply(f"einsum[{equation}]", local, rule, *values)


def _diagonals(operand: int, labels: str, t: ShType) -> list[DeviceSlice]:
    """The dims of an operand that must follow a sharded dim with the same label."""
    slices = []
    for i, label in enumerate(labels):
        at = next((j for j, other in enumerate(labels) if other == label and t.dims[j].axes), None)
        if at is not None and i != at and not t.dims[i].axes and t.local_shape[i] != t.local_shape[at]:
            slices.append(DeviceSlice(operand, i, t.dims[at].axes, t.local_shape[at]))
    return slices


@public
def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    out: Any = None,
    overlap: Any = False,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """The matrix product, ``a @ b``, batched over leading dims as in `jax.numpy.matmul`; typed as `einsum`.

    Args:
        a (..., n, k): Left operand, or a vector (k,).
        b (..., k, m): Right operand, or a vector (k,).
        out: A type to reshard the result to.
        overlap: As in `einsum`.
        precision: As in `jax.numpy`.
        preferred_element_type: The dtype of the result.

    Returns:
        (..., n, m): The product; unreduced on the axes that shard ``k``.

    Communicates: nothing but what ``out`` asks for. Transpose: matrix products.
    """
    if is_number(a) or is_number(b):
        raise ShardingTypeError("`matmul` takes arrays, not numbers", hints=["x * y"])
    values, _ = as_operands([a, b])
    n, m = (v.type.ndim for v in values)
    if 0 in (n, m):
        raise ShardingTypeError("`matmul` takes arrays of at least one dim", hints=["x * y"])
    left = "k" if n == 1 else "...nk"
    right = "k" if m == 1 else "...km"
    result = "..." * (n > 2 or m > 2) + "n" * (n > 1) + "m" * (m > 1)
    left, right = (p if n > 2 or m > 2 else p.replace("...", "") for p in (left, right))
    options = {"overlap": overlap, "precision": precision, "preferred_element_type": preferred_element_type}
    return einsum(f"{left},{right}->{result}", *(a, b), out=out, **options)
