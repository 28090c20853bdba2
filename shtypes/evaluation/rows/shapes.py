"""Rows of primitives that reshape, concatenate, split, pad and slice."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from shtypes import rules
from shtypes._compat.jaxprs import wide_enough
from shtypes.core.shard_fn import ShardFn
from shtypes.evaluation.bound_primitive import Bound
from shtypes.evaluation.local_rows import LocalPart, LocalRow, Place, Start
from shtypes.evaluation.rows.families import Call, Row, Types, along, ints, rows, unchanged
from shtypes.evaluation.table import row
from shtypes.rules import Typing
from shtypes.rules.lookups import Slice, is_lookup
from shtypes.rules.lookups import dynamic_update_slice as _update_rule
from shtypes.rules.lookups import slices as _slices_rule
from shtypes.types import ShType


def _reshaped(call: Call, types: Types) -> Typing:
    (t,), order = types, call.params["dimensions"]
    src = t if order is None else rules.transpose(t, ints(order)).results[0]
    return Typing(types, rules.reshape(src, call.shapes[0]).results)


def _local_shape(parameter: str) -> Any:
    def shard(call: Call, operands: Types, results: Types) -> Mapping[str, Any]:
        return {**unchanged(call, operands, results), parameter: results[0].local_shape}

    return shard


def _same_shape(eqn: Any) -> bool:
    shape = eqn.invars[0].aval.shape
    dims = eqn.params.get("broadcast_dimensions", range(len(shape)))
    return shape == eqn.outvars[0].aval.shape and ints(dims) == tuple(range(len(shape)))


rows(
    "broadcast_in_dim",
    lambda call, types: rules.broadcast(types[0], call.shapes[0], ints(call.params["broadcast_dimensions"]), call.name),
    name="broadcast_in_dim",
    shard=_local_shape("shape"),
    idle=_same_shape,
)
rows(
    "reshape",
    _reshaped,
    shard=_local_shape("new_sizes"),
    idle=lambda eqn: eqn.params["dimensions"] is None and _same_shape(eqn),
)
rows(
    "squeeze",
    lambda call, types: rules.squeeze(types[0], ints(call.params["dimensions"])),
    idle=lambda eqn: not eqn.params["dimensions"],
)
rows(
    "transpose",
    lambda call, types: rules.transpose(types[0], ints(call.params["permutation"])),
    idle=lambda eqn: ints(eqn.params["permutation"]) == tuple(range(len(eqn.params["permutation"]))),
)
rows("rev", along(lambda call: call.params["dimensions"]), name="flip", idle=lambda eqn: not eqn.params["dimensions"])
rows(
    "tile",
    along(lambda call: [d for d, n in enumerate(call.params["reps"]) if n != 1]),
    idle=lambda eqn: set(eqn.params["reps"]) <= {1},
)

# concatenate, split, pad


def _axis(call: Call) -> tuple[int, ...]:
    return (call.params["axis"],)


_CONCATENATE = Row(
    lambda call, types: rules.concatenate(types, int(call.params["dimension"]), call.dtypes[0], call.constants),
)


@row("concatenate")
def _concatenate(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Concatenates the operands that have elements."""
    d = eqn.params["dimension"]
    some = [i for i, v in enumerate(eqn.invars) if v.aval.shape[d]] or range(len(operands))
    if len(some) == 1:
        return [operands[some[0]]]
    nonempty = eqn if len(some) == len(operands) else eqn.replace(invars=[eqn.invars[i] for i in some])
    return _CONCATENATE(nonempty, [operands[i] for i in some])


rows("stack", lambda call, types: rules.stack(types, int(call.params["axis"]), call.dtypes[0], call.constants))
rows("split", along(_axis))
_UNSTACK = Row(along(_axis, dropped=_axis))
row("unstack")(lambda eqn, operands: _UNSTACK(eqn, operands) if eqn.outvars else [])


def _padded(call: Call, types: Types) -> Typing:
    """The typing of a pad with a number, or with a typed value: the sum of both padded with zeros."""
    dims = tuple(d for d, edge in enumerate(call.params["padding_config"]) if any(edge))
    if len(types) > 1:
        return rules.pad(types, dims, call.shapes[0], call.constants)
    return along(lambda call: dims)(call, types)


rows("pad", _padded, numbers=True)

# slices; one index of a sharded dim is a lookup


def _spans(t: ShType, starts: Sequence[Any], sizes: Sequence[int], steps: Sequence[int]) -> tuple[Slice, ...]:
    spans = []
    for size, start, n, step in zip(t.shape, starts, sizes, steps, strict=True):
        if n == size and step == 1:
            spans.append(Slice(0, n))
        else:
            spans.append(Slice(start, n, step) if isinstance(start, int) else Slice(0, n, 0))
    return tuple(spans)


