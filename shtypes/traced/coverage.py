"""Which equations may communicate where no type shows it."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.sharding import AxisType

from shtypes._compat import HiPrimitive
from shtypes._compat.jaxprs import UnknownEquationError, control
from shtypes.core.callbacks import Callback
from shtypes.core.device_put import EnsureMapped, FromJax, Raise, ToJax, from_concrete_p
from shtypes.core.jax_type import HiShType
from shtypes.core.operation import Operation, applied_by
from shtypes.core.physical import physical_spec
from shtypes.core.region_plan import HANDS_ON, PLACED, same_spec, spec_of


def control_of(eqn: Any) -> Any:
    """The control flow of an equation (`Scan`, `While`, `Cond`, `ClosedCall`), or None."""
    try:
        return control(eqn)
    except UnknownEquationError:
        return None


def why_not_covered(eqn: Any) -> str:
    """Why an equation's communication is unknown from its types; empty if it is known.

    Our operations communicate only by reshards. JAX's do not, if no plain array in them is sharded or may be.
    """
    p = applied_by(eqn)
    if isinstance(p, FromJax):
        return _why_from_jax_moves(eqn)
    if isinstance(p, (Operation, ToJax, Raise, EnsureMapped, Callback)):
        return ""
    if isinstance(p, HiPrimitive) and control_of(eqn) is None:
        return "it is not known to the ledger"
    if p.name == "debug_callback" or (p.name == "device_put" and not any(eqn.params.get("devices", (None,)))):
        # the operands of a callback, or of a placement, do not move if replicated
        return next(filter(None, (_placed_by_jax(v.aval) for v in eqn.invars)), "")
    if p.name in PLACED:
        return "it says itself where it runs"
    placements = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    if any(isinstance(s, jax.sharding.Sharding) for s in placements):
        return "its in_shardings or out_shardings place plain arrays"
    if control_of(eqn) is not None or p.name in HANDS_ON:
        return ""  # bodies are analysed; passed-on values do not move
    if p.name in ("broadcast_in_dim", "iota") and not any(v.aval.shape for v in eqn.invars):
        return ""  # each device computes its shard
    return next(filter(None, (_placed_by_jax(v.aval) for v in (*eqn.invars, *eqn.outvars))), "")


def _why_from_jax_moves(eqn: Any) -> str:
    """Why typing a plain array may move it: if it is sharded differently from its type."""
    aval, t = eqn.invars[0].aval, eqn.params["ty"]
    spec, lies_somewhere = spec_of(aval), _is_auto(aval) and math.prod(aval.shape) > 1
    if eqn.primitive is from_concrete_p or (
        not lies_somewhere and (same_spec(spec, physical_spec(t)) or not any(spec))
    ):
        return ""
    return f"a plain array, {aval}, may lie in another way than its type {t} says"


def _placed_by_jax(aval: Any) -> str:
    if type(aval) is HiShType:
        return f"it is not known to take typed values, here {aval}"
    sharding = getattr(aval, "sharding", None)
    if sharding is None:
        return ""
    spec = sharding.spec
    if any(spec) or getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
        return f"JAX places it: it computes on a plain array that is sharded, {aval}"
    if _is_auto(aval) and math.prod(aval.shape) > 1:
        return f"JAX places it: nothing says where the plain array {aval} lies"
    return ""


def _is_auto(aval: Any) -> bool:
    return any(kind == AxisType.Auto for kind in aval.sharding.mesh.axis_types)
