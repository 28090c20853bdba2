"""Products of raveled arrays, as products over the dims that they had: a dim sharded behind another does not ravel."""

from __future__ import annotations

import functools
import math
from typing import Any

from shtypes._compat.jaxprs import is_literal

_DOT = (((0,), (0,)), ((), ()))


@functools.lru_cache(maxsize=256)
def unraveled(jaxpr: Any) -> Any:
    """A program in which ``dot(ravel(a), ravel(b))`` of arrays of one shape contracts all their dims.

    `jnp.vdot` is written so, and with it `jax.scipy.sparse.linalg.cg`, optax's line searches, L-BFGS. The ravels that
    nothing else uses are left out.
    """
    of_ravel: dict[Any, Any] = {}
    made: dict[int, Any] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name == "reshape" and _is_ravel(eqn):
            of_ravel[eqn.outvars[0]] = eqn.invars[0]
        elif eqn.primitive.name == "dot_general" and not any(map(is_literal, eqn.invars)):
            before = [of_ravel[x] for x in eqn.invars if x in of_ravel]
            if _lists(eqn.params["dimension_numbers"]) == _DOT and len(before) == 2 and _alike(*before):
                dims = tuple(range(before[0].aval.ndim))
                numbers = ((dims, dims), ((), ()))
                made[i] = eqn.replace(invars=before, params={**eqn.params, "dimension_numbers": numbers})
    if not made:
        return jaxpr
    eqns = [made.get(i, eqn) for i, eqn in enumerate(jaxpr.eqns)]
    used = {x for atoms in (*(eqn.invars for eqn in eqns), jaxpr.outvars) for x in atoms if not is_literal(x)}
    idle = of_ravel.keys() - used
    return jaxpr.replace(eqns=[eqn for eqn in eqns if idle.isdisjoint(eqn.outvars)])


def _is_ravel(eqn: Any) -> bool:
    x = eqn.invars[0]
    whole = not is_literal(x) and x.aval.ndim > 1 and tuple(eqn.params["new_sizes"]) == (math.prod(x.aval.shape),)
    return whole and eqn.params.get("dimensions") is None and eqn.params.get("sharding") is None


def _alike(a: Any, b: Any) -> bool:
    return bool(a.aval.shape == b.aval.shape)


def _lists(numbers: Any) -> Any:
    return tuple(tuple(tuple(map(int, dims)) for dims in pair) for pair in numbers)
