"""Communicating operations of several operands: fused reshards, and the ragged all-to-all."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shtypes._compat import Zero, instantiate_zeros, is_undefined_primal
from shtypes.core.array import Array
from shtypes.core.collective import collect
from shtypes.core.elementwise_fns import NamedFn
from shtypes.core.jax_type import HiShType, as_jax_type
from shtypes.core.local import local, zeros_of
from shtypes.core.operation import Comm, Operation, OperationPrimitive, comm_of
from shtypes.core.reshard import move, reshard_cotangent, resharded
from shtypes.core.run_op import run_on_shards
from shtypes.core.run_plan import exchange_pieces, run_together
from shtypes.errors import ShardingTypeError
from shtypes.resharding import Plan, plan
from shtypes.resharding.moves import Kind, ring_bytes
from shtypes.resharding.steps import Step
from shtypes.resharding.transport import AS_IT_IS, Transport, transport_in_force
from shtypes.rules.local import Op
from shtypes.types import Dim, ShType, State

joint_p = OperationPrimitive("joint")


class Joint(Operation):
    """A communicating operation of several operands; subclasses are frozen dataclasses."""

    primitive = joint_p
    called: ClassVar[str] = "joint"  # the name of its compiled function
    linear: ClassVar[int | None] = None  # in how many operands, its first, it is jointly linear; None for all
    change: tuple[ShType, ShType]  # the types before and after the communication
    operands: tuple[HiShType, ...]
    results: tuple[HiShType, ...]

    @property
    def src(self) -> ShType:
        """The type before the communication."""
        return self.change[0]

    @property
    def dst(self) -> ShType:
        """The type after it."""
        return self.change[1]

    def on_shards(self, *shards: Any) -> list[Any]:
        """Applies it to one device's shards."""
        raise NotImplementedError

    def to_lojax(self, *operands: Any) -> list[Array]:
        return run_on_shards(self.on_shards, self.called, operands, self.results)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outs, moved = self.bind(*primals), tangents[: self.linear]
        if all(isinstance(t, Zero) for t in moved) or not self.results[0].differentiable:
            return outs, [Zero(t.to_tangent_aval()) for t in self.results]
        return outs, self.bind(*map(instantiate_zeros, moved), *primals[len(moved) :])


# fused reshards

#: The kinds of steps that can share a collective.
JOINED: Final = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER})
#: The states of values along an axis without communication, of which the joined array has the first.
_STRONGEST: Final = (State.UNREDUCED, State.VARYING, State.REDUCED, State.INVARIANT, State.SHARDED)


class JointStep(NamedTuple):
    """Steps of several values, of one kind and over the same axes, as one collective."""

    steps: tuple[Step, ...]

    @property
    def kind(self) -> Kind:
        """The kind of the collective."""
        return self.steps[0].kind

    @property
    def axes(self) -> tuple[str, ...]:
        """Its mesh axes."""
        return self.steps[0].axes

    @property
    def bytes(self) -> int:
        """Bytes that each device sends."""
        larger = sum(max(s.src.local_bytes, s.dst.local_bytes) for s in self.steps)
        return ring_bytes(2 if self.kind is Kind.ALL_REDUCE else 1, self.steps[0].group, larger)

    @property
    def launches(self) -> int:
        """One, or zero along axes of size 1 or for values without elements."""
        return int(any(step.launches for step in self.steps))

    @property
    def change(self) -> tuple[ShType, ShType]:
        """The types before and after of the array that is sent: the values' concatenated shards."""
        return self._joined([s.src for s in self.steps]), self._joined([s.dst for s in self.steps])

    def _joined(self, types: Sequence[ShType]) -> ShType:
        mesh = types[0].mesh
        size = sum(math.prod(t.local_shape) for t in types)
        moved = {a: types[0].state(a) for a in self.axes}
        rest = {a: {t.state(a) for t in types} for a in mesh.axis_names if a not in moved}
        sharded = [a for a, states in rest.items() if State.SHARDED in states]
        sharded += [a for a, state in moved.items() if state is State.SHARDED]
        states = {a: min(states, key=_STRONGEST.index) for a, states in rest.items()} | moved
        states = {a: state for a, state in states.items() if a not in sharded}
        return ShType(mesh, types[0].dtype_name, [Dim(size * mesh.product(sharded), axes=tuple(sharded))], states)


