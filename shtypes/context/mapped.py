"""Which mesh axes `vmap` and `shard_map` map over here. Pure.

Along those of `vmap` each device is at steps of its own. A gradient that is taken inside of the mapped function is that
of one step. The cotangent map speaks of whole programs: it would have a replicated value's gradient summed over the
devices, which are other steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shtypes.context.scope import Scope, changed
from shtypes.context.settings import Settings, current_settings
from shtypes.context.user_line import placed
from shtypes.errors import ShardingTypeError


def mapped_axes() -> tuple[str, ...]:
    """The axes that shard the dims that are mapped over, around the code that runs."""
    return current_settings().mapped


def mapped_over(axes: Sequence[str]) -> Scope:
    """The body of a function that is mapped over a dim sharded over ``axes``."""
    return changed(lambda s: s._replace(mapped=(*s.mapped, *axes)))


def local_axes() -> tuple[tuple[str, int], ...]:
    """The mesh axes of local mode, and their sizes: those that the `shard_map`s around the code map."""
    return tuple([(axis, n) for axis, n, is_mapped in current_settings().local if is_mapped])


def in_local_mode(axes: Sequence[str], sizes: Mapping[str, int]) -> Scope:
    """The body of a function that is mapped over some of the axes of a mesh, whose sizes are given in its order."""

    def mapped(s: Settings) -> Settings:
        around = {axis for axis, _, is_mapped in s.local if is_mapped}
        return s._replace(local=tuple([(a, n, a in axes or a in around) for a, n in sizes.items()]))

    return changed(mapped)


def check_not_mapped(axes: Sequence[str]) -> None:
    """Refuses to sum a gradient over the devices where they are at different steps."""
    axis = next((a for a in axes if a in mapped_axes()), None)
    if axis is not None:
        error = ShardingTypeError(
            f"a gradient inside `vmap` would be summed over mesh axis `{axis}`, over which the mapped dim is sharded",
            why="each device is at steps of its own, and the gradient is that of one step",
            hints=[
                "sh.grad and sh.vjp, of functions that take the value as an argument, give the gradient of each step",
                f'sh.lax.pvary(x, "{axis}") before it is differentiated',
            ],
        )
        raise placed(error, "vmap")
