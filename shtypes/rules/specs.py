"""Types the arguments and results of `shard_map` by its specs.

A spec names some mesh axes. Inside, the mapped axes that shard a dim of an argument are varying and the dim is local; a
result gets them back as the most major axes of a dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from shtypes.errors import ShardingTypeError, quoted
from shtypes.resharding import grade_of, plan
from shtypes.resharding.moves import Grade
from shtypes.resharding.transport import reshard_fix
from shtypes.rules.local import Op, priced, result
from shtypes.types import REPLICATED, Dim, ShType, State
from shtypes.types.notation.dim_names import in_scope
from shtypes.types.notation.syntax import DimText, expand_ellipsis
from shtypes.types.policy import replicated
from shtypes.types.target import Spec, as_type

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State

#: The forms of a spec, in messages.
_EXAMPLE: Final = '"[_@x, _]", a jax.P or an sh.ShType'


class ParsedSpec(NamedTuple):
    """A spec, parsed."""

    dims: tuple[tuple[str, ...], ...]  # the mesh axes on each dim
    states: Mapping[str, State]  # of the other axes that it names

    @property
    def named(self) -> set[str]:
        """The axes that it names."""
        return {*self.states, *(a for axes in self.dims for a in axes)}


def parse_spec(spec: Any, t: ShType) -> ParsedSpec:
    """Parses a spec for a value of a type."""
    if isinstance(spec, str):
        _, syntax = in_scope(spec, t.mesh)
        written = (_REST,) if syntax.dims is None else syntax.dims
        full = expand_ellipsis(written, t.ndim)
        if full is None:
            raise _other_rank(spec, sum(not d.open_ended for d in written), t)
        dims = [
            old.axes if d.keeps_axes else tuple(a.text for a in d.axes) for d, old in zip(full, t.dims, strict=True)
        ]
        return ParsedSpec(tuple(dims), {a.text: s for s, axes in syntax.states for a in axes})
    if isinstance(spec, ShType):
        if spec.ndim != t.ndim:
            raise _other_rank(spec, spec.ndim, t)
        return ParsedSpec(tuple(d.axes for d in spec.dims), spec.beside_dims)
    if isinstance(spec, Spec):
        entries = [(e,) if isinstance(e, str) else tuple(e or ()) for e in spec.partitions]
        if len(entries) > t.ndim:
            raise _other_rank(spec, len(entries), t)
        states = {**dict.fromkeys(spec.unreduced, UNREDUCED), **dict.fromkeys(spec.reduced, REDUCED)}
        return ParsedSpec((*entries, *[()] * (t.ndim - len(entries))), states)
    raise ShardingTypeError(f"`{spec!r}` is no spec", hints=[_EXAMPLE])


#: The dims of a string without brackets.
_REST: Final = DimText("...", None, (), 0)


def _other_rank(spec: Any, count: int, t: ShType) -> ShardingTypeError:
    return ShardingTypeError(f"the spec `{spec}` has {count} dims, and {t} has {t.ndim}")


def _check_named(parsed: ParsedSpec, t: ShType) -> None:
    for axis in parsed.named:
        t.mesh.index(axis)
    listed = [*parsed.states, *(a for axes in parsed.dims for a in axes)]
    repeated = [a for a in listed if listed.count(a) > 1]
    if repeated:
        raise ShardingTypeError(f"the spec names mesh axis `{repeated[0]}` twice")


# arguments


def entering(t: ShType, spec: Any, mapped: Sequence[str]) -> tuple[ShType, ShType]:
    """The type to which an argument is cast, and its type inside; without a spec it is not cast."""
    parsed = ParsedSpec(tuple(d.axes for d in t.dims), {}) if spec is None else parse_spec(spec, t)
    _check_named(parsed, t)
    cast = _cast_type(t, parsed, mapped)
    if spec is not None:
        as_type(spec, t.mesh, like=cast)
    _check_casts(t, cast)
    dims, lead = [], []
    for d in cast.dims:
        mapped_here = [a for a in d.axes if a in mapped]
        if tuple(mapped_here) != d.axes[: len(mapped_here)]:
            raise _not_major(cast, d, mapped_here)
        lead += mapped_here
        dims.append(Dim(d.size // t.mesh.product(mapped_here), d.axes[len(mapped_here) :], d.name))
    return cast, cast.replace(dims=dims, states=cast.beside_dims | dict.fromkeys(lead, VARYING))


def _cast_type(t: ShType, parsed: ParsedSpec, mapped: Sequence[str]) -> ShType:
    """The argument's type with the places of the spec."""
    for axis in mapped:
        if axis not in parsed.named and t.state(axis) is SHARDED:
            raise _not_named_in(t, axis)
    for axis in parsed.named:
        if t.state(axis) is VARYING:
            raise ShardingTypeError(
                f"the spec names mesh axis `{axis}`, and {t} varies over it already",
                hints=["leave it out: an axis that an enclosing shard_map maps stays as it is"],
            )
    dims = []
    for d, axes in zip(t.dims, parsed.dims, strict=True):
        others = tuple(a for a in d.axes if a not in parsed.named and a not in mapped)
        dims.append(d._replace(axes=(*axes, *others)))
    on_dims = {a for d in dims for a in d.axes}
    rest = {a: parsed.states.get(a, s) for a, s in t.beside_dims.items()} | dict(parsed.states)
    return t.replace(dims=dims, states={a: s for a, s in rest.items() if a not in on_dims})


