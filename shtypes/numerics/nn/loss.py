"""Cross entropy, also over a sharded vocabulary."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import as_operands, is_typed, located, match_replicated
from shtypes.dispatch.reshard import reshard
from shtypes.errors import ShardingTypeError
from shtypes.ops.along_dims import normalize_dims, sum_of
from shtypes.ops.arithmetic import astype, multiply, subtract
from shtypes.ops.create import arange
from shtypes.ops.cross_shard import along, sharding
from shtypes.ops.elementwise import equal, exp, log
from shtypes.ops.functions import expand_dims, squeeze, stack, unstack, where
from shtypes.ops.sharded_reductions import finite_bound, total, wide
from shtypes.rules import messages
from shtypes.types import REPLICATED, Dim, ShType, State


@public
def cross_entropy(logits: ArrayLike, labels: Any, *, axis: int = -1, out: Any = None) -> Array:
    """The loss ``-log softmax(logits)[label]`` of each row, in at least 32 bits.

    Per axis: as `softmax`; labels are sharded as the rows, or replicated. The vocabulary may be sharded too: each
    device then reads only its scores, and no device has the full logits.

    Args:
        logits (..., V): Scores; ``V`` is dim ``axis``.
        labels (...): Integers in ``[0, V)``, or (..., V) probabilities such as one-hot rows.
        axis: The dim of the vocabulary.
        out: A type for the result; allows communication if the vocabulary is sharded.

    Returns:
        (...): The loss of each row; invariant over the axes that sharded the vocabulary, or of the type ``out``.

    Raises:
        ShardingTypeError: the vocabulary is sharded and communication is not allowed; logits or labels are unreduced,
            or do not fit.

    Communicates: nothing; with a sharded vocabulary, an all-reduce of the maximum of each row and one of two numbers
    for each row (the sum of exponentials, the label's score), and backward nothing. With a reduced result, another
    all-reduce of one number for each row backward.

    Examples:
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.make_mesh({"tp": 2})):
        ...     logits, labels = sh.zeros("f32[3, 8@tp]"), sh.zeros("i32[3]")
        ...     sh.nn.cross_entropy(logits, labels, out="[3]{I:tp}")
        Array(f32[3]{I:tp}, [2.0794415 2.0794415 2.0794415])
    """
    logits = as_operands([logits])[0][0]
    is_constant = not is_typed(labels)
    labels = as_operands([np.asarray(labels)])[0][0] if is_constant else labels
    t, kind = jax.typeof(logits), jax.typeof(labels)
    (dim,) = normalize_dims(operator.index(axis), t.ndim, "cross_entropy")
    dense = jnp.issubdtype(kind.dtype, jnp.floating)
    _check_labels(t, kind, dim, dense)
    logits = astype(logits, wide(t.dtype_name))
    if dense:
        labels = astype(labels, wide(kind.dtype_name))
        labels = match_replicated(labels, logits) if is_constant else labels
        for name in kind.dims[dim].axes:
            if t.state(name) in REPLICATED:  # each device needs only its slice
                logits = reshard(logits, **{name: dim})

    def unsharded(logits: Any) -> Array:
        for name in sharding(jax.typeof(logits), (dim,)):
            raise located(messages.along("cross_entropy", jax.typeof(logits), name), "cross_entropy", [t, kind])
        return across(logits)

    def across(logits: Any) -> Array:
        shifted = subtract(logits, finite_bound(logits, (dim,)))
        if dense:
            terms = [exp(shifted), multiply(shifted, labels), labels]
        else:
            hit = equal(expand_dims(labels, dim), _positions(jax.typeof(shifted), dim))
            terms = [exp(shifted), where(hit, shifted, 0)]
        normal, score, *weight = _totals(terms, dim)
        normal = log(normal)
        return subtract(multiply(normal, weight[0]) if dense else normal, score)

    return along("nn.cross_entropy", logits, (dim,), unsharded, across, out)


def _positions(t: ShType, dim: int) -> Array:
    """The global positions along a dim of a type, sharded as it is; the other dims have size 1."""
    d = t.dims[dim]
    states = {
        a: State.VARYING if t.state(a) is State.VARYING else State.REDUCED for a in t.mesh.axis_names if a not in d.axes
    }
    positions = arange(d.size, type=ShType(t.mesh, "i32", [Dim(d.size, d.axes)], states))
    return expand_dims(positions, tuple(i for i in range(t.ndim) if i != dim))


def _check_labels(t: ShType, kind: ShType, dim: int, dense: bool) -> None:
    shape = t.shape if dense else t.shape[:dim] + t.shape[dim + 1 :]
    if kind.shape != shape or not (dense or jnp.issubdtype(kind.dtype, jnp.integer)):
        raise ShardingTypeError(
            f"`cross_entropy` of logits {t} cannot take labels {kind}",
            why="labels are integers, one for each row, or floats, one for each logit",
        )


def _totals(terms: list[Any], dim: int) -> list[Array]:
    """Sums over the vocabulary; all-reduced together if it is sharded."""
    pending = [squeeze(sum_of("sum", x, (dim,)), dim) for x in terms]
    axes = list(dict.fromkeys(a for x in terms for a in sharding(jax.typeof(x), (dim,))))
    if not axes:
        return pending
    return list(unstack(total(stack(pending), axes)))