def _local_row(fn: Bound, t: ShType, spans: Sequence[Slice], starts: Sequence[Any]) -> ShardFn:
    """Adds the lookup of single indices of sharded dims to a slice."""
    looked_up = [d for d, span in enumerate(spans) if is_lookup(span, t, d)]
    places = tuple(Place(d, t.shape[d], t.dims[d].axes, starts[d]) for d in looked_up)
    return LocalRow(fn, places) if places else fn


def _sliced_spans(call: Call, t: ShType) -> tuple[Slice, ...]:
    p, ones = call.params, (1,) * t.ndim
    return _spans(t, ints(p["start_indices"]), call.shapes[0], ints(p["strides"] or ones))


def _local_slice(call: Call, operands: Types, results: Types) -> ShardFn:
    """A slice on a shard; along a sharded dim it takes all of the shard, or looks up one index."""
    (t,), p = operands, call.params
    spans = _sliced_spans(call, t)
    start, limit, steps = (list(ints(p[key] or [1] * t.ndim)) for key in ("start_indices", "limit_indices", "strides"))
    for d, (n, span) in enumerate(zip(t.local_shape, spans, strict=True)):
        if t.dims[d].axes:
            limit[d] = n
        if is_lookup(span, t, d):
            start[d], steps[d] = 0, 1
    fn = call.bound(start_indices=tuple(start), limit_indices=tuple(limit), strides=tuple(steps))
    return _local_row(fn, t, spans, ints(p["start_indices"]))


_SLICE = Row(
    lambda call, types: _slices_rule("slice", types, _sliced_spans(call, types[0]), call.constants),
    function=_local_slice,
    idle=_same_shape,
)


@row("slice")
def _slice(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    (x,), out = operands, eqn.outvars[0].aval
    if any(n == 0 and dim.axes for n, dim in zip(out.shape, x.type.dims, strict=True)):
        with wide_enough(out.dtype):
            return [jnp.zeros(out.shape, out.dtype)]  # an empty slice of a sharded dim, as of `jnp.roll` by 0
    return _SLICE(eqn, operands)


def _starts(call: Call, first: int) -> list[Any]:
    """The start of a dynamic slice in each dim: a number or an operand, from operand ``first`` on."""
    constants = call.numbers[first:] or (None,) * (len(call.eqn.invars) - first)
    rest = itertools.count(first)
    return [Start(next(rest)) if n is None else int(n) for n in constants]


def _dynamic_spans(call: Call, t: ShType) -> tuple[Slice, ...]:
    return _spans(t, _starts(call, 1), ints(call.params["slice_sizes"]), (1,) * t.ndim)


def _local_dynamic_slice(call: Call, operands: Types, results: Types) -> ShardFn:
    t, sizes = operands[0], ints(call.params["slice_sizes"])
    spans = _dynamic_spans(call, t)
    dims = zip(t.local_shape, t.dims, sizes, strict=True)
    fn = call.bound(slice_sizes=tuple(local if dim.axes else n for local, dim, n in dims))
    return _local_row(fn, t, spans, _starts(call, 1))


_DYNAMIC_SLICE = Row(
    lambda call, types: _slices_rule("dynamic_slice", types, _dynamic_spans(call, types[0]), call.constants),
    numbers=True,
    function=_local_dynamic_slice,
    idle=_same_shape,
)


def _start_indices(sizes: Sequence[int], shape: Sequence[int], starts: Sequence[Any]) -> list[Any]:
    """The start indices, with 0 for dims that are taken in full."""
    return [0 if n == m else start for n, m, start in zip(sizes, shape, starts, strict=True)]


@row("dynamic_slice")
def _dynamic_slice(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    x, *starts = operands
    return _DYNAMIC_SLICE(eqn, [x, *_start_indices(eqn.outvars[0].aval.shape, eqn.invars[0].aval.shape, starts)])


def _local_update(call: Call, operands: Types, results: Types) -> ShardFn:
    """Replaces a slice on a shard; along a sharded dim that is not taken in full, the part in the shard."""
    t, update, *_ = operands
    starts, fn = _starts(call, 2), call.bound()
    replaced = zip(t.dims, t.shape, update.shape, starts, strict=True)
    parts = tuple(Place(d, n, dim.axes, start) for d, (dim, n, m, start) in enumerate(replaced) if n != m and dim.axes)
    return LocalPart(fn, parts) if parts else fn


_UPDATE = Row(
    lambda call, types: _update_rule("dynamic_update_slice", types, call.constants),
    numbers=True,
    function=_local_update,
)


@row("dynamic_update_slice")
def _dynamic_update_slice(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    x, update, *starts = operands
    shape, sizes = (v.aval.shape for v in eqn.invars[:2])
    return _UPDATE(eqn, [x, update, *_start_indices(sizes, shape, starts)])
