"""Plans: the cheapest sequence of collectives from one sharding type to another.

A reshard of several axes is rarely one table row per axis: `plan` searches sequences of moves of groups of axes. All
intermediate types denote the same value.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal, NamedTuple

from shtypes.errors import Fix, ShardingTypeError
from shtypes.resharding.axis_factors import Factorization, cuts_of, factorization_of
from shtypes.resharding.costs import Collective, CostModel
from shtypes.resharding.moves import MOVES, ROUNDS, Grade, Kind, ring_bytes
from shtypes.resharding.search import Path, launches, least_sent, search, search_alike, sent
from shtypes.resharding.space import Places, SearchSpace
from shtypes.resharding.step_shapes import LARGE, shaped
from shtypes.resharding.steps import Plan, Step, after_common, common_prefix, difference
from shtypes.types import REPLICATED, ShType, State, dtypes

#: Axes over which a value stays replicated share the work of a reduction if that sends at most this fraction of the
#: bytes: they need one more launch, and links that the user did not name.
SAVES: Final = Fraction(4, 5)
_SILENT_MERGED = frozenset({Kind.SLICE, Kind.MASK, Kind.PLACE})


#: The passes to count.
Direction = Literal["both", "forward", "backward"]
#: The cost to minimize: the bytes in the direction to minimize, and then those in both.
Cost = tuple[int, int]


def cost(forward: int, backward: int, minimize: Direction) -> Cost:
    """The cost of the bytes sent forward and backward."""
    total = forward + backward
    return {"both": total, "forward": forward, "backward": backward}[minimize], total


@dataclass(frozen=True)
class Price:
    """The cost of a reshard in both directions."""

    forward_bytes: int  # bytes that each device sends forward
    backward_bytes: int  # bytes that each device sends for the gradient
    forward: str  # the forward communication in words; empty for none
    backward: str  # the backward communication in words; empty for none

    @property
    def bytes(self) -> int:
        """Bytes that each device sends in both directions."""
        return self.forward_bytes + self.backward_bytes

    def cost(self, minimize: Direction) -> Cost:
        """The cost to minimize."""
        return cost(self.forward_bytes, self.backward_bytes, minimize)

    def of(self, code: str) -> Fix:
        """A fix with this price."""
        return Fix(code, self.forward, self.backward, self.forward_bytes, self.backward_bytes)


def plan(src: ShType, dst: ShType, model: CostModel | None = None, *, shared: bool = True, cut: bool = True) -> Plan:
    """The cheapest plan from one type to another: fewest bytes, then launches, then memory; or least time. Cached.

    It never takes more memory per device than the larger of the two types, unless there is no other plan. ``model``:
    the links, to minimize time; ``shared``: whether axes over which the value stays replicated may share the work of a
    reduction; ``cut``: whether parts of axes may move alone (without, large meshes are planned faster).
    """
    return _plan(src, dst, src.names, dst.names, model, shared, cut)


def backward(forward: Plan) -> Plan:
    """The plan of the transpose: from the cotangent type of the destination to that of the source."""
    return plan(forward.dst.cotangent(), forward.src.cotangent())


def grade_of(forward: Plan) -> Grade:
    """The cost class of a plan."""
    if forward.communicates:
        return Grade.COMMUNICATING
    return Grade.FREE_FORWARD if backward(forward).communicates else Grade.FREE


def least_bytes(src: ShType, dst: ShType) -> int:
    """A lower bound of the bytes of any plan, without a search."""
    if is_local(src, dst):
        return 0
    at = factorization_of(src, dst, copies=True)
    gathered = src.size * dtypes.itemsize(src.dtype_name) // src.mesh.product(itertools.chain(*at.fixed))
    return int(gathered * least_sent(at.problem))


class Sent(NamedTuple):
    """A collective of a plan that is priced and not run."""

    kind: Kind
    axes: tuple[str, ...]
    src: ShType  # of the plan
    group: int
    bytes: int
    launches: int = 1


def collectives(src: ShType, dst: ShType, *, cut: bool = True) -> list[Collective]:
    """The collectives of a plan, without the types between them where all shards are small: a sixth of the work."""
    size = src.size * dtypes.itemsize(src.dtype_name)
    if size > LARGE:
        return [s for s in plan(src, dst, cut=cut).steps if s.kind.communicates and s.launches]
    if not size or is_local(src, dst):
        return []
    path, at = _cheapest(src, dst, None, True, cut, search_alike)
    space, before, out = SearchSpace(at.problem), at.problem.src, list[Collective]()
    shared = src.mesh.product(itertools.chain(*at.fixed)) * space.total
    for kind, after in path:
        if kind.communicates:
            axes = [a for a in space.axes if before[a] != after[a]]
            group, local = space.product(axes), size * max(space.local(before), space.local(after)) // shared
            sends = local if kind is Kind.PERMUTE else ring_bytes(ROUNDS[kind], group, local)
            out.append(Sent(kind, tuple(at.parts[a][0] for a in axes), src, group, sends))
        before = after
    return out


@functools.lru_cache(maxsize=16384)
def _plan(
    src: ShType, dst: ShType, src_names: object, dst_names: object, model: CostModel | None, shared: bool, cut: bool
) -> Plan:
    # the names are in the cache key: types equal up to names print differently
    _check(src, dst)
    if is_local(src, dst):
        steps = _local_steps(src, dst)
    else:
        steps = (model is None and single_collective(src, dst, shared)) or searched_steps(src, dst, model, shared, cut)
    return Plan(src, dst, tuple(steps if model is not None else shaped(src, dst, steps)))


#: Hints for reshards to and from varying, by the other state.
_TO_VARYING: Final = {
    State.SHARDED: ('sh.reinterpret(x, {axis}="V") takes the slices as values',),
    State.REDUCED: ('sh.lax.pvary(x, "{axis}")', 'sh.reinterpret(x, {axis}="V")'),
    State.INVARIANT: ('sh.lax.pvary(x, "{axis}")', 'sh.reinterpret(x, {axis}="V")'),
    State.UNREDUCED: ('sh.lax.pvary(sh.all_reduce(x, "{axis}"), "{axis}")',),
}
_FROM_VARYING: Final = {
    State.SHARDED: ("sh.reinterpret(x, {axis}=dim) puts the values together along a dim",),
    State.REDUCED: ('sh.lax.psum(x, "{axis}", to="reduced") adds the values',),
    State.INVARIANT: ('sh.lax.psum(x, "{axis}", to="invariant") adds the values',),
    State.UNREDUCED: ('sh.reinterpret(x, {axis}="U") takes the values as terms of a sum',),
}


def _check(src: ShType, dst: ShType) -> None:
    for what, one, other in (
        ("meshes", src.mesh, dst.mesh),
        ("dtypes", src.dtype_name, dst.dtype_name),
        ("shapes", src.shape, dst.shape),
    ):
        if one != other:
            raise ShardingTypeError(
                f"cannot reshard {src} to {dst}: their {what} differ",
                why=f"a reshard moves data and changes nothing else; the {what} are {one} and {other}",
            )
    for axis, a, b in zip(src.mesh.axis_names, src.states, dst.states, strict=True):
        if (a is State.VARYING) != (b is State.VARYING):
            hints = _TO_VARYING[a] if b is State.VARYING else _FROM_VARYING[b]
            raise ShardingTypeError(
                f"cannot reshard {src} to {dst}: only one of them varies over mesh axis `{axis}`",
                why="a varying value is a family of values without a global meaning, so no move keeps what it denotes",
                hints=[hint.format(axis=axis) for hint in hints],
            )


# plans without communication


def is_local(src: ShType, dst: ShType) -> bool:
    """Whether a plan has no forward communication. Depends on states and order of axes, never on sizes."""
    for a, b in zip(src.states, dst.states, strict=True):
        if (a is State.UNREDUCED and b is not a) or (a is State.SHARDED and b in REPLICATED):
            return False
    for before, after in zip(src.dims, dst.dims, strict=True):
        k = common_prefix(before.axes, after.axes)
        if any(dst.state(a) is State.SHARDED for a in before.axes[k:]):
            return False
        if any(src.state(a) is State.SHARDED for a in after.axes[k:]):
            return False
    return True


def _local_steps(src: ShType, dst: ShType) -> list[Step]:
    """The local steps between two types: slices, masks, places, and the slices that must follow a place."""
    src_axes, dst_axes = [d.axes for d in src.dims], [d.axes for d in dst.dims]
    common = [before[: common_prefix(before, after)] for before, after in zip(src_axes, dst_axes, strict=True)]
    pending, summed = src.axes(State.UNREDUCED), dst.axes(State.UNREDUCED)
    masked = (*pending, *(a for a in summed if src.state(a) in REPLICATED))
    sliced = [after if before == k else before for before, after, k in zip(src_axes, dst_axes, common, strict=True)]
    placed = [after if before == k else k for before, after, k in zip(src_axes, dst_axes, common, strict=True)]
    path: list[_Move] = [
        (Kind.SLICE, sliced, pending),
        (Kind.MASK, sliced, masked),
        (Kind.PLACE, placed, summed),
        (Kind.SLICE, dst_axes, summed),
    ]
    return _steps(src, dst, path)


# plans with communication


def single_collective(src: ShType, dst: ShType, shared: bool) -> list[Step]:
    """The plan of one collective, if it reaches the lower bound of bytes; empty if that is uncertain."""
    losses, gains = difference(src, dst), difference(dst, src)
    lost, gained = set(itertools.chain(*losses)), set(itertools.chain(*gains))
    before, after = set(src.axes(State.UNREDUCED)), set(dst.axes(State.UNREDUCED))
    summed = before - after
    if 1 in src.mesh.axis_sizes or not src.size or after - before or any(src.state(a) in REPLICATED for a in gained):
        return []
    if any(a and b for a, b in zip(losses, gains, strict=True)):
        return []  # axes of one dim are exchanged
    if summed and not lost and (not gained or gained == summed):
        kind = Kind.REDUCE_SCATTER if gained else Kind.ALL_REDUCE
    elif not summed and (not gained or gained == lost):
        kind = Kind.ALL_TO_ALL if gained else Kind.ALL_GATHER
    else:
        return []
    steps = _steps(src, dst, [(kind, [d.axes for d in dst.dims], dst.axes(State.UNREDUCED))])
    states = zip(src.states, dst.states, strict=True)
    copies = shared and summed and any(a in REPLICATED and b in REPLICATED for a, b in states)
    if copies and least_bytes(src, dst) < SAVES * steps[0].bytes:
        return []  # axes over which the value stays replicated may share the work
    return steps


def searched_steps(src: ShType, dst: ShType, model: CostModel | None, shared: bool, cut: bool = True) -> list[Step]:
    """The steps of a search over the axes of several devices that change; other axes move along, or last."""
    path, at = _cheapest(src, dst, model, shared, cut)
    places = [at.problem.src, *(after for _, after in path)]
    steps = [Step(kind, _axes(kind, a, b), a, b) for (kind, _), (a, b) in zip(path, at.types(places), strict=True)]
    current = at.end_type(places)
    single = list(_single_moves(src, dst, current))
    # only the order of axes of size 1 can differ now, which needs no step
    end = [d.axes for d in dst.dims], dst.axes(State.UNREDUCED)
    if single or not steps:
        steps += _steps(current, dst, [*single[:-1], (single[-1][0] if single else Kind.PERMUTE, *end)])
    else:
        last = _moved(current, dst, *end)
        if steps[-1].dst.mesh is last.mesh and steps[-1].dst.shape == last.shape:
            steps[-1] = replace(steps[-1], dst=last)
        steps = _relabelled(steps, last, dst)
    if not any(s.kind.communicates for s in steps):
        # silent only because an axis has size 1; otherwise axes would have to be exchanged first
        steps.insert(0, Step(Kind.PERMUTE, _permuted(src, dst), src, src))
    return steps


def _cheapest(
    src: ShType,
    dst: ShType,
    model: CostModel | None,
    shared: bool,
    cut: bool,
    search: Callable[..., Path | None] = search,
) -> tuple[list[tuple[Kind, Places]], Factorization]:
    """The cheapest plan of those with uncut and cut axes; adjacent silent steps of one kind are merged."""
    at = factorization_of(src, dst, model=model)
    saves = SAVES if model is None else Fraction(1)
    path = search(at.problem)
    if path is None:
        raise AssertionError("no plan was found; please report this")
    tried = {at.problem}
    views = itertools.product((False, True) if shared else (False,), cuts_of(src.mesh) if cut else [{}])
    for copies, parts in itertools.islice(views, 1, None):
        other = factorization_of(src, dst, parts, copies=copies, model=model)
        if other.problem not in tried:
            tried.add(other.problem)
            less = sent(path, at.problem)
            better = search(other.problem, less * saves) if copies else search(other.problem, less, launches(path))
            path, at = (path, at) if better is None else (better, other)
    merged: list[tuple[Kind, Places]] = []
    for kind, after in path.steps:
        if merged and merged[-1][0] is kind and kind in _SILENT_MERGED:
            merged.pop()
        merged.append((kind, after))
    return merged, at


def _single_moves(src: ShType, dst: ShType, current: ShType) -> Iterator[_Move]:
    """The moves of axes of size 1: no-ops, but graded as for larger axes."""
    dims, pending = [d.axes for d in current.dims], current.axes(State.UNREDUCED)
    for axis, a, b in zip(src.mesh.axis_names, src.states, dst.states, strict=True):
        if src.mesh.shape[axis] > 1 or (a in REPLICATED and b in REPLICATED):
            continue
        target = dst.dim_of(axis)
        if a is b and src.dim_of(axis) == target:
            continue
        rest = [tuple(x for x in axes if x != axis) for axes in dims]
        dims = [(*axes, axis) if i == target else axes for i, axes in enumerate(rest)]
        pending = (*(x for x in pending if x != axis), *([axis] if b is State.UNREDUCED else []))
        yield MOVES[a, b].kind, dims, pending


# from moves to types

#: A kind of step, with the resulting axes on each dim and the pending axes.
_Move = tuple[Kind, list[tuple[str, ...]], tuple[str, ...]]


def _steps(src: ShType, dst: ShType, path: list[_Move]) -> list[Step]:
    """The steps of moves, adjacent silent ones of one kind merged, and a final relabelling."""
    steps: list[Step] = []
    current = src
    for kind, dims, pending in path:
        after = _moved(current, dst, dims, pending)
        if after == current:
            continue
        if steps and steps[-1].kind is kind and kind in _SILENT_MERGED:
            current = steps.pop().src
        steps.append(Step(kind, _axes(kind, current, after), current, after))
        current = after
    return _relabelled(steps, current, dst)


def _moved(current: ShType, dst: ShType, dims: list[tuple[str, ...]], pending: tuple[str, ...]) -> ShType:
    """The type with these axes on its dims and these pending; an axis that becomes replicated gets its final state."""
    sharded = {a for axes in dims for a in axes}
    stays = {*REPLICATED, State.VARYING}
    states = {
        a: State.UNREDUCED if a in pending else s if s in stays else dst.state(a)
        for a, s in zip(current.mesh.axis_names, current.states, strict=True)
        if a not in sharded
    }
    return current.replace(
        dims=[d._replace(axes=axes) for d, axes in zip(current.dims, dims, strict=True)], states=states
    )


def _relabelled(steps: list[Step], last: ShType, dst: ShType) -> list[Step]:
    """Appends a relabelling, if the type is not yet the destination."""
    if last == dst:
        if steps and steps[-1].dst == dst:  # equal, with the destination's dim names
            steps[-1] = replace(steps[-1], dst=dst)
        return steps
    changed = tuple(a for a, s, t in zip(dst.mesh.axis_names, last.states, dst.states, strict=True) if s is not t)
    return [*steps, Step(Kind.RELABEL, changed, last, dst)]


def _axes(kind: Kind, src: ShType, dst: ShType) -> tuple[str, ...]:
    """The axes of a step in the order of its devices' indices, as on the dims that gain or lose them."""
    if kind is Kind.PERMUTE:
        return _permuted(src, dst)
    gains = kind in (Kind.SLICE, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL)
    before, after = (dst, src) if gains else (src, dst)
    axes: list[str] = []
    for a, b in zip(before.dims, after.dims, strict=True):
        axes += [axis for axis in after_common(a.axes, b.axes) if before.dim_of(axis) != after.dim_of(axis)]
    if kind in (Kind.MASK, Kind.ALL_REDUCE):
        pending = {*src.axes(State.UNREDUCED)} ^ {*dst.axes(State.UNREDUCED)}
        axes += [a for a in src.mesh.axis_names if a in pending]
    return tuple(axes)


def _permuted(src: ShType, dst: ShType) -> tuple[str, ...]:
    """The axes whose index a permute needs, in mesh order: all that move."""
    stays = {a for d, e in zip(src.dims, dst.dims, strict=True) for a in d.axes[: common_prefix(d.axes, e.axes)]}
    moves = [
        a
        for a, s, t in zip(src.mesh.axis_names, src.states, dst.states, strict=True)
        if a not in stays and (s is not t or s is State.SHARDED) and not (s in REPLICATED and t in REPLICATED)
    ]
    return tuple(moves)
