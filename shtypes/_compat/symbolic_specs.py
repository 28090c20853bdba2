"""Symbolic specs of a plain program's intermediate values, whose shardings are inferred after the trace.

`jax.typeof(x).sharding.spec` of such a value has an `AxesOf` for each dim, which stands for the mesh axes that shard
it. A spec with these is an annotation like any other: the equation has the values that it refers to as operands.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Sequence
from typing import Any, Final

import jax

from shtypes._compat import private
from shtypes.context.user_line import placed
from shtypes.errors import ShardingTypeError

#: JAX's checks that a mesh has the axes in a spec; an `AxesOf` passes as one of them.
_MESH_CHECKS: Final = frozenset(
    inspect.unwrap(private("jax._src.named_sharding", name)).__code__
    for name in ("_check_mesh_resource_axis", "_check_mesh_unreduced")
)


def by_jax(frame: Any) -> bool:
    """Whether a frame runs JAX's code."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "jax"


def _unknown(question: str) -> ShardingTypeError:
    """The error for a question whose answer depends on the axes of an intermediate value."""
    return placed(
        ShardingTypeError(
            f"a lifted program asks {question} of a value that it makes itself",
            why="while the program is traced, the shardings of its arguments are known; those of other values are "
            "inferred later",
            hints=[
                "jax.reshard(y, jax.typeof(x).sharding) gives y the sharding of x, whichever that is",
                "jax.P(...) with the names of axes",
            ],
        ),
        "jax.typeof(x).sharding.spec",
    )


class AxesOf(str):
    """The mesh axes that shard a dim of a traced value, as an entry of a spec."""

    __slots__ = ("dim", "value")
    value: Any
    dim: int

    def __new__(cls, value: Any, dim: int) -> AxesOf:
        """A placeholder for the mesh axes that shard a dim of a tracer."""
        placeholder = super().__new__(cls, f"axes of dim {dim}")
        placeholder.value, placeholder.dim = value, dim
        return placeholder

    def __eq__(self, other: object) -> bool:
        if isinstance(other, AxesOf) and self.value is other.value and self.dim == other.dim:
            return True
        caller = sys._getframe(1)
        if caller.f_code in _MESH_CHECKS:
            return not isinstance(other, AxesOf)
        if by_jax(caller):
            return False
        raise _unknown(f"whether {other!r} is what shards a dim")

    def __hash__(self) -> int:
        return hash((id(self.value), self.dim))


class ByAxis(dict[str, Any]):
    """The sizes or types of mesh axes by name; JAX reads ``of_symbolic`` for an `AxesOf`."""

    def __init__(self, names: Sequence[str], values: Sequence[Any], of_symbolic: Any) -> None:
        super().__init__(zip(names, values, strict=True))
        self.of_symbolic = of_symbolic

    def __missing__(self, name: object) -> Any:
        if not isinstance(name, AxesOf):
            raise KeyError(name)
        if by_jax(sys._getframe(1)):
            return self.of_symbolic
        raise _unknown("for the size of what shards a dim")


def spec_like(x: Any) -> Any:
    """The symbolic spec of a traced value."""
    return jax.P(*[AxesOf(x, dim) for dim in range(x.ndim)])


@dataclasses.dataclass(frozen=True)
class AxesOfOperand:
    """The axes that shard a dim of an equation's operand, in its spec."""

    operand: int
    dim: int


@dataclasses.dataclass(frozen=True)
class SymbolicSpec:
    """The spec of an equation that refers to other values."""

    entries: tuple[Any, ...]  # for each dim, a spec's entry or `AxesOfOperand`
    is_spec_of_operand: bool  # whether it is the full spec of one other value; the result then also has its states
    unreduced: frozenset[str]  # the axes of pending sums
    reduced: frozenset[str]  # the reduced axes


def with_operands(spec: Any) -> tuple[Any, list[Any]]:
    """A spec for an equation, and the values that it refers to, which are the operands after the first."""
    likes: list[Any] = []

    def with_positions(entry: Any) -> Any:
        if isinstance(entry, tuple):
            return tuple(map(with_positions, entry))
        if not isinstance(entry, AxesOf):
            return entry
        if not any(x is entry.value for x in likes):
            likes.append(entry.value)
        return AxesOfOperand(1 + next(i for i, x in enumerate(likes) if x is entry.value), entry.dim)

    entries = tuple(map(with_positions, spec))
    if not likes:
        return spec, []
    is_spec_of_operand = len(likes) == 1 and entries == tuple(AxesOfOperand(1, d) for d in range(likes[0].ndim))
    return SymbolicSpec(entries, is_spec_of_operand, frozenset(spec.unreduced), frozenset(spec.reduced)), likes


def resolved(spec: SymbolicSpec, axes: Sequence[Sequence[tuple[str, ...]]]) -> Any:
    """The spec of an equation for these axes of its operands' dims."""

    def axes_of(entry: Any) -> tuple[str, ...]:
        if isinstance(entry, AxesOfOperand):
            return axes[entry.operand][entry.dim]
        return tuple(axis for e in entry for axis in axes_of(e)) if isinstance(entry, tuple) else (entry,)

    entries = [e if e is None or e is jax.P.UNCONSTRAINED else axes_of(e) or None for e in spec.entries]
    return jax.P(*entries, unreduced=spec.unreduced, reduced=spec.reduced)
