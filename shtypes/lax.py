"""Collectives of local mode, under the names, parameters and defaults of `jax.lax`: what devices send each other.

They take typed values that vary over the mesh axes they go along, as the arguments of a function under
`shtypes.shard_map` do; a tree of values is taken leaf by leaf.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from shtypes.analysis.judging import judge
from shtypes.collective import AxisIndex, Op, collect, reinterpreted, vary
from shtypes.errors import ShardingTypeError
from shtypes.functions.arithmetic import DivideBy
from shtypes.functions.basics import Cast
from shtypes.hitype import hi
from shtypes.mesh import Mesh, current_mesh
from shtypes.ops.dispatch import is_number, lift, located
from shtypes.policy import replicated
from shtypes.primitives import local, move
from shtypes.types import ShType, State
from shtypes.where import public

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State

Axes = str | Sequence[str]

#: The states that ``to=`` may name, by JAX's words and by letter.
_STATES: Final[dict[str | State, State]] = {
    **{s.name.lower(): s for s in (VARYING, REDUCED, INVARIANT, UNREDUCED)},
    **{s.value: s for s in (VARYING, REDUCED, INVARIANT, UNREDUCED)},
    **{s: s for s in (VARYING, REDUCED, INVARIANT, UNREDUCED)},
}


def _axes(axis_name: Axes) -> tuple[str, ...]:
    axes = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    if not axes or not all(isinstance(a, str) for a in axes) or len(set(axes)) < len(axes):
        raise ShardingTypeError(f"a collective goes along one mesh axis or several different ones, not {axis_name!r}")
    return axes


def _state(to: Any, among: tuple[State, ...], name: str) -> State:
    found: State | None = _STATES.get(to) if isinstance(to, (str, State)) else None
    if found not in among or found is None:
        choices = [f'to="{s.name.lower()}"' for s in among]
        raise ShardingTypeError(f"`{name}` cannot end in {to!r}", hints=choices)
    return found


def _replicated(to: Any, name: str) -> State:
    return replicated() if to is None else _state(to, (REDUCED, INVARIANT), name)


def _no_groups(groups: Any) -> None:
    if groups is not None:
        raise ShardingTypeError(
            "collectives go along whole mesh axes; there are no `axis_index_groups`",
            hints=['split the axis in two in the mesh: sh.make_mesh({"outer": 2, "inner": 4})'],
        )


def _dim(d: Any, rank: int) -> int:
    """A dim from the front, left as it is where it is out of range: the rule says so."""
    found: int = operator.index(d)
    return found + rank if -rank <= found < 0 else found


def _each(name: str, x: Any, make: Callable[[Any, ShType], Any]) -> Any:
    """A collective applied to each leaf of a tree, as a typed value; errors name the call and the type."""

    def one(leaf: Any) -> Any:
        ((value,), _) = lift([leaf])
        t = jax.typeof(value)
        try:
            return make(value, t)
        except ShardingTypeError as error:
            raise located(error, name, [t]).with_traceback(None) from None

    return jax.tree.map(one, x)


def _counted(x: Any) -> Any:
    """A bool as the integer that sums count it as."""
    t = jax.typeof(x)
    return local(Cast("i32"), x, out=t.replace(dtype="i32")) if t.dtype_name == "bool" else x


# sums


@public
def psum(x: Any, axis_name: Axes, *, axis_index_groups: Any = None, to: Any = None) -> Any:
    """The sum of the devices' values along mesh axes, on each of them; `jax.lax.psum`.

    Args:
        x (...): Varying over the axes. A Python number is multiplied by their size.
        axis_name: A mesh axis or several.
        axis_index_groups: None.
        to: ``"reduced"`` or ``"invariant"``; the policy's replicated state by default.

    Returns:
        (...): One value; reduced or invariant.

    Raises:
        ShardingTypeError: the value is not varying: to sum a replicated one would multiply it by the axis's size.

    Communicates: an all-reduce; backward nothing if invariant, an all-reduce if reduced. Transpose: `pbroadcast` (to
    invariant); the sum of the pending cotangent on each device (to reduced).
    """
    _no_groups(axis_index_groups)
    axes, state = _axes(axis_name), _replicated(to, "psum")
    if is_number(x):
        return x * axis_size(axes)
    return _each("psum", x, lambda leaf, t: collect(Op("psum", axes, VARYING, state), _counted(leaf)))


@public
def pmean(x: Any, axis_name: Axes, *, axis_index_groups: Any = None, to: Any = None) -> Any:
    """The mean of the devices' values along mesh axes; `jax.lax.pmean`: `psum` over the size of the axes."""
    total = psum(x, axis_name, axis_index_groups=axis_index_groups, to=to)
    if is_number(total):
        return total / axis_size(axis_name)

    def mean(leaf: Any) -> Any:
        t = jax.typeof(leaf)
        if not t.differentiable:
            raise located(ShardingTypeError(f"`pmean` of {t} is no integer"), "pmean", [t])
        return local(DivideBy(t.mesh.product(_axes(axis_name))), leaf, out=t)

    return jax.tree.map(mean, total)


