"""Differences of JAX releases, and unpublished parts of JAX. Nothing else imports ``jax._src``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
from jax.experimental.hijax import HiType as HiType
from jax.experimental.hijax import Zero as Zero
from jax.experimental.hijax import aval_method as aval_method
from jax.experimental.hijax import aval_property as aval_property
from jax.experimental.hijax import instantiate_zeros as instantiate_zeros
from jax.experimental.hijax import is_undefined_primal as is_undefined_primal
from jax.experimental.hijax import register_hitype as register_hitype
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from shtypes.context.frames import frames
from shtypes.context.user_line import ARGUMENT_ERRORS

#: The oldest and the newest release that are tested.
RELEASES: Final = ("0.10.2", "0.12")


def private(module: str, name: str) -> Any:
    """A private object that all supported releases of JAX have; an `ImportError` where this release lacks it."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        oldest, newest = RELEASES
        what = f"shtypes works with JAX {oldest} to {newest}, and JAX {jax.__version__} has no `{module}.{name}`"
        raise ImportError(what) from None


#: JAX's classes of errors about shardings.
SHARDING_ERRORS: Final = (
    private("jax._src.named_sharding", "DuplicateSpecError"),
    private("jax._src.core", "ShardingTypeError"),
)
#: The errors of JAX that say that an argument is wrong.
JAX_ERRORS: Final = (*ARGUMENT_ERRORS, *SHARDING_ERRORS)
#: JAX's table of linearization rules.
_linearizations: Final[dict[Any, Any]] = private("jax._src.interpreters.ad", "primitive_linearizations")
#: Whether such a rule returns two kinds of residuals, as from 0.11 on.
_STRUCTURED_RESIDUALS: Final = (
    "structured_residuals" in private("jax._src.interpreters.ad", "LinearizeTrace").__annotations__
)
#: JAX's table of transposition rules that add cotangents to accumulators.
_accumulating_rules: Final[dict[Any, Any]] = private("jax._src.interpreters.ad", "fancy_transposes")
#: The class of linear operands in the backward pass, for such a rule.
Accumulator: Final[Any] = private("jax._src.interpreters.ad", "GradAccum")


class HiPrimitive(Primitive):
    """A primitive on typed values: `jax.experimental.hijax`'s class of this name until 0.11.0, for every release.

    JAX uses ``is_high`` and ``to_lojax`` for lowering; the other rules are in JAX's tables.
    """

    bind = Primitive.bind  # not the patched one

    def __init__(self, name: str) -> None:
        super().__init__(name)
        ad.primitive_jvps[self] = self.jvp
        ad.primitive_transposes[self] = self.transpose
        if type(self).accumulate is not HiPrimitive.accumulate:
            _accumulating_rules[self] = self.accumulate
        if type(self).linearize is not HiPrimitive.linearize:
            _linearizations[self] = self._linearized
        batching.fancy_primitive_batchers[self] = self.batch

    def is_high(self, *avals: Any, **params: Any) -> bool:
        return True

    # the signatures are open, so that each primitive can name its operands

    def abstract_eval(self, *avals: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` has no type rule")

    def to_lojax(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` cannot be lowered")

    def jvp(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` cannot be differentiated")

    def linearize(self, primals: Sequence[Any], nonzero: Sequence[bool], for_vjp: bool, **params: Any) -> Any:
        """The results, which of them have a tangent, and the function from the operands' tangents to the results'.

        Optional: without it JAX traces and splits the jvp, at twice the cost. ``for_vjp``: whether the function's
        equations will only be transposed.
        """
        raise NotImplementedError(f"`{self.name}` cannot be linearized")

    def _linearized(self, is_vjp: bool, nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
        outs, carried, push = self.linearize(primals, nonzero, is_vjp, **params)
        if _STRUCTURED_RESIDUALS:
            return outs, carried, (), None, lambda residuals, structured, *tangents: push(tangents)
        return outs, carried, (), lambda residuals, *tangents: push(tangents)

    def transpose(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` cannot be transposed")

    def accumulate(self, cts: Sequence[Any], *operands: Any, **params: Any) -> None:
        """Adds the cotangents of the linear operands to `Accumulator`s; instead of ``transpose``."""
        raise NotImplementedError(f"`{self.name}` has no rule that accumulates")

    def batch(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` cannot be mapped over")


_pp_rules: Final[dict[Any, Any]] = private("jax._src.core", "pp_eqn_rules")
_pp_eqn: Final[Callable[..., Any]] = private("jax._src.core", "_pp_eqn")


def print_as(primitive: Primitive, name: Callable[[dict[str, Any]], str], printed: Sequence[str] = ()) -> None:
    """Makes jaxprs print a primitive by a name from its parameters, with the ``printed`` ones."""

    def rule(eqn: Any, context: Any, settings: Any) -> Any:
        params = {key: eqn.params[key] for key in printed}
        return _pp_eqn(eqn.replace(primitive=Primitive(name(eqn.params)), params=params), context, settings)

    _pp_rules[primitive] = rule


#: Whether an operation on concrete values would run eagerly.
no_trace_is_running: Final[Callable[[], bool]] = private("jax._src.core", "trace_state_clean")
#: The holder of the current trace.
trace_ctx: Final[Any] = private("jax._src.core", "trace_ctx")
#: A hashable of all settings in JAX's trace-cache keys, with our user context.
trace_context: Final[Callable[[], Any]] = private("jax._src.config", "trace_context")


def is_transposing() -> bool:
    """Whether JAX is in a backward pass here, of a program or of a body."""
    home = "jax._src.interpreters.ad"
    return any("backward_pass" in f.f_code.co_name and f.f_globals.get("__name__") == home for f in frames(1))


#: The effects of a Python callback, so that JAX does not drop it: unordered and ordered.
debug_effects: Final[dict[bool, Any]] = {
    False: private("jax._src.debugging", "debug_effect"),
    True: private("jax._src.debugging", "ordered_debug_effect"),
}


def trace_of(tracer: Any) -> Any:
    """The trace of a tracer, possibly an outer one; None if this JAX hides it."""
    return getattr(tracer, "_trace", None)


class _Naming:
    """A frame's generator of variables, which lives as long as the frame and can hold attributes."""

    def __init__(self, variable: Callable[..., Any]) -> None:
        self._variable = variable

    def __call__(self, *args: Any) -> Any:
        return self._variable(*args)


def trace_notes(trace: Any) -> dict[Any, Any] | None:
    """A dict that lives as long as a trace; None if it cannot be attached."""
    frame: Any = getattr(trace, "frame", None)
    # jaxpr traces and their frames have slots; the frame's generator of variables can be replaced
    holder: Any = trace if frame is None else getattr(frame, "gensym", None)
    notes: dict[Any, Any] | None = None if isinstance(holder, type) else getattr(holder, "_shtypes_notes", None)
    if notes is None:
        if getattr(jax.config, "jax_check_tracer_leaks", False):
            return None  # the leak check would count its references
        notes = {}
        try:
            if isinstance(holder, type):
                holder = frame.gensym = _Naming(holder)
            holder._shtypes_notes = notes
        except AttributeError:
            return None
    return notes
