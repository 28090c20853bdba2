"""Maxima and minima along dims, and where they are, as gradients of `jax.numpy.max` ask.

JAX compares the operand with its maximum. XLA may compute the operand again for that, and round it differently: then
no element is equal, and the gradient is lost. So the maximum and the comparison are one call (`grouping`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from shtypes._compat.jaxprs import is_literal, jaxpr_of, variables
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.undo_ravel import keeps_order
from shtypes.lifting.ways.choice import CALLS, way
from shtypes.lifting.ways.programs import is_one_of, uses_of
from shtypes.ops.arithmetic import astype
from shtypes.ops.sharded_reductions import winners
from shtypes.ops.shards import of_device, type_of

#: What gives a maximum its reduced dims again.
_SHAPES: Final = ("broadcast_in_dim", "reshape")


def extremes(jaxpr: Any) -> Iterator[list[int]]:
    """The equation numbers of maxima that their operand is compared with, each with what is between."""
    uses = uses_of(jaxpr)
    for i, eqn in enumerate(jaxpr.eqns):
        x = eqn.invars[0] if eqn.primitive.name in ("reduce_max", "reduce_min") else None
        if x is None or is_literal(x) or not jnp.issubdtype(x.aval.dtype, np.floating):
            continue
        kept = tuple(1 if d in eqn.params["axes"] else n for d, n in enumerate(x.aval.shape))
        shapes = uses.read_by(eqn.outvars[0], *_SHAPES)
        shaped = [(j, e) for j, e in shapes if e.outvars[0].aval.shape == kept and keeps_order(e)]
        compared = [
            (j, k) for j, e in shaped for k, eq in uses.read_by(e.outvars[0], "eq") if x in variables(eq.invars)
        ]
        if compared:
            yield [i, *sorted({n for pair in compared for n in pair})]


_without = of_device("squeeze")(jnp.squeeze)


@way(*CALLS, only=is_one_of(extremes))
def with_winners(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends an all-reduce of one number for each row, and tells each device its elements that are equal to it."""
    (x,), body = operands, jaxpr_of(eqn.params["jaxpr"])
    first, *others = body.eqns
    if not is_typed(x) or not type_of(x).size:
        return None
    dims = tuple(map(int, first.params["axes"]))
    y, won = winners(first.primitive.name.removeprefix("reduce_"), dims, x)
    made = {e.outvars[0]: astype(won, "bool") if e.primitive.name == "eq" else y for e in others}
    made[first.outvars[0]] = _without(y, dims)
    return [made[v] for v in body.outvars]
