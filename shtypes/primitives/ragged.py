"""The ragged all-to-all as an operation: slices of any sizes to any devices, written where their sender says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shtypes._compat import Zero, instantiate_zeros, is_undefined_primal
from shtypes.core.functions.basics import NamedFn
from shtypes.core.hitype import HiShType, hi
from shtypes.core.operation import Sending, Sends
from shtypes.errors import ShardingTypeError
from shtypes.primitives.collective import collect
from shtypes.primitives.joint import Joint
from shtypes.primitives.local import check_tangents, local, zeros_of
from shtypes.resharding.moves import Kind
from shtypes.rules.local import Op
from shtypes.types import Dim, ShType


def _sends(axes: tuple[str, ...], t: ShType) -> Sends:
    """What a ragged all-to-all sends: at most all that a device has, for sizes are known only when it runs."""
    launches = int(t.mesh.product(axes) > 1)
    return Sends(Kind.ALL_TO_ALL, axes, t.local_bytes * launches, launches)


@dataclass(frozen=True, eq=False)
class Ragged(Joint):
    """``(operand, output, input_offsets, send_sizes, output_offsets, recv_sizes) -> [output]``.

    Linear in the first two operands together.
    """

    called = "ragged_all_to_all"
    axes: tuple[str, ...]  # the mesh axes that it goes along
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

    def forth(self) -> Sequence[Sending]:
        return [Sending(_sends(self.axes, self.operands[0]), self.src, self.dst)]

    def back(self) -> Sequence[Sending]:
        if not self.results[0].differentiable:
            return []
        own = self.results[0].cotangent()
        return [Sending(_sends(self.axes, own), own, self.operands[0].cotangent())]

    def on_shards(self, *shards: Any) -> list[Any]:
        live = tuple(a for a in self.axes if self.src.mesh.shape[a] > 1)
        if live and jax.default_backend() != "cpu":
            return [lax.ragged_all_to_all(*shards, axis_name=live)]
        return [_by_hand(live, *shards)]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        check_tangents(primals, tangents)
        outs = self.bind(*primals)
        if all(isinstance(t, Zero) for t in tangents[:2]) or not self.results[0].differentiable:
            return outs, [Zero(self.results[0].to_tangent_aval())]
        return outs, self.bind(*map(instantiate_zeros, tangents[:2]), *primals[2:])

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        (ct,), (operand, output, starts, sizes, places, received) = cts, operands
        linear = [is_undefined_primal(x) for x in (operand, output)]
        if isinstance(ct, Zero):
            return [Zero(x.aval) if u else None for x, u in zip(operands, [*linear, *[False] * 4], strict=True)]
        own_places = self._exchanged(places)
        found: list[Any] = [None] * 6
        if linear[0]:
            found[0] = self._sent_back(ct, own_places, received, starts, sizes)
        if linear[1]:
            unwritten = NamedFn("unwritten", _unwritten)
            found[1] = local(unwritten, ct, own_places, received, out=self.operands[1].to_ct_aval())
        return found

    def _sent_back(self, ct: Any, own_places: Any, received: Any, starts: Any, sizes: Any) -> Any:
        """What arrived, back where it came from. Slices that overlap there are kept apart on the way, and added."""
        out = self.operands[0].to_ct_aval()
        if self.disjoint:
            return ragged(self.axes, True, ct, zeros_of(out), own_places, received, self._exchanged(starts), sizes)[0]
        # A device sends all its slices, and its receivers have room for what they get.
        n = out.mesh.product(self.axes)
        rows = min(self.operands[2].shape[0] * out.shape[0], n * self.results[0].shape[0])
        apart = out.replace(dims=(Dim(rows), *out.dims[1:]))
        begin = local(NamedFn("begin", _begin), sizes, out=jax.typeof(sizes))
        (held,) = ragged(self.axes, True, ct, zeros_of(apart), own_places, received, self._exchanged(begin), sizes)
        return local(NamedFn("added", _added, (("rows", out.shape[0]),)), held, starts, sizes, out=out)

    def _exchanged(self, offsets: Any) -> Any:
        """Offsets that each sender has for each receiver, where the receiver has them for each sender."""
        return collect(Op("all_to_all", self.axes, tiled=True), offsets)

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        raise ShardingTypeError(
            "`ragged_all_to_all` cannot be mapped over", hints=["sh.scan over the mapped dim", "a loop in Python"]
        )


def ragged(axes: tuple[str, ...], disjoint: bool, *operands: Any) -> list[Any]:
    """A ragged all-to-all of typed values, whose types fit."""
    return Ragged(axes, disjoint, tuple(hi(jax.typeof(x)) for x in operands)).applied(*operands)


def _unwritten(x: Any, offsets: Any, sizes: Any) -> Any:
    """An array with zeros where slices were written."""
    rows = jnp.arange(x.shape[0])[:, None]
    written = ((rows >= offsets) & (rows < offsets + sizes)).any(1)
    return jnp.where(written.reshape(-1, *[1] * (x.ndim - 1)), jnp.zeros_like(x), x)


def _begin(sizes: Any) -> Any:
    """Where slices of some sizes begin, one behind the other."""
    return (jnp.cumsum(sizes) - sizes).astype(sizes.dtype)


def _added(held: Any, starts: Any, sizes: Any, rows: int) -> Any:
    """Slices, one behind the other, added where they belong among so many rows."""
    end = jnp.cumsum(sizes)
    at = jnp.arange(held.shape[0])
    of = jnp.minimum(jnp.searchsorted(end, at, side="right"), len(sizes) - 1)
    target = jnp.where(at < end[-1], starts[of] + at - (end - sizes)[of], rows)  # the last: out of range
    return jnp.zeros((rows, *held.shape[1:]), held.dtype).at[target].add(held, mode="drop")


def _by_hand(
    live: tuple[str, ...], operand: Any, output: Any, starts: Any, sizes: Any, places: Any, received: Any
) -> Any:
    """The same where XLA has no ragged all-to-all, on the CPU: each device gets all of the others' operands."""
    n = lax.axis_size(live) if live else 1

    def exchanged(x: Any) -> Any:
        return lax.all_to_all(x, live, 0, 0, tiled=False) if live else x

    wholes = exchanged(jnp.broadcast_to(operand, (n, *operand.shape)))
    starts, sizes, places = (exchanged(x.reshape(n, -1)) for x in (starts, sizes, places))
    rows = jnp.arange(output.shape[0])
    for sender in range(n):
        for i in range(starts.shape[1]):
            offset = rows - places[sender, i]
            arrived = (offset >= 0) & (offset < sizes[sender, i])
            taken = jnp.take(wholes[sender], jnp.clip(starts[sender, i] + offset, 0, operand.shape[0] - 1), axis=0)
            output = jnp.where(arrived.reshape(-1, *[1] * (output.ndim - 1)), taken, output)
    return output
