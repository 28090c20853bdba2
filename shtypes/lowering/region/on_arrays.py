"""One equation on global arrays, between regions: typed values are their carriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shtypes._compat import HiPrimitive, bound, equation_context
from shtypes.array import Array, wrap
from shtypes.lowering.region.planning import is_typed


def on_arrays(eqn: Any, xs: Sequence[Any]) -> list[Any]:
    """An equation without bodies on carriers: one of ours is lowered on its own."""
    with equation_context(eqn):
        if not isinstance(eqn.primitive, HiPrimitive):
            return bound(eqn, xs)
        values = [wrap(v.aval, x) if is_typed(v) else x for v, x in zip(eqn.invars, xs, strict=True)]
        outs = eqn.primitive.to_lojax(*values, **eqn.params)
        outs = outs if eqn.primitive.multiple_results else [outs]
        return [out.data if type(out) is Array else out for out in outs]