@public
def psum_scatter(
    x: Any, axis_name: Axes, *, scatter_dimension: int = 0, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    """The sum of the devices' values, of which each keeps its own part of a dim; `jax.lax.psum_scatter`.

    Args:
        x (..., n, ...): Varying over the axes.
        axis_name: A mesh axis or several.
        scatter_dimension: The dim to keep a part of.
        axis_index_groups: None.
        tiled: Whether the part is an equal slice of the dim; else the dim has one element per device, and is dropped.

    Returns:
        (..., n / size, ...): or without the dim. Varying.

    Communicates: a reduce-scatter; backward, an all-gather. Transpose: `all_gather`.
    """
    _no_groups(axis_index_groups)

    def make(leaf: Any, t: ShType) -> Any:
        op = Op("psum_scatter", _axes(axis_name), dim=_dim(scatter_dimension, t.ndim), tiled=tiled)
        return collect(op, _counted(leaf))

    return _each("psum_scatter", x, make)


# gathers


@public
def all_gather(
    x: Any,
    axis_name: Axes,
    *,
    axis_index_groups: Any = None,
    axis: int = 0,
    tiled: bool = False,
    to: Any = "varying",
) -> Any:
    """The devices' values together, on each of them; `jax.lax.all_gather`.

    Args:
        x (...): Varying over the mesh axes.
        axis_name: A mesh axis or several.
        axis_index_groups: None.
        axis: The dim along which the values are stacked, or concatenated.
        tiled: Whether they are concatenated along a dim that is there; else stacked along a new one.
        to: ``"varying"``, ``"reduced"`` or ``"invariant"``: the state of the result, and so of its gradient.

    Returns:
        (..., size, ...): The same on each device.

    Communicates: an all-gather; backward, a reduce-scatter, or nothing if invariant. Transpose: `psum_scatter`, or
    `pscatter` if invariant.
    """
    _no_groups(axis_index_groups)
    state = _state(to, (VARYING, REDUCED, INVARIANT), "all_gather")
    name = "all_gather_invariant" if state is INVARIANT else "all_gather"

    def make(leaf: Any, t: ShType) -> Any:
        dim = _dim(axis, t.ndim + (not tiled))
        return collect(Op(name, _axes(axis_name), VARYING, state, dim=dim, tiled=tiled), leaf)

    return _each(name, x, make)


@public
def all_gather_invariant(x: Any, axis_name: Axes, *, axis: int = 0, tiled: bool = False) -> Any:
    """`all_gather` to an invariant value, whose transpose `pscatter` sends nothing."""
    return all_gather(x, axis_name, axis=axis, tiled=tiled, to=INVARIANT)


@public
def pscatter(x: Any, axis_name: Axes, *, scatter_dimension: int = 0, tiled: bool = False) -> Any:
    """Each device's own part of a replicated value.

    Args:
        x (..., n, ...): Invariant or reduced over the axes.
        axis_name: A mesh axis or several.
        scatter_dimension: The dim to keep a part of.
        tiled: As in `psum_scatter`.

    Returns:
        (..., n / size, ...): or without the dim. Varying.

    Communicates: nothing; backward, an all-gather if invariant, nothing if reduced. Transpose: `all_gather_invariant`,
    or the part placed in zeros.
    """
    axes = _axes(axis_name)

    def make(leaf: Any, t: ShType) -> Any:
        states = {t.state(a) for a in axes}
        if states == {REDUCED, INVARIANT}:  # one collective for all axes: reduced to invariant is free
            leaf, states = _all_invariant(leaf, axes), {INVARIANT}
        src = REDUCED if states == {REDUCED} else INVARIANT
        return collect(Op("pscatter", axes, src, VARYING, dim=_dim(scatter_dimension, t.ndim), tiled=tiled), leaf)

    return _each("pscatter", x, make)


def _all_invariant(x: Any, axes: Sequence[str]) -> Any:
    t = jax.typeof(x)
    return move(x, functools.reduce(lambda dst, axis: dst.with_axis(axis, INVARIANT), axes, t))


# casts


@public
def pcast(x: Any, axis_name: Axes, *, to: Any) -> Any:
    """The same shards in another state; `jax.lax.pcast`.

    Args:
        x (...): For ``"varying"``: reduced or invariant. For ``"unreduced"``: varying; the values become the terms of a
            pending sum. For ``"reduced"``: invariant. For ``"invariant"``: reduced.
        axis_name: A mesh axis or several.
        to: The state.

    Communicates: nothing; backward, an all-reduce from invariant to varying or to reduced.
    """
    axes, state = _axes(axis_name), _state(to, (VARYING, UNREDUCED, REDUCED, INVARIANT), "pcast")
    allowed = {VARYING: (REDUCED, INVARIANT), UNREDUCED: (VARYING,), REDUCED: (INVARIANT,), INVARIANT: (REDUCED,)}

    def make(leaf: Any, t: ShType) -> Any:
        for axis in axes:
            if t.state(axis) not in allowed[state]:
                raise _cannot_cast(t, axis, state)
        if state is VARYING:
            return vary(leaf, axes)
        dst = functools.reduce(lambda dst, axis: dst.with_axis(axis, state), axes, t)
        if state is UNREDUCED:
            return reinterpreted(leaf, dst)
        judge("pcast", t, dst)
        return move(leaf, dst)

    return _each("pcast", x, make)


def _cannot_cast(t: ShType, axis: str, state: State) -> ShardingTypeError:
    found, wanted = t.state(axis).name.lower(), state.name.lower()
    hints = {
        VARYING: [f'sh.lax.psum(x, "{axis}") makes one value of it'] if state in (REDUCED, INVARIANT) else [],
        UNREDUCED: [f'sh.all_reduce(x, "{axis}")'],
        SHARDED: [f'sh.reinterpret(x, {axis}="V") takes the slices as values'],
    }
    return ShardingTypeError(
        f"mesh axis `{axis}` cannot be cast from {found} to {wanted}",
        why=f"the value has type {t}" if found != wanted else f"it is {found} already in {t}",
        hints=hints.get(t.state(axis), []),
        axes=[axis],
    )


@public
def pvary(x: Any, axis_name: Axes) -> Any:
    """A replicated value as a varying one: ``pcast(x, axis_name, to="varying")``."""
    return pcast(x, axis_name, to=VARYING)


@public
def pbroadcast(x: Any, axis_name: Axes, source: int | None = None) -> Any:
    """A replicated value as a varying one, as in the design of efficient transposition; or one device's value on all.

    Args:
        x (...): Without ``source``, reduced or invariant. With it, varying.
        axis_name: A mesh axis or several.
        source: The index of the device whose value all get, as in `jax.lax.pbroadcast`.

    Returns:
        (...): Varying without ``source``, else replicated by policy.

    Communicates: nothing; backward, an all-reduce if invariant. With ``source``, an all-reduce of the masked value.
    Transpose: `psum`.
    """
    if source is None:
        return pvary(x, axis_name)
    from shtypes.ops.select import where

    n = axis_size(axis_name)
    if not 0 <= operator.index(source) < n:
        raise ShardingTypeError(f"`pbroadcast` has the source {source}, and there are {n} devices")
    return psum(jax.tree.map(lambda leaf: where(axis_index(axis_name) == source, leaf, 0), x), axis_name)


# permutations


@public
def ppermute(x: Any, axis_name: Axes, perm: Sequence[tuple[int, int]]) -> Any:
    """Values sent from device to device; `jax.lax.ppermute`.

    Args:
        x (...): Varying over the axes.
        axis_name: A mesh axis or several.
        perm: Pairs (source, destination) of indices; each source and each destination at most once.

    Returns:
        (...): Varying; zero on devices that are no destination.

    Communicates: a permutation, forward and backward. Transpose: the inverse permutation.
    """
    pairs = tuple((operator.index(a), operator.index(b)) for a, b in perm)
    return _each("ppermute", x, lambda leaf, t: collect(Op("ppermute", _axes(axis_name), perm=pairs), leaf))


@public
def pshuffle(x: Any, axis_name: Axes, perm: Sequence[int]) -> Any:
    """Values taken from other devices; `jax.lax.pshuffle`: device ``i`` gets that of device ``perm[i]``."""
    n = axis_size(axis_name)
    if sorted(perm) != list(range(n)):
        raise ShardingTypeError(f"`pshuffle` needs each of the {n} indices once, not {perm!r}")
    return ppermute(x, axis_name, [(source, i) for i, source in enumerate(perm)])


@public
def all_to_all(
    x: Any,
    axis_name: Axes,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Any = None,
    tiled: bool = False,
) -> Any:
    """The pieces of each device's value exchanged; `jax.lax.all_to_all`.

    Args:
        x (...): Varying over the mesh axes.
        axis_name: A mesh axis or several.
        split_axis: The dim whose pieces go to the devices.
        concat_axis: The dim along which the pieces from the devices are stacked, or concatenated.
        axis_index_groups: None.
        tiled: Whether pieces are equal slices, concatenated along a dim that is there; else ``split_axis`` has one
            element per device and is dropped, and ``concat_axis`` is a new dim.

    Returns:
        (...): Varying.

    Communicates: an all-to-all, forward and backward. Transpose: the same with the two dims swapped.
    """
    _no_groups(axis_index_groups)

    def make(leaf: Any, t: ShType) -> Any:
        split, concat = _dim(split_axis, t.ndim), _dim(concat_axis, t.ndim)
        return collect(Op("all_to_all", _axes(axis_name), dim=split, concat=concat, tiled=tiled), leaf)

    return _each("all_to_all", x, make)


@public
def pswapaxes(x: Any, axis_name: Axes, axis: int, *, axis_index_groups: Any = None) -> Any:
    """A dim and a mesh axis swapped; `jax.lax.pswapaxes`: `all_to_all` that splits and stacks the same dim."""
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


# maxima


@public
def pmax(x: Any, axis_name: Axes, *, axis_index_groups: Any = None, to: Any = None) -> Any:
    """The largest of the devices' values, element by element; `jax.lax.pmax`.

    Args:
        x (...): Varying over the axes; not unreduced.
        axis_name: A mesh axis or several.
        axis_index_groups: None.
        to: As in `psum`.

    Returns:
        (...): One value; reduced or invariant.

    Communicates: an all-reduce; differentiated, one more that counts the winners. Derivative: the mean of the winners'.
    """
    return _extreme("pmax", x, axis_name, axis_index_groups, to)


@public
def pmin(x: Any, axis_name: Axes, *, axis_index_groups: Any = None, to: Any = None) -> Any:
    """The smallest of the devices' values, element by element; `jax.lax.pmin`. As `pmax`."""
    return _extreme("pmin", x, axis_name, axis_index_groups, to)


def _extreme(name: str, x: Any, axis_name: Axes, groups: Any, to: Any) -> Any:
    _no_groups(groups)
    axes, state = _axes(axis_name), _replicated(to, name)
    return _each(name, x, lambda leaf, t: collect(Op(name, axes, VARYING, state), leaf))


# where a device is


@public
def axis_index(axis_name: Axes) -> Any:
    """The index of each device along mesh axes, major to minor: ``i32[]``, varying; `jax.lax.axis_index`."""
    mesh, axes = current_mesh(), _axes(axis_name)
    for axis in axes:
        mesh.index(axis)
    states = {a: VARYING if a in axes else REDUCED for a in mesh.axis_names}
    return local(AxisIndex(axes), out=hi(ShType(mesh, "i32", [], states)))


@public
def axis_size(axis_name: Axes) -> int:
    """The number of devices along mesh axes; `jax.lax.axis_size`."""
    mesh: Mesh = current_mesh()
    axes = _axes(axis_name)
    for axis in axes:
        mesh.index(axis)
    return mesh.product(axes)


__all__ = [
    "all_gather",
    "all_gather_invariant",
    "all_to_all",
    "axis_index",
    "axis_size",
    "pbroadcast",
    "pcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "pscatter",
    "pshuffle",
    "psum",
    "psum_scatter",
    "pswapaxes",
    "pvary",
]
