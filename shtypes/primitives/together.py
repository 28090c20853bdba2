"""Reshards of many values at once: what they send of one kind, over the same axes, goes in one collective."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat import Zero, instantiate_zeros
from shtypes.core.hitype import HiShType, hi
from shtypes.core.operation import Sending, Sends
from shtypes.lowering.collectives import run_together
from shtypes.primitives.joint import Joint
from shtypes.primitives.local import check_tangents
from shtypes.primitives.moving import move
from shtypes.primitives.reshard import resharded, returned
from shtypes.resharding import Plan, plan
from shtypes.resharding.moves import Kind, ring_bytes
from shtypes.resharding.steps import Step
from shtypes.resharding.transport import AS_IT_IS, Transport, transport_in_force
from shtypes.types import Dim, ShType, State

#: The kinds of steps that several values can take in one collective.
JOINED: Final = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER})


class Together(NamedTuple):
    """Steps of several values, of one kind and over the same axes, as one collective."""

    steps: tuple[Step, ...]

    @property
    def kind(self) -> Kind:
        """What it does."""
        return self.steps[0].kind

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it goes along."""
        return self.steps[0].axes

    @property
    def bytes(self) -> int:
        """Bytes that each device sends."""
        larger = sum(max(s.src.local_bytes, s.dst.local_bytes) for s in self.steps)
        return ring_bytes(2 if self.kind is Kind.ALL_REDUCE else 1, self.steps[0].group, larger)

    @property
    def launches(self) -> int:
        """One, or none along axes of one device or of values without elements."""
        return int(any(step.launches for step in self.steps))

    @property
    def change(self) -> tuple[ShType, ShType]:
        """The types before and after of the one array that is sent: the values' shards, one behind the other."""
        return self._sent([s.src for s in self.steps]), self._sent([s.dst for s in self.steps])

    def _sent(self, types: Sequence[ShType]) -> ShType:
        mesh = types[0].mesh
        size = sum(math.prod(t.local_shape) for t in types)
        own = {a: types[0].state(a) for a in self.axes}
        rest = {a: {t.state(a) for t in types} for a in mesh.axis_names if a not in own}
        sharded = [a for a, found in rest.items() if State.SHARDED in found]
        sharded += [a for a, state in own.items() if state is State.SHARDED]
        states = {a: next(iter(sorted(found, key=_order))) for a, found in rest.items()} | own
        states = {a: state for a, state in states.items() if a not in sharded}
        return ShType(mesh, types[0].dtype_name, [Dim(size * mesh.product(sharded), axes=tuple(sharded))], states)


def _order(state: State) -> int:
    return [State.UNREDUCED, State.VARYING, State.REDUCED, State.INVARIANT, State.SHARDED].index(state)


@dataclass(frozen=True, eq=False)
class Reshards(Joint):
    """One step of several values at once. Linear in all of them together.

    Attributes:
        kind: What it does.
        operands: The types before.
        results: The types after.
        inserted: Whether typing rules inserted all of them.
    """

    called = "reshard_all"
    kind: str
    operands: tuple[HiShType, ...]
    results: tuple[HiShType, ...]
    inserted: bool = False
    transport: Transport = AS_IT_IS  # how its transpose communicates, each value by itself

    def __str__(self) -> str:
        how = f", {self.transport}" if str(self.transport) else ""
        return f"reshard_all[{self.kind} over {','.join(self._sent.axes)}{how}]"

    @functools.cached_property
    def _sent(self) -> Together:
        pairs = zip(self.operands, self.results, strict=True)
        return Together(tuple(plan(src, dst, shared=False).steps[0] for src, dst in pairs))

    @property
    def change(self) -> tuple[ShType, ShType]:  # type: ignore[override]
        return self._sent.change

    def forth(self) -> Sequence[Sending]:
        sent = self._sent
        return [Sending(Sends(sent.kind, sent.axes, sent.bytes, sent.launches), *sent.change)]

    def back(self) -> Sequence[Sending]:
        pairs = zip(self.operands, self.results, strict=True)
        plans = [self.transport.backward(src, dst) for src, dst in pairs if src.differentiable]
        return [Sending(s, p.src, p.dst) for p in plans for s in p.steps if s.kind.communicates]

    def on_shards(self, *shards: Any) -> list[Any]:
        return run_together(self._sent.steps, shards)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        check_tangents(primals, tangents)
        outs = self.bind(*primals)
        if all(isinstance(t, Zero) for t in tangents) or not self.results[0].differentiable:
            return outs, [Zero(t.to_tangent_aval()) for t in self.results]
        return outs, self.bind(*map(instantiate_zeros, tangents))

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        back = [t.to_ct_aval() for t in self.operands]
        pairs = zip(cts, back, strict=True)
        how = self.transport.transposed()
        return [
            Zero(t) if isinstance(ct, Zero) else returned(ct, t, inserted=self.inserted, transport=how)
            for ct, t in pairs
        ]

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        given = zip(self.results, dims, strict=True)
        goals = [t if d is None else t.inc_rank(axis_data.size, d) for t, d in given]
        return move_together(operands, goals, self.transport), list(dims)


