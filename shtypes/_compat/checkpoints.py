"""What JAX's `checkpoint` knows of primitives: that of names, and those whose bodies its policies are asked about."""

from __future__ import annotations

from typing import Any, Final

from shtypes._compat import private

#: The primitive of `jax.ad_checkpoint.checkpoint_name`.
name_p: Final[Any] = private("jax._src.ad_checkpoint", "name_p")
_rules: Final[dict[Any, Any]] = private("jax._src.interpreters.partial_eval", "partial_eval_jaxpr_custom_rules") or {}
_Offloadable: Final[Any] = private("jax._src.interpreters.partial_eval", "Offloadable")
_Saveable: Final[Any] = private("jax._src.interpreters.partial_eval", "SaveableType")


def is_asked_about(eqn: Any) -> bool:
    """Whether a policy is asked about an equation; else it is about those in its bodies, if it has any."""
    return eqn.primitive not in _rules


def asks_inside(eqn: Any) -> bool:
    """Whether a policy is asked about the equations in the bodies of an equation."""
    return eqn.primitive in _rules and eqn.primitive.name != "while"


def offloads(decision: Any) -> bool:
    """Whether a policy has a value moved to another memory."""
    return _Offloadable is not None and isinstance(decision, _Offloadable)


def saves(decision: Any) -> bool:
    """Whether a policy has a value kept."""
    return decision is True or (_Saveable is not None and isinstance(decision, _Saveable))
