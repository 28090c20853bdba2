"""Small all-reduces that can wait for one another: one launch for each group of axes and each dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shtypes._compat.jaxprs import is_literal
from shtypes.core.operation import applied_by, direction_of
from shtypes.primitives.joint import joint_p
from shtypes.primitives.merged import plain_reshard
from shtypes.primitives.reshard import Reshard
from shtypes.primitives.together import Reshards, group_of
from shtypes.resharding import Kind, plan
from shtypes.traced.merging.body import Made

#: Values of up to so many bytes on each device are sent together. Larger ones take longer to put side by side than a
#: launch takes; XLA may still combine these, without copying them.
SMALL: Final = 1 << 18


def grouped(eqns: Sequence[Made]) -> list[Made]:
    """The equations with small all-reduces together: each waits for others as long as nothing takes its result."""
    waiting: dict[Any, list[int]] = {}
    keys: dict[Any, Any] = {}  # by result, what its group has in common, while that waits
    groups: list[list[int]] = []
    for i, made in enumerate(eqns):
        taken = {keys[v] for v in made.eqn.invars if not is_literal(v) and v in keys}
        for key in taken:
            group = waiting.pop(key)
            groups.append(group)
            for member in group:
                del keys[eqns[member].eqn.outvars[0]]
        own = _key(made)
        if own is not None:
            waiting.setdefault(own, []).append(i)
            keys[made.eqn.outvars[0]] = own
    groups += waiting.values()
    found: list[Made | None] = list(eqns)
    for group in groups:
        if len(group) > 1:
            for i in group[:-1]:
                found[i] = None
            found[group[-1]] = _together([eqns[i] for i in group])
    return [made for made in found if made is not None]


def _key(made: Made) -> Any:
    """What a small all-reduce has in common with those that it may go with; None for anything else."""
    op = applied_by(made.eqn)
    if not isinstance(op, Reshard) or not plain_reshard(op) or op.src.local_bytes > SMALL:
        return None
    steps = plan(op.src, op.dst)
    if len(steps.steps) != 1 or not steps.plain or steps.steps[0].kind is not Kind.ALL_REDUCE or not steps.launches:
        return None
    return group_of(steps.steps[0]), direction_of(str(made.eqn.source_info.name_stack))


def _together(members: Sequence[Made]) -> Made:
    """One equation for several."""
    last = members[-1]
    moves = [applied_by(made.eqn) for made in members]
    inserted = all(move.inserted for move in moves)
    sent = Reshards(Kind.ALL_REDUCE.value, tuple(m.src for m in moves), tuple(m.dst for m in moves), inserted)
    eqn = last.eqn.replace(
        primitive=joint_p,
        invars=[made.eqn.invars[0] for made in members],
        outvars=[made.eqn.outvars[0] for made in members],
        params={**last.eqn.params, "operation": sent},
    )
    return Made(eqn, last.at, tuple(o for made in members for o in made.origins))