def _check_casts(t: ShType, cast: ShType) -> None:
    """Raises unless only replicated axes are cast, without communication forward."""
    if t == cast:
        return
    changed = [a for a in t.mesh.axis_names if (t.state(a), t.dim_of(a)) != (cast.state(a), cast.dim_of(a))]
    # A change in the order of axes changes no state but communicates.
    replicated_only = bool(changed) and all(t.state(a) in REPLICATED for a in changed)
    if not replicated_only or grade_of(plan(t, cast)) is Grade.COMMUNICATING:
        raise ShardingTypeError(
            f"the spec asks for {cast}, and the argument has type {t}",
            why="entering sends nothing: only what is replicated may be sliced on the way in",
            fixes=[reshard_fix(t, cast)],
            axes=changed,
        )


def _not_named_in(t: ShType, axis: str) -> ShardingTypeError:
    unsharded = t.with_axis(axis, replicated())
    dim = t.dim_of(axis)
    return ShardingTypeError(
        f"the spec does not say where mesh axis `{axis}` goes, which shards dim {dim} of {t}",
        why="an axis that a spec leaves out promises one value on all its devices, and each has a slice",
        fixes=[reshard_fix(t, unsharded)],
        hints=[f"name it in the spec: `_@{axis}` at dim {dim}, and the function gets the slices"],
        axes=[axis],
    )


def _not_major(t: ShType, dim: Dim, mapped: Sequence[str]) -> ShardingTypeError:
    others = [a for a in dim.axes if a not in mapped]
    reordered = t.replace(dims=[d._replace(axes=(*mapped, *others)) if d is dim else d for d in t.dims])
    names = quoted(mapped)
    return ShardingTypeError(
        f"the mapped mesh ax{'is' if len(mapped) == 1 else 'es'} {names} must be the first to shard a dim of {t}",
        why=f"the pieces of a device along {names} would not be contiguous: {quoted(others)} would shard them again",
        fixes=[reshard_fix(t, reordered)],
        axes=dim.axes,
    )


# results