def plans_of(sources: Sequence[ShType], targets: Sequence[ShType], transport: Transport) -> list[Plan]:
    """How each value gets from its type to its target."""
    return [transport.plan(src, dst) for src, dst in zip(sources, targets, strict=True)]


def rounds(plans: Sequence[Plan]) -> list[list[tuple[int, ...]]]:
    """Which values move in one collective, round by round: round k has the k-th step of each plan.

    A plan through types of another view of the array runs by itself, whole, in the first round.
    """
    found: list[list[tuple[int, ...]]] = []
    for k in range(max((len(p.steps) if p.plain else 1 for p in plans), default=0)):
        groups: dict[Any, list[int]] = {}
        for i, p in enumerate(plans):
            if k < len(p.steps) and (p.plain or k == 0):
                groups.setdefault(_group(i, p.steps[k]) if p.plain else i, []).append(i)
        found.append([tuple(g) for g in groups.values()])
    return found


def _group(i: int, step: Step) -> Any:
    """What steps that go in one collective have in common; the number of the value for a step that goes alone."""
    if step.kind not in JOINED:
        return i
    gone = step.lost if step.kind is Kind.ALL_GATHER else step.gained
    order = tuple(a for axes in gone for a in axes)
    return step.kind, step.axes, order, step.src.dtype_name, step.src.mesh


def sent_together(sources: Sequence[ShType], targets: Sequence[ShType]) -> list[Together]:
    """The collectives by which values get from their types to targets, together."""
    plans = plans_of(sources, targets, transport_in_force())
    joined = [
        Together(tuple(plans[i].steps[k] for i in group))
        for k, groups in enumerate(rounds(plans))
        for group in groups
        if plans[group[0]].plain and plans[group[0]].steps[k].kind.communicates
    ]
    return joined + [Together((s,)) for p in plans if not p.plain for s in p.steps if s.kind.communicates]


def move_together(values: Sequence[Any], targets: Sequence[ShType], transport: Transport | None = None) -> list[Any]:
    """Typed values in other types: sums, scatters and gathers over the same axes in one collective for each dtype.

    Args:
        values: The values.
        targets: For each, the type to bring it to.
        transport: How they communicate; by default as reshards do here that do not say.
    """
    found, transport = list(values), transport_in_force() if transport is None else transport
    plans = plans_of([jax.typeof(x) for x in values], targets, transport)
    for k, groups in enumerate(rounds(plans)):
        for group in groups:
            after = [plans[i].steps[k].dst if plans[i].plain else plans[i].dst for i in group]
            if len(group) == 1:
                moved = [_moved(found[group[0]], after[0], transport)]
            else:
                before = tuple(hi(jax.typeof(found[i])) for i in group)
                kind = plans[group[0]].steps[k].kind.value
                together = Reshards(kind, before, tuple(map(hi, after)), transport=transport)
                moved = together.applied(*(found[i] for i in group))
            for i, x in zip(group, moved, strict=True):
                found[i] = x
    return found


def _moved(x: Any, dst: ShType, transport: Transport) -> Any:
    """One value, by itself."""
    varies = State.VARYING in dst.states
    return move(x, dst) if varies else resharded(x, dst, transport=transport)


__all__ = ["Reshards", "Together", "move_together", "sent_together"]
