"""Printing types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shtypes.context.settings import check_policy, current_settings
from shtypes.types.parts import Dim, State, TypeParts
from shtypes.types.policy import REPLICATED_STATE, current_policy

#: The states in braces, in printed order.
BRACED: Final = (State.VARYING, State.UNREDUCED, State.REDUCED, State.INVARIANT)


def show(t: TypeParts, policy: str | None = None) -> str:
    """The printed type, without the policy's replicated state (by default of the current policy)."""
    silent = REPLICATED_STATE[check_policy(policy or current_policy())]
    if not t.differentiable:
        silent = State.REDUCED
    named = any(d.name for d in t.dims)
    of_names = dict(current_settings().dim_axes)
    dims = (", " if named else ",").join(_dim_in_scope(d, of_names) for d in t.dims)
    return f"{t.dtype_name}[{dims}]{_show_states(t, silent)}"


def _dim_in_scope(d: Dim, of_names: Mapping[str, Sequence[str]]) -> str:
    """A printed dim; marked as unsharded if its name has axes in scope."""
    if d.name and not d.axes and of_names.get(d.name):
        return f"{d.name}@()"
    return show_dim(d.name or str(d.size), d.axes)


def canonical(t: TypeParts) -> str:
    """The type printed independently of the policy: each R and I is written, and sizes instead of names."""
    dims = ",".join(show_dim(str(d.size), d.axes) for d in t.dims)
    return f"{t.dtype_name}[{dims}]{_show_states(t, None)}"


def show_dim(head: str, axes: Sequence[str]) -> str:
    """A size or name and its axes: ``8@x``."""
    return f"{head}@{show_axes(axes)}" if axes else head


def show_axes(axes: Sequence[str]) -> str:
    """One axis, or several in parentheses."""
    return axes[0] if len(axes) == 1 else f"({','.join(axes)})"


def _show_states(t: TypeParts, silent: State | None) -> str:
    listed = ((s, t.axes(s)) for s in BRACED if s is not silent)
    text = ", ".join(f"{s.value}:{show_axes(axes)}" for s, axes in listed if axes)
    return f"{{{text}}}" if text else ""
