"""Parses the arguments of collectives: mesh axes, states, dims, pytrees; `axis_index` and `axis_size`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import jax

from shtypes.context.user_line import public
from shtypes.core import collective
from shtypes.core.array import Array
from shtypes.core.elementwise_fns import Cast
from shtypes.core.local import local
from shtypes.dispatch.apply import as_operands, located
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh, current_mesh
from shtypes.types.policy import replicated

T = TypeVar("T")

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State

Axes = str | Sequence[str]

#: The values of ``to=``: JAX's names, letters and states.
_STATES: Final[dict[str | State, State]] = {
    **{s.name.lower(): s for s in (VARYING, REDUCED, INVARIANT, UNREDUCED)},
    **{s.value: s for s in (VARYING, REDUCED, INVARIANT, UNREDUCED)},
    **{s: s for s in (VARYING, REDUCED, INVARIANT, UNREDUCED)},
}


def axes_of(axis_name: Axes) -> tuple[str, ...]:
    """The mesh axes of a collective, as a tuple."""
    axes = (axis_name,) if isinstance(axis_name, str) or not isinstance(axis_name, Iterable) else tuple(axis_name)
    if not axes or not all(isinstance(a, str) for a in axes) or len(set(axes)) < len(axes):
        raise ShardingTypeError(f"a collective goes along one mesh axis or several different ones, not {axis_name!r}")
    return axes


def state_of(to: Any, among: tuple[State, ...], name: str) -> State:
    """The state that ``to=`` names; refuses states that are not ``among`` those of the collective's result."""
    state: State | None = _STATES.get(to) if isinstance(to, (str, State)) else None
    if state not in among or state is None:
        choices = [f'to="{s.name.lower()}"' for s in among]
        raise ShardingTypeError(f"`{name}` cannot end in {to!r}", hints=choices)
    return state


def replicated_state(to: Any, name: str) -> State:
    """The replicated state that ``to=`` names; the policy's by default."""
    return replicated() if to is None else state_of(to, (REDUCED, INVARIANT), name)


def refuse_groups(groups: Any) -> None:
    """Refuses `axis_index_groups`."""
    if groups is not None:
        raise ShardingTypeError(
            "collectives go along whole mesh axes; there are no `axis_index_groups`",
            hints=['split the axis in two in the mesh: sh.make_mesh({"outer": 2, "inner": 4})'],
        )


def dim_from_front(d: Any, rank: int) -> int:
    """A dim as a nonnegative index; unchanged out of range, which the rule refuses."""
    dim: int = operator.index(d)
    return dim + rank if -rank <= dim < 0 else dim


def on_each_leaf(name: str, x: T, make: Callable[[Any, ShType], Any]) -> T:
    """Applies ``make`` to each leaf of a pytree, as a typed value; errors name the call and the type."""

    def of_leaf(leaf: Any) -> Any:
        ((value,), _) = as_operands([leaf])
        t = jax.typeof(value)
        try:
            return make(value, t)
        except ShardingTypeError as error:
            raise located(error, name, [t]).with_traceback(None) from None

    results: T = jax.tree.map(of_leaf, x)
    return results


def bools_as_integers(x: Any) -> Array:
    """Casts bools to integers, for sums."""
    t = jax.typeof(x)
    return local(Cast("i32"), x, out=t.replace(dtype="i32")) if t.dtype_name == "bool" else x


@public
def axis_index(axis_name: Axes) -> Array:
    """The index of each device along mesh axes, major to minor: ``i32[]``, varying; `jax.lax.axis_index`."""
    mesh, axes = current_mesh(), axes_of(axis_name)
    for axis in axes:
        mesh.index(axis)
    return collective.axis_index(mesh, axes, REDUCED)


@public
def axis_size(axis_name: Axes) -> int:
    """The number of devices along mesh axes; `jax.lax.axis_size`."""
    mesh: Mesh = current_mesh()
    axes = axes_of(axis_name)
    for axis in axes:
        mesh.index(axis)
    return mesh.product(axes)