@dataclass(frozen=True, eq=False)
class FusedReshard(Joint):
    """One step of several values in one collective. Jointly linear in all of them."""

    called = "reshard_all"
    kind: str  # of the step
    operands: tuple[HiShType, ...]
    results: tuple[HiShType, ...]
    inserted: bool = False
    transport: Transport = AS_IT_IS  # of its transpose, each value by itself

    def __str__(self) -> str:
        transport = f", {self.transport}" if str(self.transport) else ""
        return f"reshard_all[{self.kind} over {','.join(self._step.axes)}{transport}]"

    @functools.cached_property
    def _step(self) -> JointStep:
        pairs = zip(self.operands, self.results, strict=True)
        return JointStep(tuple(plan(src, dst, shared=False).steps[0] for src, dst in pairs))

    @property
    def change(self) -> tuple[ShType, ShType]:  # type: ignore[override]
        return self._step.change

    def forward_comm(self) -> Sequence[Comm]:
        t = self._step
        return [Comm(t.kind, t.axes, t.bytes, t.launches, self.src, self.dst, self.src.dtype_name)]

    def backward_comm(self) -> Sequence[Comm]:
        pairs = zip(self.operands, self.results, strict=True)
        plans = [self.transport.backward(src, dst) for src, dst in pairs if src.differentiable]
        return [comm for p in plans for comm in comm_of(p, p.src, p.dst)]

    def on_shards(self, *shards: Any) -> list[Any]:
        return run_together(self._step.steps, shards)

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        pairs = zip(cts, [t.to_ct_aval() for t in self.operands], strict=True)
        transport = self.transport.transposed()
        return [
            Zero(t) if isinstance(ct, Zero) else reshard_cotangent(ct, t, inserted=self.inserted, transport=transport)
            for ct, t in pairs
        ]

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        targets = [t if d is None else t.inc_rank(axis_data.size, d) for t, d in zip(self.results, dims, strict=True)]
        return move_together(operands, targets, self.transport), list(dims)


def _plans(sources: Sequence[ShType], targets: Sequence[ShType], transport: Transport) -> list[Plan]:
    return [transport.plan(src, dst) for src, dst in zip(sources, targets, strict=True)]


def _rounds(plans: Sequence[Plan]) -> list[list[tuple[int, ...]]]:
    """The values that share a collective, round by round: round k has the k-th step of each plan.

    A plan through reshaped views of the array runs by itself, entirely in the first round.
    """
    rounds: list[list[tuple[int, ...]]] = []
    for k in range(max((len(p.steps) if p.plain else 1 for p in plans), default=0)):
        groups: dict[Any, list[int]] = {}
        for i, p in enumerate(plans):
            if k < len(p.steps) and (p.plain or k == 0):
                groups.setdefault(_group(i, p.steps[k]) if p.plain else i, []).append(i)
        rounds.append([tuple(g) for g in groups.values()])
    return rounds


def _group(i: int, step: Step) -> Any:
    """The key of steps that share a collective; the value's index for a step that shares none."""
    if step.kind not in JOINED:
        return i
    gone = step.lost if step.kind is Kind.ALL_GATHER else step.gained
    order = tuple(a for axes in gone for a in axes)
    return step.kind, step.axes, order, step.src.dtype_name, step.src.mesh


