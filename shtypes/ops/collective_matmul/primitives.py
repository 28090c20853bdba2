"""The two operations of overlapped einsums, `Gathering` and `Scattering`: each is the other's transpose.

A gathering takes several partners of the operand that moves, and a scattering sums several products. So the gradients
of both operands of a scattered einsum come from one ring, and derivatives of any order stay rings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from shtypes._compat import Zero, is_undefined_primal
from shtypes.core.combined_collectives import Joint
from shtypes.core.dim_fns import Einsum, batched_equation, unused_letter
from shtypes.core.jax_type import HiShType, as_jax_type
from shtypes.core.local import local, repeated
from shtypes.core.operation import Comm
from shtypes.core.reshard import move
from shtypes.errors import ShardingTypeError
from shtypes.ops.collective_matmul.ring import RingSpec, gathering, one_round, scattering
from shtypes.types import ShType, State


@dataclass(frozen=True, eq=False)
class Overlapped(Joint):
    """An einsum as a ring."""

    called = "overlapped_einsum"
    verb: ClassVar[str]
    spec: RingSpec
    change: tuple[ShType, ShType]
    operands: tuple[HiShType, ...]
    results: tuple[HiShType, ...]

    def __str__(self) -> str:
        label, axes = self.spec.label, ",".join(self.spec.axes)
        ways = ", both ways" * self.spec.both
        return f"einsum[{' and '.join(self.equations)}, {self.verb} {label} over {axes}{ways}]"

    @property
    def equations(self) -> tuple[str, ...]:
        """The products."""
        return self.spec.equations


@dataclass(frozen=True, eq=False)
class Gathering(Overlapped):
    """``(moved, *others) -> products``: the moved operand goes round, multiplied with each other one.

    ``positions`` are its indices in the equations.
    """

    verb = "gather"
    positions: tuple[int, ...]

    def forward_comm(self) -> list[Comm]:
        return [one_round(self.spec, self.operands[0], self.src, self.dst)]

    def backward_comm(self) -> list[Comm]:
        moved, *others = self.operands
        recomputed = self.forward_comm() if any(t.differentiable for t in others) else []
        if not moved.differentiable or self._cotangent_is_gathered:
            return recomputed
        ct = moved.cotangent()
        return [*recomputed, one_round(self.spec, ct, self.dst.cotangent(), ct)]

    @property
    def _cotangent_is_gathered(self) -> bool:
        return self.dst.state(self.spec.axes[0]) is State.INVARIANT

    def on_shards(self, *shards: Any) -> list[Any]:
        return gathering(self.spec, self.positions, self.operands[0], self.results)(*shards)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outs = self.bind(*primals)
        moved, *others = primals
        active = [not _is_zero(t) for t in tangents]
        tangents_out: list[Any] = [None] * len(self.results)
        smooth = [i for i, t in enumerate(self.results) if t.differentiable]
        if active[0] and smooth:
            _add(tangents_out, smooth, self._subset(smooth, tangents[0], [others[i] for i in smooth]))
        varied = [i for i in smooth if active[i + 1]]
        if varied:
            _add(tangents_out, varied, self._subset(varied, moved, [tangents[i + 1] for i in varied]))
        zeros = [Zero(t.to_tangent_aval()) for t in self.results]
        return outs, [z if f is None else f for f, z in zip(tangents_out, zeros, strict=True)]

    def _subset(self, indices: Sequence[int], moved: Any, others: Sequence[Any]) -> list[Any]:
        """The products for some of the results."""
        spec = self.spec._replace(equations=tuple(self.equations[i] for i in indices))
        positions, results = tuple(self.positions[i] for i in indices), tuple(self.results[i] for i in indices)
        return gather(spec, positions, (self.src, self.dst), results, moved, *others)

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        nonzero = [i for i, ct in enumerate(cts) if not isinstance(ct, Zero)]
        if not is_undefined_primal(operands[0]):
            varied = [i for i in nonzero if is_undefined_primal(operands[i + 1])]
            others_cts = self._cotangents_of_others(varied, cts, operands) if varied else {}
            return [
                (others_cts[i - 1] if i - 1 in others_cts else Zero(x.aval)) if is_undefined_primal(x) else None
                for i, x in enumerate(operands)
            ]
        rest = [None] * (len(operands) - 1)
        return [self._cotangent_of_moved(nonzero, cts, operands) if nonzero else Zero(operands[0].aval), *rest]

    def _cotangents_of_others(
        self, indices: Sequence[int], cts: Sequence[Any], operands: Sequence[Any]
    ) -> dict[int, Any]:
        """The cotangents of the others, by moving the operand round again."""
        equations = [_swapped(self.equations[i], 1 - self.positions[i]) for i in indices]
        spec = self.spec._replace(equations=tuple(equations))
        results = tuple(self.operands[i + 1].to_ct_aval() for i in indices)
        positions = tuple(self.positions[i] for i in indices)
        cts_in = gather(spec, positions, (self.src, self.dst), results, operands[0], *[cts[i] for i in indices])
        return dict(zip(indices, cts_in, strict=True))

    def _cotangent_of_moved(self, indices: Sequence[int], cts: Sequence[Any], operands: Sequence[Any]) -> Any:
        """The cotangent of the moved operand, by a scattering."""
        equations = tuple(_swapped(self.equations[i], self.positions[i]) for i in indices)
        pairs = [(cts[i], operands[i + 1])[:: 1 - 2 * self.positions[i]] for i in indices]
        out = self.operands[0].to_ct_aval()
        if self._cotangent_is_gathered:
            # Each device has the full cotangent already: it computes its part of each product.
            return _sum(self._local_part(e, pair, out) for e, pair in zip(equations, pairs, strict=True))
        spec = self.spec._replace(equations=equations)
        return scatter(spec, (self.dst.cotangent(), out), out, *[x for pair in pairs for x in pair])

    def _local_part(self, equation: str, pair: Sequence[Any], out: HiShType) -> Any:
        parts = [_sharded(x, e, self.spec) for x, e in zip(pair, equation.split("->")[0].split(","), strict=True)]
        return local(Einsum(equation, out.dtype_name, self.spec.precision), *parts, out=out)

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        letter, size = _letter(self.equations), axis_data.size
        moved = dims[0] is not None
        mapped = [moved or d is not None for d in dims[1:]]
        equations = []
        for i, equation in enumerate(self.equations):
            pair = (dims[0], dims[i + 1]) if self.positions[i] == 0 else (dims[i + 1], dims[0])
            equations.append(batched_equation(equation, letter, pair, mapped[i]))
        change: tuple[ShType, ShType] = (self.src, self.dst)
        if moved:
            change = (as_jax_type(self.src).inc_rank(size, dims[0]), as_jax_type(self.dst).inc_rank(size, dims[0]))
        results = tuple(t.inc_rank(size, 0) if m else t for t, m in zip(self.results, mapped, strict=True))
        spec = self.spec._replace(equations=tuple(equations))
        return gather(spec, self.positions, change, results, *operands), [0 if m else None for m in mapped]


@dataclass(frozen=True, eq=False)
class Scattering(Overlapped):
    """``(lhs, rhs, lhs, rhs, ...) -> [sum of products]``, scattered."""

    verb = "scatter"

    def forward_comm(self) -> list[Comm]:
        return [one_round(self.spec, self.results[0], self.src, self.dst)]

    def backward_comm(self) -> list[Comm]:
        if not any(t.differentiable for t in self.operands):
            return []
        ct = self.results[0].cotangent()
        return [one_round(self.spec, ct, ct, self.src.cotangent())]

    def on_shards(self, *shards: Any) -> list[Any]:
        return scattering(self.spec, self.results[0])(*shards)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outs = self.bind(*primals)
        active = [i for i, t in enumerate(tangents) if not _is_zero(t)]
        if not active or not self.results[0].differentiable:
            return outs, [Zero(self.results[0].to_tangent_aval())]
        pairs = [(tangents[i], primals[i + 1]) if i % 2 == 0 else (primals[i - 1], tangents[i]) for i in active]
        spec = self.spec._replace(equations=tuple(self.equations[i // 2] for i in active))
        return outs, [scatter(spec, (self.src, self.dst), self.results[0], *[x for pair in pairs for x in pair])]

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        linear = [i for i, x in enumerate(operands) if is_undefined_primal(x)]
        if isinstance(cts[0], Zero):
            return [Zero(x.aval) if i in linear else None for i, x in enumerate(operands)]
        equations = tuple(_swapped(self.equations[i // 2], i % 2) for i in linear)
        spec = self.spec._replace(equations=equations)
        change = (self.results[0].to_ct_aval(), self.src.cotangent())
        results = tuple(self.operands[i].to_ct_aval() for i in linear)
        partners = [operands[i + 1 - 2 * (i % 2)] for i in linear]
        # The cotangent takes the place of the operand whose cotangent is computed.
        others_cts = iter(gather(spec, tuple(i % 2 for i in linear), change, results, cts[0], *partners))
        return [next(others_cts) if i in linear else None for i in range(len(operands))]

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        letter, size = _letter(self.equations), axis_data.size
        values, at = list(operands), list(dims)
        for i in range(0, len(values), 2):
            if at[i] is None and at[i + 1] is None:  # only other terms are mapped
                values[i], at[i] = repeated(values[i], size), 0
        pairs = list(zip(at[::2], at[1::2], strict=True))
        equations = tuple(batched_equation(e, letter, pair) for e, pair in zip(self.equations, pairs, strict=True))
        result = self.results[0].inc_rank(size, 0)
        change = (as_jax_type(self.src).inc_rank(size, 0), result)
        return [scatter(self.spec._replace(equations=equations), change, result, *values)], [0]


def gather(
    spec: RingSpec,
    positions: tuple[int, ...],
    change: tuple[ShType, ShType],
    results: Sequence[ShType],
    moved: Any,
    *others: Any,
) -> list[Any]:
    """The products of a moved operand with others; see `Gathering`.

    ``change`` is the type of the moved operand, and the gathered one.
    """
    types = tuple(jax.typeof(x) for x in (moved, *others))
    return gathering_of(spec, positions, change, types, results).applied(moved, *others)


def gathering_of(
    spec: RingSpec,
    positions: tuple[int, ...],
    change: tuple[ShType, ShType],
    operands: Sequence[ShType],
    results: Sequence[ShType],
) -> Gathering:
    """The operation for these types."""
    return Gathering(spec, change, tuple(map(as_jax_type, operands)), tuple(map(as_jax_type, results)), positions)


def scatter(spec: RingSpec, change: tuple[ShType, ShType], result: ShType, *operands: Any) -> Any:
    """A scattered sum of products of pairs; ``change`` is the type of the pending sum, and that of the result."""
    return scattering_of(spec, change, [jax.typeof(x) for x in operands], result).applied(*operands)[0]


def scattering_of(
    spec: RingSpec, change: tuple[ShType, ShType], operands: Sequence[ShType], result: ShType
) -> Scattering:
    """The operation for these types."""
    return Scattering(spec, change, tuple(map(as_jax_type, operands)), (as_jax_type(result),))


# small parts


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, Zero) or bool(jax.typeof(tangent).dtype == jax.dtypes.float0)


def _add(sums: list[Any], indices: Sequence[int], terms: Sequence[Any]) -> None:
    for i, term in zip(indices, terms, strict=True):
        sums[i] = term if sums[i] is None else _sum((sums[i], term))


def _sum(terms: Any) -> Any:
    first, *rest = terms
    for term in rest:
        first = jax.typeof(first).vspace_add(first, term)
    return first


def _swapped(equation: str, place: int) -> str:
    """The equation that computes the operand at ``place`` from the result in its place."""
    inputs, output = equation.split("->")
    parts = inputs.split(",")
    labels, parts[place] = parts[place], output
    return f"{','.join(parts)}->{labels}"


def _sharded(x: Any, labels: str, spec: RingSpec) -> Any:
    """An operand, sharded along the ring's label if it has it."""
    t = jax.typeof(x)
    for axis in spec.axes if spec.label in labels else ():
        t = t.with_axis(axis, State.SHARDED, labels.index(spec.label))
    return move(x, t, inserted=True)


def _letter(equations: Sequence[str]) -> str:
    unused = unused_letter("".join(equations))
    if unused is None:
        raise ShardingTypeError("an overlapped einsum with all 52 letters cannot be mapped over")
    return unused
