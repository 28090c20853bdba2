"""Rows of keys and random bits."""

from __future__ import annotations

from typing import Any, Final

from shtypes.lifting.registry import equation_row, op
from shtypes.lifting.rows.generic import Bind, batched
from shtypes.ops.labelled import all_whole_tree
from shtypes.ops.whole import function

#: Functions of keys that act on each: how many dims, from the back, of the first operand are one key.
_KEYS: Final = {
    "random_clone": 0,
    "random_fold_in": 0,
    "random_gamma": 0,
    "random_seed": 0,
    "random_split": 0,
    "random_unwrap": 0,
    "random_wrap": 1,
    "threefry2x32": 0,
}


@equation_row(*_KEYS)
def _of_keys(eqn: Any, operands: list[Any]) -> list[Any]:
    return batched(eqn.primitive.name, eqn, operands, _KEYS[eqn.primitive.name])


@equation_row("random_bits")
def _random_bits(eqn: Any, operands: list[Any]) -> list[Any]:
    """Of one key each device makes its own part; of several, all bits of its own keys."""
    (key,) = operands
    if key.type.ndim:
        return batched("random_bits", eqn, operands, 0)
    return [op("random.bits")(key, tuple(eqn.params["shape"]), f"uint{eqn.params['bit_width']}")]


@equation_row("rng_bit_generator")
def _rng_bit_generator(eqn: Any, operands: list[Any]) -> list[Any]:
    """Each device makes all bits: they are no function of their place alone."""
    return list(all_whole_tree("rng_bit_generator", function("rng_bit_generator", Bind(eqn)), operands))
