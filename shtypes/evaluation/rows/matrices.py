"""Rows of products, convolutions, transforms, and primitives of whole matrices."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any, Final

from shtypes import rules
from shtypes.core.dim_fns import Einsum
from shtypes.core.shard_fn import ShardFn
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.rows.families import along, batched, ints, together
from shtypes.evaluation.rows.generic import Call, Row, Types, rows
from shtypes.evaluation.table import EQUATIONS
from shtypes.rules import Typing
from shtypes.rules.einsum_like import ProductDims, conv_plan, pointwise
from shtypes.rules.einsum_like import contraction as _contraction
from shtypes.rules.typing import Label

# products


def _equation(eqn: Any) -> str:
    """A dot as an einsum."""
    (summed_a, summed_b), (batch_a, batch_b) = (map(ints, pair) for pair in eqn.params["dimension_numbers"])
    n, m = (v.aval.ndim for v in eqn.invars)
    a, b = list(string.ascii_letters[:n]), list(string.ascii_letters[n : n + m])
    for i, j in (*zip(summed_a, summed_b, strict=True), *zip(batch_a, batch_b, strict=True)):
        b[j] = a[i]
    kept = [a[i] for i in batch_a]
    kept += [c for i, c in enumerate(a) if i not in (*summed_a, *batch_a)]
    kept += [c for j, c in enumerate(b) if j not in (*summed_b, *batch_b)]
    return f"{''.join(a)},{''.join(b)}->{''.join(kept)}"


def _dotted(call: Call, types: Types) -> Typing:
    return rules.einsum(_equation(call.eqn), types, call.dtypes[0], call.constants)


def _einsum(call: Call, operands: Types, results: Types) -> ShardFn:
    """An einsum of one dot; of two dtypes, which `jnp.einsum` would promote, the dot itself."""
    if operands[0].dtype_name != operands[1].dtype_name:
        return call.bound()
    return Einsum(_equation(call.eqn), results[0].dtype_name, call.params["precision"])


def _dot(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    row = Row(
        f"einsum[{_equation(eqn)}]",
        _dotted,
        function=_einsum,
    )
    return row(eqn, operands)


EQUATIONS["dot_general"] = _dot


def _ragged(call: Call, operands: Sequence[int], results: Sequence[int]) -> Any:
    """Where a group ends follows from the sizes of those before: the ragged dim and the groups must be whole."""
    numbers = call.params["ragged_dot_dimension_numbers"]
    (summed, batch), groups = numbers.dot_dimension_numbers, ints(numbers.rhs_group_dimensions)

    def of(side: int) -> tuple[Label, ...]:
        known: dict[int, Label] = {int(d): ("sum", i) for i, d in enumerate(summed[side])}
        known |= {int(d): ("batch", i) for i, d in enumerate(batch[side])}
        known |= {d: ("groups", d) for d in groups if side}
        return tuple(known.get(d, (side, d)) for d in range(operands[side]))

    lhs, rhs = of(0), of(1)
    sizes: tuple[Label, ...] = tuple(("sizes", d) for d in range(operands[2]))
    ragged = {lhs[int(d)] for d in numbers.lhs_ragged_dimensions}
    made: list[Label] = [label for kind in ("batch", 0, 1) for label in (*lhs, *rhs) if label[0] == kind]  # type: ignore[index]
    made = [*([("made", 0)] if any(label[0] == "sum" for label in ragged) else []), *dict.fromkeys(made)]  # type: ignore[index]
    whole = frozenset((*ragged, *sizes, *(label for label in rhs if label[0] == "groups")))  # type: ignore[index]
    return (lhs, rhs, sizes), [tuple(made)], whole, frozenset({2})


EQUATIONS["ragged_dot_general"] = Row("ragged_dot", together("ragged_dot", _ragged))


# convolutions


def _convolved(call: Call, types: Types) -> Typing:
    p, name = call.params, "conv_general_dilated"
    numbers, window = p["dimension_numbers"], [types[1].shape[d] for d in p["dimension_numbers"].rhs_spec[2:]]
    if 0 in window:
        raise ShardingTypeError(
            f"`{name}` of shapes {types[0].shape} and {types[1].shape} has windows without elements",
            why="JAX traces such a convolution, and cannot compile it",
        )
    alone = pointwise(window, ints(p["window_strides"]), p["padding"], p["lhs_dilation"])
    plan = conv_plan(numbers, call.shapes[0], p["feature_group_count"], p["batch_group_count"], alone)
    return _contraction(name, types, plan, call.dtypes[0], call.constants)


def _own_groups(call: Call, operands: Types, results: Types) -> Mapping[str, Any]:
    """The groups of one device."""
    p, kernel = call.params, operands[1]
    devices = kernel.mesh.product(kernel.dims[p["dimension_numbers"].rhs_spec[0]].axes)
    counts = {key: p[key] // devices if p[key] > 1 else 1 for key in ("feature_group_count", "batch_group_count")}
    return {**p, **counts, "out_sharding": None} if "out_sharding" in p else {**p, **counts}


EQUATIONS["conv_general_dilated"] = Row("conv_general_dilated", _convolved, _own_groups)


# transforms, and matrices that every device holds whole


def _transformed(call: Call) -> range:
    ndim = call.eqn.invars[0].aval.ndim
    return range(ndim - len(call.params["fft_lengths"]), ndim)


rows("fft", lambda name: Row(name, along(name, _transformed)))


def _solved(call: Call, types: Types) -> Typing:
    """Linear in the right-hand side alone, whose columns are solved each by itself."""
    batch: tuple[Label, ...] = tuple(range(types[0].ndim - 2))
    rhs = (*batch, "row", "solution") if call.params["left_side"] else (*batch, "solution", "row")
    labels = (*batch, "equation", "unknown"), rhs
    result = tuple(zip(rhs, call.shapes[0], strict=True))
    plan = ProductDims(labels, result, frozenset(("equation", "unknown", "row")), nonlinear=frozenset({0}))
    return _contraction("triangular_solve", types, plan, call.dtypes[0], call.constants)


rows("triangular_solve", lambda name: Row(name, _solved))

#: Those that are mapped over what is before a matrix: how many dims, from the back, the first operand's core has.
_CORES: Final = {
    2: """cholesky cholesky_update eig eigh geqp3 geqrf hessenberg householder_product lu ormqr qr schur svd
    symmetric_product tridiagonal""",
    1: "lu_pivots_to_permutation tridiagonal_solve",
}
for _core, _names in _CORES.items():
    rows(_names, lambda name, core=_core: Row(name, batched(name, core)))  # type: ignore[misc]  # bound now
