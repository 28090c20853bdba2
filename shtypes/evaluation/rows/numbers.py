"""Rows of keys and random bits."""

from __future__ import annotations

from typing import Final

from shtypes.evaluation.rows.families import all_whole, batched, ints
from shtypes.evaluation.rows.generic import Call, Row, Types, rows
from shtypes.rules import Typing
from shtypes.rules.random import sample
from shtypes.types import Dim, ShType, State
from shtypes.types.policy import replicated

#: Functions of keys that act on each: how many dims, from the back, of the first operand are one key.
_KEYS: Final = {
    0: "random_clone random_fold_in random_gamma random_seed random_split random_unwrap threefry2x32",
    1: "random_wrap",
}
for _core, _names in _KEYS.items():
    rows(_names, lambda name, core=_core: Row(name, batched(name, core)))  # type: ignore[misc]  # bound now


def _bits(call: Call, types: Types) -> Typing:
    """Of one key all bits, on each device; of several, those of its own keys."""
    (key,) = types
    if key.ndim:
        return batched("random_bits", 0)(call, types)
    states = {a: State.VARYING if key.state(a) is State.VARYING else replicated() for a in key.mesh.axis_names}
    wanted = ShType(key.mesh, call.dtypes[0], [Dim(n) for n in ints(call.params["shape"])], states)
    return sample("random_bits", key, wanted)


rows("random_bits", lambda name: Row(name, _bits))
# Bits that are no function of their place alone: each device makes all.
rows("rng_bit_generator", lambda name: Row(name, all_whole(name)))