def sent_together(sources: Sequence[ShType], targets: Sequence[ShType]) -> list[JointStep]:
    """The collectives that reshard values to targets together."""
    plans = _plans(sources, targets, transport_in_force())
    joined = [
        JointStep(tuple(plans[i].steps[k] for i in group))
        for k, groups in enumerate(_rounds(plans))
        for group in groups
        if plans[group[0]].plain and plans[group[0]].steps[k].kind.communicates
    ]
    return joined + [JointStep((s,)) for p in plans if not p.plain for s in p.steps if s.kind.communicates]


def move_together(values: Sequence[Any], targets: Sequence[ShType], transport: Transport | None = None) -> list[Any]:
    """Reshards typed values: sums, scatters and gathers over the same axes share a collective for each dtype."""
    moved, transport = list(values), transport_in_force() if transport is None else transport
    plans = _plans([jax.typeof(x) for x in values], targets, transport)
    for k, groups in enumerate(_rounds(plans)):
        for group in groups:
            after = [plans[i].steps[k].dst if plans[i].plain else plans[i].dst for i in group]
            if len(group) == 1:
                x, dst = moved[group[0]], after[0]
                varies = State.VARYING in dst.states
                results = [move(x, dst) if varies else resharded(x, dst, transport=transport)]
            else:
                before = tuple(as_jax_type(jax.typeof(moved[i])) for i in group)
                kind = plans[group[0]].steps[k].kind.value
                fused = FusedReshard(kind, before, tuple(map(as_jax_type, after)), transport=transport)
                results = fused.applied(*(moved[i] for i in group))
            for i, y in zip(group, results, strict=True):
                moved[i] = y
    return moved


# the ragged all-to-all


@dataclass(frozen=True, eq=False)
class Ragged(Joint):
    """``(operand, output, input_offsets, send_sizes, output_offsets, recv_sizes) -> [output]``.

    Sends slices of any sizes to any devices, at offsets that their senders choose. Jointly linear in the first two
    operands.
    """

    called = "ragged_all_to_all"
    linear = 2
    axes: tuple[str, ...]  # its mesh axes
    disjoint: bool  # whether the user says that no two slices of the operand overlap
    operands: tuple[HiShType, ...]

    def __str__(self) -> str:
        return f"ragged_all_to_all[{','.join(self.axes)}]"

    @property
    def change(self) -> tuple[ShType, ShType]:  # type: ignore[override]
        return self.operands[0], self.operands[1]

    @property
    def results(self) -> tuple[HiShType, ...]:  # type: ignore[override]
        return (self.operands[1],)

    def _comm(self, src: ShType, dst: ShType) -> list[Comm]:
        """An upper bound, all of a device's operand, because the sizes are runtime values."""
        launches = int(src.mesh.product(self.axes) > 1)
        return [Comm(Kind.ALL_TO_ALL, self.axes, src.local_bytes * launches, launches, src, dst, src.dtype_name)]

    def forward_comm(self) -> Sequence[Comm]:
        return self._comm(self.src, self.dst)

    def backward_comm(self) -> Sequence[Comm]:
        return self._comm(self.dst.cotangent(), self.src.cotangent()) if self.dst.differentiable else []

    def on_shards(self, *shards: Any) -> list[Any]:
        live = tuple(a for a in self.axes if self.src.mesh.shape[a] > 1)
        if live and jax.default_backend() != "cpu":
            return [lax.ragged_all_to_all(*shards, axis_name=live)]
        return [_by_all_to_all(live, *shards)]

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        (ct,), (operand, output, starts, sizes, places, received) = cts, operands
        linear = [is_undefined_primal(x) for x in (operand, output)]
        if isinstance(ct, Zero):
            return [Zero(x.aval) if u else None for x, u in zip(operands, [*linear, *[False] * 4], strict=True)]
        local_offsets = self._exchanged(places)
        cotangents: list[Any] = [None] * 6
        if linear[0]:
            cotangents[0] = self._return_slices(ct, local_offsets, received, starts, sizes)
        if linear[1]:
            unwritten = NamedFn("unwritten", _unwritten)
            cotangents[1] = local(unwritten, ct, local_offsets, received, out=self.operands[1].to_ct_aval())
        return cotangents

    def _return_slices(self, ct: Any, local_offsets: Any, received: Any, starts: Any, sizes: Any) -> Any:
        """Sends the received slices back. Slices that overlap there are sent separately, and then added."""
        out = self.operands[0].to_ct_aval()
        if self.disjoint:
            return self._disjoint(ct, zeros_of(out), local_offsets, received, self._exchanged(starts), sizes)
        # a device sends all its slices, and its receivers have room for them
        n = out.mesh.product(self.axes)
        rows = min(self.operands[2].shape[0] * out.shape[0], n * self.results[0].shape[0])
        separate = out.replace(dims=(Dim(rows), *out.dims[1:]))
        slice_starts = local(NamedFn("slice_starts", _starts), sizes, out=jax.typeof(sizes))
        slices = self._disjoint(ct, zeros_of(separate), local_offsets, received, self._exchanged(slice_starts), sizes)
        return local(NamedFn("added", _added, (("rows", out.shape[0]),)), slices, starts, sizes, out=out)

    def _disjoint(self, *operands: Any) -> Any:
        """A ragged all-to-all of disjoint slices along the same axes."""
        types = tuple(as_jax_type(jax.typeof(x)) for x in operands)
        return Ragged(self.axes, True, types).applied(*operands)[0]

    def _exchanged(self, offsets: Any) -> Any:
        """Exchanges offsets: a sender's for each receiver become a receiver's for each sender."""
        return collect(Op("all_to_all", self.axes, tiled=True), offsets)

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        raise ShardingTypeError(
            "`ragged_all_to_all` cannot be mapped over", hints=["sh.scan over the mapped dim", "a loop in Python"]
        )


