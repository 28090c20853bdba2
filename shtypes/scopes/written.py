"""Where every cast must be written: the mesh axes along which rules insert none. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shtypes.context.scope import Scope, changed
from shtypes.context.settings import current_settings
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType, State

_WRITTEN: Final = {
    State.VARYING: 'sh.lax.pvary(x, "{axis}")',
    State.REDUCED: 'sh.reshard(x, {axis}="R")',
    State.INVARIANT: 'sh.reshard(x, {axis}="I")',
    State.UNREDUCED: 'sh.reshard(x, {axis}="U")',
}


def casts_are_written(axes: Sequence[str]) -> Scope:
    """A scope in which nothing is cast unasked along ``axes``."""
    return changed(lambda s: s._replace(written=(*s.written, *axes)))


def check_written(src: ShType, dst: ShType) -> None:
    """Refuses a cast that a rule inserts along an axis where casts are to be written."""
    for axis in current_settings().written:
        if axis not in src.mesh.shape or src.state(axis) is dst.state(axis) or not src.differentiable:
            continue
        before, after = src.state(axis), dst.state(axis)
        raise ShardingTypeError(
            f"a cast of mesh axis `{axis}` from {before.name.lower()} to {after.name.lower()} must be written here",
            why=f"{src} meets what needs {dst}, and `explicit=True` lets no rule insert it",
            hints=[_WRITTEN[after].format(axis=axis)] if after in _WRITTEN else ["sh.reshard(x, type)"],
        )
