"""Checks the result types that a user claims for a function of shards.

The function and its transpose run on each device. As in `jax.shard_map`, a result may vary on the mesh axes on which
an operand that it depends on varies. Claims that contradict this or the types of gradients are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shtypes.errors import ShardingTypeError
from shtypes.resharding.transport import reshard_fix
from shtypes.rules import messages
from shtypes.rules.price_fixes import called_names
from shtypes.rules.typing import NO_CONSTANTS, Typing, rule
from shtypes.types import REPLICATED, ShType, State
from shtypes.types.policy import replicated

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State


class Dependence(NamedTuple):
    """The dependences of a value in a function of shards."""

    operands: frozenset[int] = frozenset()
    impure: bool = False  # whether it may differ between devices for equal operands


#: From the masks of differentiated operands and results to the dependences of the gradients, on operands and (with
#: indices after those) cotangents. None if the function has no gradient.
Gradients = Callable[[tuple[bool, ...], tuple[bool, ...]], Sequence[Dependence] | None]


@rule
def check_claims(
    name: str,
    operands: Sequence[ShType],
    results: Sequence[ShType],
    sources: Sequence[Dependence],
    gradients: Gradients,
    constants: frozenset[int] = NO_CONSTANTS,
) -> Typing:
    """Types a function of shards with the result types that its user claims.

    On each axis a varying result must not be claimed replicated, and a replicated one not unreduced; results of an
    unreduced operand are unreduced. An operand with a gradient is invariant if the results that depend on it are. Else
    an invariant one is cast to reduced, so that each device's gradient is one term of a sum.
    """
    flows = [i for i, t in enumerate(operands) if t.differentiable and i not in constants]
    casts = list(operands)
    for axis in operands[0].mesh.axis_names if operands else ():
        for t, source in zip(results, sources, strict=True):
            _check_kept(name, operands, t, source, axis)
        for i in flows:
            into = [t for t, s in zip(results, sources, strict=True) if t.differentiable and i in s.operands]
            claims = {t.state(axis) for t in into}
            if INVARIANT in claims:
                _check_invariant(name, messages.operand_word(i, len(operands)), operands[i], claims, axis)
            elif operands[i].state(axis) is INVARIANT and any(t.differentiable for t in results):
                casts[i] = casts[i].with_axis(axis, REDUCED)
    _check_gradients(name, casts, flows, results, gradients)
    return Typing(tuple(casts), tuple(results))


def _check_kept(name: str, operands: Sequence[ShType], result: ShType, source: Dependence, axis: str) -> None:
    """Checks that the state of a result on an axis agrees with its operands."""
    claim = result.state(axis)
    states = {i: operands[i].state(axis) for i in sorted(source.operands)}
    unreduced = next((i for i, s in states.items() if s is UNREDUCED), None)
    if unreduced is not None and claim is not UNREDUCED:
        raise ShardingTypeError(
            f"`{name}` cannot make a result that is {messages.state_word(claim)} on {messages.on([axis])}",
            why=f"{messages.operand_word(unreduced, len(operands))} is unreduced there: each device holds one term of "
            "it, and so one term of what a linear function makes of it",
            axes=[axis],
        )
    varying = next((i for i, s in states.items() if s not in REPLICATED), None)
    if claim in REPLICATED and (source.impure or varying is not None):
        raise _varies(name, operands, result, varying, axis)
    if claim is UNREDUCED and states and varying is None and not source.impure:
        raise _counted_often(name, operands, result, min(states), axis)


def _varies(name: str, operands: Sequence[ShType], result: ShType, varying: int | None, axis: str) -> ShardingTypeError:
    """A result that is claimed to be replicated may vary."""
    if varying is None:
        why = "it comes from a call with side effects, which each device makes for itself"
    else:
        t, word = operands[varying], messages.operand_word(varying, len(operands))
        has = "each device holds its own part" if t.state(axis) is SHARDED else "each device has its own value"
        why = f"it is computed from {word}, {t}, of which {has}"
    return ShardingTypeError(
        f"`{name}` makes a result that may differ along {messages.on([axis])}, and it is claimed to be "
        f"{messages.state_word(result.state(axis))} there",
        why=why,
        hints=[
            *([f"`_@{axis}` at a dim of `out`, if the devices' results are the parts of it"] if result.ndim else []),
            f'`{{U:{axis}}}` in `out`, if they are the terms of a sum, and sh.all_reduce(y, "{axis}") to add them',
            f'sh.shard_map, and a collective in the function: sh.lax.psum(y, "{axis}")',
        ],
        axes=[axis],
    )


def _counted_often(name: str, operands: Sequence[ShType], result: ShType, operand: int, axis: str) -> ShardingTypeError:
    """A replicated result is claimed to be unreduced."""
    n = result.mesh.shape[axis]
    times = f"{n} times the value" if n > 1 else "the value once for each device"
    called = called_names(operands)[operand]
    return ShardingTypeError(
        f"`{name}` makes one value, the same on all devices of mesh axis `{axis}`, and it is claimed to be unreduced",
        why=f"all that it is computed from is the same there, so that the sum of the terms has {times}",
        hints=[
            f'no `{axis}` in the braces of `out`: it is that value, and sh.reshard(y, {axis}="U") keeps it',
            f'sh.lax.pvary({called}, "{axis}") as the operand, if each device\'s result is to be counted',
        ],
        axes=[axis],
    )


def _check_invariant(name: str, word: str, t: ShType, claims: set[State], axis: str) -> None:
    """Checks an operand of an invariant result, through which each device computes its full gradient."""
    if claims != {INVARIANT}:
        other = next(s for s in State if s in claims and s is not INVARIANT)
        raise ShardingTypeError(
            f"`{name}` cannot make invariant and {messages.state_word(other)} results on {messages.on([axis])}",
            why=f"the gradient of {word} would be whole on each device through one result, and one term of it "
            "through the other",
            hints=["claim `R` instead of `I`; a reshard from `R` to `I` is free"],
        )
    if t.state(axis) is REDUCED:
        raise ShardingTypeError(
            f"`{name}` cannot make an invariant result of a reduced operand on {messages.on([axis])}",
            why=f"each device would find the whole gradient of {word}, which is the sum of what they find",
            hints=["claim `R` instead of `I`; a reshard from `R` to `I` is free"],
            axes=[axis],
        )


def _check_gradients(
    name: str, operands: Sequence[ShType], flows: Sequence[int], results: Sequence[ShType], gradients: Gradients
) -> None:
    """Checks that gradients with replicated types do not vary."""
    cts = [t.cotangent() for t in results if t.differentiable]
    inputs = [*operands, *cts]
    axes = [a for a in operands[0].mesh.axis_names if any(t.state(a) not in REPLICATED for t in inputs)] if cts else []
    single = [(a, k, i) for a in axes for k, i in enumerate(flows) if operands[i].state(a) in (UNREDUCED, INVARIANT)]
    if not single:
        return
    active = tuple(i in flows for i in range(len(operands)))
    sources = gradients(active, tuple(t.differentiable for t in results))
    if sources is None:
        return
    for axis, k, i in single:
        varying = next((j for j in sorted(sources[k].operands) if inputs[j].state(axis) not in REPLICATED), None)
        if varying is not None or sources[k].impure:
            raise _gradient_varies(name, operands, inputs, i, varying, axis)


def _gradient_varies(
    name: str, operands: Sequence[ShType], inputs: Sequence[ShType], i: int, varying: int | None, axis: str
) -> ShardingTypeError:
    """The gradient of an operand has a replicated type and may vary."""
    t, word = operands[i], messages.operand_word(i, len(operands))
    if varying is None:
        source = "a call with side effects"
    elif varying == i:
        source = f"{word} itself: the function is not linear in it"
    elif varying < len(operands):
        source = f"{messages.operand_word(varying, len(operands))}, {inputs[varying]}"
    else:
        source = f"a cotangent, {inputs[varying]}"
    pending = t.state(axis) is UNREDUCED
    return ShardingTypeError(
        f"the gradient of {word} of `{name}` may differ along {messages.on([axis])}",
        why=f"it has the type {t.cotangent()}, one value there, and is computed from {source}",
        fixes=[reshard_fix(t, t.with_axis(axis, replicated()), called_names(operands)[i])] if pending else [],
        axes=[axis],
    )
