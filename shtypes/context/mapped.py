"""Which mesh axes `vmap` maps over here: along them each device is at steps of its own. Pure.

A gradient that is taken inside of the mapped function is that of one step. The cotangent map speaks of whole programs:
it would have a replicated value's gradient summed over the devices, which are other steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from shtypes.context.ambient import current_ambient
from shtypes.context.scope import Scope, changed
from shtypes.context.user_line import placed
from shtypes.errors import ShardingTypeError


def mapped_axes() -> tuple[str, ...]:
    """The axes that shard the dims that are mapped over, around the code that runs."""
    return current_ambient().mapped


def mapped_over(axes: Sequence[str]) -> Scope:
    """The body of a function that is mapped over a dim sharded over ``axes``."""
    return changed(lambda now: now._replace(mapped=(*now.mapped, *axes)))


def check_not_mapped(axes: Sequence[str]) -> None:
    """Refuses to sum a gradient over the devices where they are at different steps.

    Raises:
        ShardingTypeError: one of the axes is mapped over.
    """
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