def leaving(t: ShType, spec: Any, mapped: Sequence[str]) -> tuple[ShType, ShType]:
    """The type to which a result is cast inside, and its type outside."""
    parsed = parse_spec(spec, t)
    _check_named(parsed, t)
    for axis in mapped:
        if axis not in parsed.named and t.state(axis) not in REPLICATED:
            raise _not_named_out(t, axis)
    inner = t.beside_dims
    dims = []
    for i, (d, axes) in enumerate(zip(t.dims, parsed.dims, strict=True)):
        lead = [a for a in axes if a in mapped and a not in d.axes]
        _check_order(t, i, axes, lead)
        inner.update(dict.fromkeys(lead, VARYING))
        dims.append(Dim(d.size * t.mesh.product(lead), (*lead, *d.axes), d.name))
    outer = {a: s for a, s in inner.items() if a not in {b for d in dims for b in d.axes}}
    for axis, state in parsed.states.items():
        outer[axis] = state
        if t.state(axis) is VARYING and state is UNREDUCED and axis in mapped:
            continue
        if t.state(axis) is not state and not (t.state(axis) in REPLICATED and state in REPLICATED):
            raise _other_state(t, axis, state)
        inner[axis] = state
    for axis in t.mesh.axis_names:
        if axis in inner and inner[axis] is VARYING and t.state(axis) in (UNREDUCED, SHARDED):
            raise _other_state(t, axis, SHARDED)
    cast, final = t.replace(states=inner), t.replace(dims=dims, states=outer)
    as_type(spec, t.mesh, like=final)
    return cast, final


def _check_order(t: ShType, i: int, axes: Sequence[str], lead: Sequence[str]) -> None:
    """Raises unless the mapped axes are the first and the others are unchanged."""
    inner = t.dims[i].axes
    rest = tuple(a for a in axes if a not in lead)
    if tuple(axes[: len(lead)]) != tuple(lead) or rest not in ((), inner):
        in_order = ",".join((*lead, *inner))
        raise ShardingTypeError(
            f"dim {i} of {t} cannot leave sharded over `({','.join(axes)})`",
            why="leaving sends nothing: the mapped axes come back as the first of their dim, the others stay",
            hints=[f"`_@({in_order})` in the spec, and sh.reshard afterwards"],
            axes=axes,
        )


def _not_named_out(t: ShType, axis: str) -> ShardingTypeError:
    state = t.state(axis)
    if state is VARYING:
        op = Op("psum", (axis,), VARYING, replicated())
        return ShardingTypeError(
            f"the spec of a result leaves out mesh axis `{axis}`, and {t} varies over it",
            why="a spec that leaves out an axis promises one value on all its devices",
            fixes=[priced(op, t, result(op, t))],
            hints=[
                f"name it at a dim, `_@{axis}`, to concatenate the devices' values",
                f"`{{U:{axis}}}` in the spec, if they are the terms of a sum",
                'sh.lax.all_gather(..., to="reduced") where they were gathered: all are equal, and psum would add them',
            ],
            axes=[axis],
        )
    if state is UNREDUCED:
        return ShardingTypeError(
            f"the spec of a result leaves out mesh axis `{axis}`, and {t} is unreduced over it",
            why="a pending sum is named where it leaves, or summed before",
            fixes=[reshard_fix(t, t.with_axis(axis, replicated()))],
            hints=[f"`{{U:{axis}}}` in the spec"],
            axes=[axis],
        )
    return ShardingTypeError(
        f"the spec of a result leaves out mesh axis `{axis}`, which shards dim {t.dim_of(axis)} of {t}",
        hints=[f"name it at dim {t.dim_of(axis)}: `_@{axis}`"],
        axes=[axis],
    )


def _other_state(t: ShType, axis: str, state: State) -> ShardingTypeError:
    actual = t.state(axis)
    hints = []
    if actual is VARYING and state in REPLICATED:
        hints = [f'sh.lax.psum(x, "{axis}", to="{state.value}")']
    elif actual in REPLICATED and state is UNREDUCED:
        hints = [f'sh.reshard(x, {axis}="U") keeps the value', f'sh.lax.pvary(x, "{axis}") counts it on each device']
    elif actual is UNREDUCED:
        hints = [f'sh.all_reduce(x, "{axis}") first']
    return ShardingTypeError(
        f"the spec of a result says that mesh axis `{axis}` is {state.name.lower()}, and {t} is {actual.name.lower()}",
        hints=hints,
        axes=[axis],
    )
