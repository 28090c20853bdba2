"""The collectives of local mode: their result types, transposes and communication.

In local mode a mapped axis is varying and dims are those of one device. The mesh axes of a collective are all in one
state; `ROWS` lists its states before and after, the kind of communication, and its transpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from shtypes.errors import Fix, ShardingTypeError
from shtypes.resharding.moves import ROUNDS, Kind, all_in_words, in_words, ring_bytes
from shtypes.rules import messages
from shtypes.types import COTANGENT, REPLICATED, Dim, ShType, State, dtypes
from shtypes.types.mesh import Mesh

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State


class CollectiveRow(NamedTuple):
    """One collective between two states."""

    kind: Kind  # of communication
    #: The name of its transpose, between the cotangent states; None if it is nonlinear.
    transpose: str | None


#: Every collective, by name and its states before and after. The first row of a name has its default states.
ROWS: Final[Mapping[tuple[str, State, State], CollectiveRow]] = {
    ("psum", VARYING, INVARIANT): CollectiveRow(Kind.ALL_REDUCE, "pbroadcast"),
    ("psum", VARYING, REDUCED): CollectiveRow(Kind.ALL_REDUCE, "psum"),
    # The transpose of V to R: each device needs the full sum.
    ("psum", UNREDUCED, VARYING): CollectiveRow(Kind.ALL_REDUCE, "psum"),
    ("pbroadcast", INVARIANT, VARYING): CollectiveRow(Kind.RELABEL, "psum"),
    ("all_gather", VARYING, VARYING): CollectiveRow(Kind.ALL_GATHER, "psum_scatter"),
    ("all_gather", VARYING, REDUCED): CollectiveRow(Kind.ALL_GATHER, "psum_scatter"),
    ("all_gather_invariant", VARYING, INVARIANT): CollectiveRow(Kind.ALL_GATHER, "pscatter"),
    ("psum_scatter", VARYING, VARYING): CollectiveRow(Kind.REDUCE_SCATTER, "all_gather"),
    # The transpose of all_gather to R.
    ("psum_scatter", UNREDUCED, VARYING): CollectiveRow(Kind.REDUCE_SCATTER, "all_gather"),
    ("pscatter", INVARIANT, VARYING): CollectiveRow(Kind.SLICE, "all_gather_invariant"),
    ("pscatter", REDUCED, VARYING): CollectiveRow(Kind.SLICE, "pplace"),
    ("pplace", VARYING, UNREDUCED): CollectiveRow(Kind.PLACE, "pscatter"),
    ("all_to_all", VARYING, VARYING): CollectiveRow(Kind.ALL_TO_ALL, "all_to_all"),
    ("ppermute", VARYING, VARYING): CollectiveRow(Kind.PERMUTE, "ppermute"),
    ("pmax", VARYING, INVARIANT): CollectiveRow(Kind.ALL_REDUCE, None),
    ("pmax", VARYING, REDUCED): CollectiveRow(Kind.ALL_REDUCE, None),
    ("pmin", VARYING, INVARIANT): CollectiveRow(Kind.ALL_REDUCE, None),
    ("pmin", VARYING, REDUCED): CollectiveRow(Kind.ALL_REDUCE, None),
}
# Not psum of REDUCED or INVARIANT: it would multiply the value by the number of devices.
# REDUCED to VARYING and VARYING to UNREDUCED are no collectives: `reshard.moves.REINTERPRETATIONS`, free both ways.

#: Collectives that act along a dim.
GATHERS: Final = frozenset({"all_gather", "all_gather_invariant", "pplace"})
SCATTERS: Final = frozenset({"psum_scatter", "pscatter"})


@dataclass(frozen=True)
class Op:
    """A collective with its parameters."""

    name: str  # its name in `ROWS`
    axes: tuple[str, ...]  # its mesh axes; several act as one, major to minor
    src: State = VARYING  # their state before
    dst: State = VARYING  # their state after
    dim: int = 0  # the dim to gather, scatter or split
    concat: int = 0  # the dim along which an all-to-all concatenates
    tiled: bool = False  # whether it concatenates along an existing dim, instead of stacking along a new one
    perm: tuple[tuple[int, int], ...] = ()  # the (source, destination) pairs of a permutation
    across: str = ""  # the op along a sharded dim that it is part of, if any

    @property
    def row(self) -> CollectiveRow:
        """Its row of the table."""
        return ROWS[self.name, self.src, self.dst]

    def __str__(self) -> str:
        first = next((src, dst) for name, src, dst in ROWS if name == self.name)
        axes = ",".join(self.axes)
        change = "" if first == (self.src, self.dst) else f": {self.src.value}->{self.dst.value}"
        tiled = ", tiled" * self.tiled
        match self.name:
            case "all_to_all":
                change += f", dim={self.dim}->{self.concat}{tiled}"
            case "ppermute":
                change += ", " + " ".join(f"{a}->{b}" for a, b in self.perm)
            case name if name in GATHERS | SCATTERS:
                change += f", dim={self.dim}{tiled}"
        return f"{self.name}[{axes}{change}]"

    def shifted(self) -> Op:
        """The collective for values with one more leading dim."""
        return replace(self, dim=self.dim + 1, concat=self.concat + 1)

    def transposed(self) -> Op | None:
        """The transpose; None if it is nonlinear."""
        if self.row.transpose is None:
            return None
        states = {"name": self.row.transpose, "src": COTANGENT[self.dst], "dst": COTANGENT[self.src]}
        if self.name == "all_to_all":
            return replace(self, **states, dim=self.concat, concat=self.dim)  # type: ignore[arg-type]
        return replace(self, **states, perm=tuple((b, a) for a, b in self.perm))  # type: ignore[arg-type]

    def launches(self, mesh: Mesh) -> int:
        """The number of collectives in the compiled program."""
        if self.name == "ppermute" and all(a == b for a, b in self.perm):
            return 0
        return int(self.row.kind.communicates and mesh.product(self.axes) > 1)

    def bytes(self, src: ShType, dst: ShType) -> int:
        """Bytes that each device sends (ring model; direct sends for all-to-all and permutations)."""
        larger = max(src.local_bytes, dst.local_bytes)
        if self.row.kind is Kind.PERMUTE:
            return larger * self.launches(src.mesh)
        return ring_bytes(ROUNDS.get(self.row.kind, 0), src.mesh.product(self.axes), larger)

    def words(self) -> str:
        """A description of its communication; empty for none."""
        return in_words(self.row.kind.value, self.axes) if self.row.kind.communicates else ""


def result(op: Op, operand: ShType) -> ShType:
    """The result type of a collective."""
    for axis in op.axes:
        if operand.state(axis) is not op.src:
            raise _wrong_state(op, operand, axis)
    if op.row.transpose is None:
        for axis in operand.axes(UNREDUCED):
            raise messages.nonlinear(op.name, axis)
    is_any_or_all = operand.dtype_name == "bool" and op.row.transpose is None  # pmax and pmin of bools
    if op.name in ("psum", "psum_scatter", "pmax", "pmin") and not (
        dtypes.summable(operand.dtype_name) or is_any_or_all
    ):
        raise ShardingTypeError(f"`{op.name}` cannot combine `{operand.dtype_name}` values")
    if op.row.transpose is None and operand.dtype_name[0] == "c":
        raise ShardingTypeError(f"`{op.name}` cannot order `{operand.dtype_name}` values")
    n = operand.mesh.product(op.axes)
    dims = list(operand.dims)
    if op.name in GATHERS:
        _gather(op, operand, dims, op.dim, n)
    elif op.name in SCATTERS:
        _scatter(op, operand, dims, op.dim, n)
    elif op.name == "all_to_all":
        _scatter(op, operand, dims, op.dim, n)
        _gather(op, operand, dims, op.concat, n)
    elif op.name == "ppermute":
        _check_perm(op, n)
    return operand.replace(dims=dims, states=operand.beside_dims | dict.fromkeys(op.axes, op.dst))


def _gather(op: Op, operand: ShType, dims: list[Dim], d: int, n: int) -> None:
    if not op.tiled:
        _check_dim(op, operand, d, len(dims) + 1)
        dims.insert(d, Dim(n))
        return
    _check_dim(op, operand, d, len(dims))
    _check_whole(op, operand, dims[d], d)
    dims[d] = dims[d]._replace(size=dims[d].size * n)


def _scatter(op: Op, operand: ShType, dims: list[Dim], d: int, n: int) -> None:
    _check_dim(op, operand, d, len(dims))
    _check_whole(op, operand, dims[d], d)
    size = dims[d].size
    if op.tiled and size % n:
        raise ShardingTypeError(
            f"`{op.name}` cannot cut dim {d} of size {size} in {n} equal parts",
            why=f"{messages.on(op.axes)} has {n} devices",
        )
    if not op.tiled and size != n:
        along = f"one element for each device along {messages.on(op.axes)}"
        raise ShardingTypeError(
            f"`{op.name}` needs dim {d} of size {n}, not {size}: {along}",
            hints=["tiled=True gives each device an equal part of the dim"],
        )
    if op.tiled:
        dims[d] = dims[d]._replace(size=size // n)
    else:
        del dims[d]


def _check_dim(op: Op, operand: ShType, d: int, rank: int) -> None:
    if not 0 <= d < rank:
        raise ShardingTypeError(f"`{op.name}` of {operand} has no dim {d}")


def _check_whole(op: Op, operand: ShType, dim: Dim, d: int) -> None:
    if dim.axes:
        raise ShardingTypeError(
            f"`{op.name}` acts along dim {d} of {operand}, which is sharded on {messages.on(dim.axes)}",
            why="each device holds only its slice of that dim, and would move pieces of that slice",
            hints=["reshard it so that the dim is not sharded", "tiled=False and a new dim, where that is enough"],
            axes=dim.axes,
        )


def _check_perm(op: Op, n: int) -> None:
    for side, place in (("source", 0), ("destination", 1)):
        indices = [pair[place] for pair in op.perm]
        out = [i for i in indices if not 0 <= i < n]
        repeated = [i for i in indices if indices.count(i) > 1]
        if out or repeated:
            what = f"{out[0]}, and {messages.on(op.axes)} has {n} devices" if out else f"{repeated[0]} twice"
            raise ShardingTypeError(f"`ppermute` has the {side} {what}")


# errors

_NEEDED: Final = {
    State.VARYING: "a value that varies: one per device",
    State.INVARIANT: "an invariant value",
    State.REDUCED: "a reduced value",
    State.UNREDUCED: "an unreduced value",
}


def _wrong_state(op: Op, operand: ShType, axis: str) -> ShardingTypeError:
    state = operand.state(axis)
    what = (
        f"`{op.name}` over {messages.on([axis])} needs {_NEEDED[op.src]}, and {operand} is {messages.state_word(state)}"
    )
    quoted = f'"{axis}"'
    if state in REPLICATED and op.src is VARYING:
        n, why = operand.mesh.shape[axis], "every device has the same value"
        if op.name == "psum":
            why += f": their sum is {n} times the value" if n > 1 else ": their sum has it once for each device"
        return ShardingTypeError(what, why=why, fixes=_replicated_fixes(op, operand), axes=[axis])
    hints = {
        State.UNREDUCED: [f"sh.all_reduce(x, {quoted}) adds the partial values", f"sh.reduce_scatter(x, {quoted}, 0)"],
        State.SHARDED: ["sh.shard_map makes it varying", f'sh.reinterpret(x, {axis}="V") takes the slices as values'],
        State.VARYING: [f"sh.lax.psum(x, {quoted}) makes one value of it"],
    }
    return ShardingTypeError(what, hints=hints.get(state, []), axes=[axis])


def _replicated_fixes(op: Op, operand: ShType) -> list[Fix]:
    """Fixes for a collective of a replicated value; those that communicate are typed again."""
    replicated = tuple(a for a in op.axes if operand.state(a) in REPLICATED)
    live = tuple(a for a in op.axes if a not in replicated)
    fixes: list[Fix] = []
    candidates: list[tuple[Op, ShType, str, tuple[str, ...]]] = []  # with the axes over which its pvary sums backward
    if live and op.name in ("psum", "pmax", "pmin"):  # sums replicated values once
        candidates.append((replace(op, axes=live), operand, "x", ()))
    elif op.name == "psum":
        fixes.append(Fix(f"x * sh.lax.axis_size({messages.axes_code(replicated)})"))
    elif op.name in ("pmax", "pmin", "ppermute"):
        fixes.append(Fix("x"))
    cast = operand.with_axes(replicated, VARYING)
    invariant = tuple(a for a in replicated if operand.state(a) is INVARIANT and operand.differentiable)
    candidates.append((op, cast, f"sh.lax.pvary(x, {messages.axes_code(replicated)})", invariant))
    for collective, src, code, summed in candidates:
        try:
            fixes.append(priced(collective, src, result(collective, src), code, summed))
        except ShardingTypeError:
            continue
    return fixes


def priced(op: Op, src: ShType, dst: ShType, operand: str = "x", summed: tuple[str, ...] = ()) -> Fix:
    """A fix that calls a collective on ``operand``, code that sums the cotangent over ``summed``, with its price."""
    back = op.transposed() if src.differentiable else None
    backward = [back.words()] if back is not None and back.words() else []
    extra = 0
    if summed:
        backward.append(in_words(Kind.ALL_REDUCE.value, summed))
        extra = ring_bytes(2, src.mesh.product(summed), src.local_bytes)
    return Fix(
        code=f"sh.lax.{op.name}({operand}, {messages.axes_code(op.axes)})",
        forward=op.words(),
        backward=all_in_words(backward),
        bytes_forward=op.bytes(src, dst),
        bytes_backward=(back.bytes(dst.cotangent(), src.cotangent()) if back is not None else 0) + extra,
    )