def _unwritten(x: Any, offsets: Any, sizes: Any) -> Any:
    """An array with zeros in place of the written slices."""
    rows = jnp.arange(x.shape[0])[:, None]
    written = ((rows >= offsets) & (rows < offsets + sizes)).any(1)
    return jnp.where(written.reshape(-1, *[1] * (x.ndim - 1)), jnp.zeros_like(x), x)


def _starts(sizes: Any) -> Any:
    """The starts of contiguous slices of these sizes."""
    return (jnp.cumsum(sizes) - sizes).astype(sizes.dtype)


def _added(slices: Any, starts: Any, sizes: Any, rows: int) -> Any:
    """Adds contiguous slices at their offsets in an array of ``rows``."""
    end = jnp.cumsum(sizes)
    at = jnp.arange(slices.shape[0])
    slice_of = jnp.minimum(jnp.searchsorted(end, at, side="right"), len(sizes) - 1)
    # out of range after the last
    target = jnp.where(at < end[-1], starts[slice_of] + at - (end - sizes)[slice_of], rows)
    return jnp.zeros((rows, *slices.shape[1:]), slices.dtype).at[target].add(slices, mode="drop")


def _by_all_to_all(
    live: tuple[str, ...], operand: Any, output: Any, starts: Any, sizes: Any, places: Any, received: Any
) -> Any:
    """The ragged all-to-all for the CPU, where XLA lacks it: each device gets all of the others' operands."""
    n = lax.axis_size(live) if live else 1

    def exchanged(x: Any) -> Any:
        return exchange_pieces(x, live) if live else x

    all_operands = exchanged(jnp.broadcast_to(operand, (n, *operand.shape)))
    starts, sizes, places = (exchanged(x.reshape(n, -1)) for x in (starts, sizes, places))
    rows = jnp.arange(output.shape[0])
    for sender in range(n):
        for i in range(starts.shape[1]):
            offset = rows - places[sender, i]
            arrived = (offset >= 0) & (offset < sizes[sender, i])
            taken = jnp.take(
                all_operands[sender], jnp.clip(starts[sender, i] + offset, 0, operand.shape[0] - 1), axis=0
            )
            output = jnp.where(arrived.reshape(-1, *[1] * (output.ndim - 1)), taken, output)
    return output
