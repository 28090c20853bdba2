"""Values that the program has widened to sum them, and the sums: a pending one is narrowed term by term."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax.numpy as jnp

from shtypes.dispatch.apply import is_number, is_typed
from shtypes.evaluation import iota_analysis
from shtypes.evaluation.value_info import WIDENED, known, note, number

#: What keeps the terms of a pending sum in the wide dtype: sums of them, and elements that are moved.
_KEPT: Final = frozenset(("reduce_sum", "broadcast_in_dim", "reshape", "squeeze", "transpose"))
#: What scales them, by a number.
_SCALED: Final = frozenset(("div", "mul"))


def follow(eqn: Any, operands: Sequence[Any], outs: Sequence[Any]) -> None:
    """Notes of an equation's result what follows from its operands: that it was widened, that it counts along a dim."""
    name = eqn.primitive.name
    if name == "convert_element_type":
        _widening(eqn.invars[0].aval.dtype, outs[0])
    elif name in _KEPT or (name in _SCALED and any(is_number(number(x)) for x in operands)):
        narrow = next((known(x, WIDENED) for x in operands if is_typed(x)), None)
        if narrow is not None:
            note(outs[0], WIDENED, narrow)
    iota_analysis.follow(eqn, operands, outs)


def _widening(src: Any, out: Any) -> None:
    floats = is_typed(out) and jnp.issubdtype(src, jnp.floating) and jnp.issubdtype(out.type.dtype, jnp.floating)
    if floats and src.itemsize < out.type.dtype.itemsize:
        note(out, WIDENED, src)
