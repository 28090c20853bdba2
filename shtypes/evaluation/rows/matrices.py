"""Rows of products, convolutions, transforms, matrix decompositions, keys and random bits."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from shtypes import rules
from shtypes.core.dim_fns import Einsum
from shtypes.core.key_batches import draws_for_batch
from shtypes.core.shard_fn import ShardFn
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.rows.families import (
    Call,
    FamilyRule,
    Row,
    Types,
    all_unsharded,
    along,
    batched,
    ints,
    joined_by_labels,
    rows,
    unchanged,
)
from shtypes.evaluation.table import row
from shtypes.rules import Typing
from shtypes.rules.einsum_like import ProductDims, Window, conv_plan
from shtypes.rules.einsum_like import contraction as _contraction
from shtypes.rules.random import sample
from shtypes.rules.typing import Label
from shtypes.types import Dim, ShType, State
from shtypes.types.policy import replicated

# products


def _equation(eqn: Any) -> str:
    """The einsum equation of a `dot_general`."""
    (summed_a, summed_b), (batch_a, batch_b) = (map(ints, pair) for pair in eqn.params["dimension_numbers"])
    n, m = (v.aval.ndim for v in eqn.invars)
    a, b = list(string.ascii_letters[:n]), list(string.ascii_letters[n : n + m])
    for i, j in (*zip(summed_a, summed_b, strict=True), *zip(batch_a, batch_b, strict=True)):
        b[j] = a[i]
    result = [a[i] for i in batch_a]
    result += [c for i, c in enumerate(a) if i not in (*summed_a, *batch_a)]
    result += [c for j, c in enumerate(b) if j not in (*summed_b, *batch_b)]
    return f"{''.join(a)},{''.join(b)}->{''.join(result)}"


def _einsum(call: Call, operands: Types, results: Types) -> ShardFn:
    """The einsum of a dot; for two dtypes, which `jnp.einsum` would promote, the dot itself."""
    if operands[0].dtype_name != operands[1].dtype_name:
        return call.bound()
    return Einsum(_equation(call.eqn), results[0].dtype_name, call.params["precision"])


@row("dot_general")
def _dot(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    equation = _equation(eqn)

    def rule(call: Call, types: Types) -> Typing:
        return rules.einsum(equation, types, call.dtypes[0], call.constants)

    return Row(rule, f"einsum[{equation}]", function=_einsum)(eqn, operands)


def _ragged(call: Call, operands: Sequence[int], results: Sequence[int]) -> Any:
    """Labels of a ragged dot; the ragged dim and the group dims must be unsharded, since offsets are sums of sizes."""
    numbers = call.params["ragged_dot_dimension_numbers"]
    (summed, batch), groups = numbers.dot_dimension_numbers, ints(numbers.rhs_group_dimensions)

    def of(side: int) -> tuple[Label, ...]:
        names: dict[int, Label] = {int(d): ("sum", i) for i, d in enumerate(summed[side])}
        names |= {int(d): ("batch", i) for i, d in enumerate(batch[side])}
        names |= {d: ("groups", d) for d in groups if side}
        return tuple(names.get(d, (side, d)) for d in range(operands[side]))

    lhs, rhs = of(0), of(1)
    sizes: tuple[Label, ...] = tuple(("sizes", d) for d in range(operands[2]))
    ragged = {lhs[int(d)] for d in numbers.lhs_ragged_dimensions}
    result: list[Label] = [label for kind in ("batch", 0, 1) for label in (*lhs, *rhs) if label[0] == kind]  # type: ignore[index]
    result = [*([("outputs", 0)] if any(label[0] == "sum" for label in ragged) else []), *dict.fromkeys(result)]  # type: ignore[index]
    unsharded = frozenset((*ragged, *sizes, *(label for label in rhs if label[0] == "groups")))  # type: ignore[index]
    return (lhs, rhs, sizes), [tuple(result)], unsharded, frozenset({2})


rows("ragged_dot_general", joined_by_labels(_ragged), name="ragged_dot")


# convolutions


def _convolved(call: Call, types: Types) -> Typing:
    p, numbers = call.params, call.params["dimension_numbers"]
    window = [types[1].shape[d] for d in numbers.rhs_spec[2:]]
    if 0 in window:
        raise ShardingTypeError(
            f"`{call.name}` of shapes {types[0].shape} and {types[1].shape} has windows without elements",
            why="JAX traces such a convolution, and cannot compile it",
        )
    moves = zip(window, ints(p["window_strides"]), p["padding"], p["lhs_dilation"], p["rhs_dilation"], strict=True)
    windows = [Window(size, stride, tuple(pads), base, gaps) for size, stride, pads, base, gaps in moves]
    moving = list(enumerate(zip(windows, numbers.lhs_spec[2:], strict=True)))
    alone = [i for i, (w, d) in moving if w.stays_within(types[0].local_shape[d])]
    summed = [i for i, (w, d) in moving if i not in alone and w.covers(types[0].shape[d])]
    plan = conv_plan(numbers, call.shapes[0], p["feature_group_count"], p["batch_group_count"], alone, summed)
    return _contraction(call.name, types, plan, call.dtypes[0], call.constants)


def _local_groups(call: Call, operands: Types, results: Types) -> Mapping[str, Any]:
    """The parameters with the group counts of one device."""
    p, kernel = call.params, operands[1]
    devices = kernel.mesh.product(kernel.dims[p["dimension_numbers"].rhs_spec[0]].axes)
    counts = {key: p[key] // devices if p[key] > 1 else 1 for key in ("feature_group_count", "batch_group_count")}
    return {**unchanged(call, operands, results), **counts}


rows("conv_general_dilated", _convolved, name="conv_general_dilated", shard=_local_groups)


# transforms, and unsharded matrices


rows("fft", along(lambda call: range(call.ndim - len(call.params["fft_lengths"]), call.ndim)))


def _solved(call: Call, types: Types) -> Typing:
    """The typing of a triangular solve: linear in the right-hand side, each column independent."""
    batch: tuple[Label, ...] = tuple(range(types[0].ndim - 2))
    rhs = (*batch, "row", "solution") if call.params["left_side"] else (*batch, "solution", "row")
    labels = (*batch, "equation", "unknown"), rhs
    result = tuple(zip(rhs, call.shapes[0], strict=True))
    _, nonlinear = call.linearity.within(call.numbers, len(types))
    plan = ProductDims(labels, result, frozenset(("equation", "unknown", "row")), nonlinear=nonlinear)
    return _contraction(call.name, types, plan, call.dtypes[0], call.constants)


rows("triangular_solve", _solved)

# Batched over the dims before a matrix, or before a vector.
rows(
    """cholesky cholesky_update eig eigh geqp3 geqrf hessenberg householder_product lu ormqr qr schur svd
    symmetric_product tridiagonal""",
    batched(2),
)
rows("lu_pivots_to_permutation tridiagonal_solve", batched(1))

# keys and random bits

rows("random_clone random_seed random_unwrap threefry2x32", batched(0))
rows("random_wrap", batched(1))


def _drawn(rule: FamilyRule) -> FamilyRule:
    """The rule of a primitive that draws bits by each of some keys; by all of them together where JAX does so."""

    def of_keys(call: Call, types: Types) -> Typing:
        together = draws_for_batch(call.bound(), tuple((t.shape, t.dtype_name) for t in types))
        return (all_unsharded if together else rule)(call, types)

    return of_keys


def _folded(call: Call, operands: Sequence[int], results: Sequence[int]) -> Any:
    """Labels of keys and data that broadcast against each other, where dims of size 1 have their own."""
    (shape,) = call.shapes
    of_operands = [
        tuple(d if size == shape[d] else (i, d) for d, size in enumerate(v.aval.shape))
        for i, v in enumerate(call.eqn.invars)
    ]
    return of_operands, [tuple(range(len(shape)))], frozenset(), frozenset()


rows("random_gamma random_split", _drawn(batched(0)))
rows("random_fold_in", _drawn(joined_by_labels(_folded)))


def _bits(call: Call, types: Types) -> Typing:
    """The typing of random bits: replicated for one key; for an array of keys, sharded as the keys are."""
    (key,) = types
    if key.ndim:
        return _drawn(batched(0))(call, types)
    states = {a: State.VARYING if key.state(a) is State.VARYING else replicated() for a in key.mesh.axis_names}
    sampled = ShType(key.mesh, call.dtypes[0], [Dim(n) for n in ints(call.params["shape"])], states)
    return sample(call.name, key, sampled)


rows("random_bits", _bits)
# Each bit depends on the shape: each device makes all of them.
rows("rng_bit_generator", all_unsharded)
