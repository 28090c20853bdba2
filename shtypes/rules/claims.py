"""Typing of a user's own function of shards: what results are is the user's word, what it means for gradients is not.

The function runs on each device, and so does its transpose. A claim is refused where the gradients could not be what
the cotangent map says, however the function looks inside.
"""

from __future__ import annotations

from collections.abc import Sequence

from shtypes.errors import ShardingTypeError
from shtypes.rules import reasons
from shtypes.rules.typing import NO_CONSTANTS, Typing, rule
from shtypes.types import ShType, State


@rule
def claimed(
    name: str, operands: Sequence[ShType], results: Sequence[ShType], constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """A function of shards with the result types that its user claims.

    Per axis: where results are invariant, so are the operands that have a gradient, or else those that are
    invariant are cast to reduced, so that the gradient which each device finds is one term of theirs. An unreduced
    operand makes every result unreduced.
    """
    flows = [i for i, t in enumerate(operands) if t.differentiable and i not in constants]
    made = [t for t in results if t.differentiable]
    casts = list(operands)
    for axis in operands[0].mesh.axis_names if operands else ():
        for i, t in enumerate(operands):
            if t.state(axis) is State.UNREDUCED:
                _check_unreduced(name, results, axis, reasons.operand_word(i, len(operands)))
        claims = {t.state(axis) for t in made}
        if State.INVARIANT in claims and flows:
            _check_invariant(name, [(reasons.operand_word(i, len(operands)), operands[i]) for i in flows], claims, axis)
            continue
        for i in flows:
            if made and casts[i].state(axis) is State.INVARIANT:
                casts[i] = casts[i].with_axis(axis, State.REDUCED)
    return Typing(tuple(casts), tuple(results))


def _check_unreduced(name: str, results: Sequence[ShType], axis: str, operand: str) -> None:
    """What is made of one term of a sum on each device is one term of a sum."""
    wrong = next((t for t in results if t.state(axis) is not State.UNREDUCED), None)
    if wrong is not None:
        raise ShardingTypeError(
            f"`{name}` cannot make a result that is {reasons.state_word(wrong.state(axis))} on {reasons.on([axis])}",
            why=f"{operand} is unreduced there: each device holds one term of it, and so one term of what a linear "
            "function makes of it",
            axes=[axis],
        )


def _check_invariant(name: str, flows: Sequence[tuple[str, ShType]], claims: set[State], axis: str) -> None:
    """The gradient of what an invariant result is made of is found whole on each device."""
    if claims != {State.INVARIANT}:
        other = next(s for s in State if s in claims and s is not State.INVARIANT)
        raise ShardingTypeError(
            f"`{name}` cannot make invariant and {reasons.state_word(other)} results on {reasons.on([axis])}",
            why="the gradient of an operand would be whole on each device through one result, and one term of it "
            "through the other",
            hints=["claim `R` instead of `I`; a reshard from `R` to `I` is free"],
        )
    reduced = next((word for word, t in flows if t.state(axis) is State.REDUCED), None)
    if reduced is not None:
        raise ShardingTypeError(
            f"`{name}` cannot make an invariant result of a reduced operand on {reasons.on([axis])}",
            why=f"each device would find the whole gradient of {reduced}, which is the sum of what they find",
            hints=["claim `R` instead of `I`; a reshard from `R` to `I` is free"],
            axes=[axis],
        )
