"""The programs that JAX is tracing at this moment, of which equations exist so far: a part of `_compat`.

JAX publishes none of this.
"""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
from jax.extend import source_info_util

from shtypes._compat import Zero, trace_ctx
from shtypes._compat.jaxprs import inner_jaxprs, is_literal, jaxpr_of
from shtypes.context.frames import frames


class OpenTrace(NamedTuple):
    """A program that is being traced, and of which equations exist so far."""

    purpose: str  # what JAX traces it for: ``"jit"``, ``"scan"``, ``"while_body"``, ``"checkpoint / remat"``, …
    frame: Any  # where JAX keeps its equations

    @property
    def length(self) -> int:
        """The number of equations, including those whose results are garbage."""
        return len(self.frame.tracing_eqns)

    def equations(self, start: int = 0) -> list[Any]:
        """The equations from a position on, without those whose results are garbage."""
        equations = []
        for entry in self.frame.tracing_eqns[start:]:
            eqn = entry() if isinstance(entry, weakref.ref) else entry
            if eqn is not None:
                equations.append(_Traced(eqn) if hasattr(eqn, "in_tracers") else eqn)
        return equations


class _Traced:
    """An equation as JAX stores it while it traces, in the form that it has afterwards."""

    __slots__ = ("ctx", "effects", "invars", "outvars", "params", "primitive", "source_info")

    def __init__(self, eqn: Any) -> None:
        self.invars = [t.val for t in eqn.in_tracers]
        self.outvars, self.primitive, self.params = eqn.outvars, eqn.primitive, eqn.params
        self.effects, self.source_info, self.ctx = eqn.effects, eqn.source_info, eqn.ctx


def open_traces() -> list[OpenTrace]:
    """The programs that are being traced here, innermost first."""
    traces = []
    trace = trace_ctx.trace
    while trace is not None:
        frame: Any = getattr(trace, "frame", None)
        if hasattr(frame, "tracing_eqns"):
            purpose = getattr(frame.debug_info, "traced_for", "") if frame.debug_info is not None else ""
            traces.append(OpenTrace(str(purpose), frame))
        trace = getattr(trace, "parent_trace", None)
    return traces


def arguments_of(x: Any) -> list[Any] | None:
    """The arguments of the traces around that a value depends on; None where this JAX hides what it is computed from.

    What stops gradients ends a dependence, and so does what has no tangent.
    """
    arguments, rest, seen = [], [x], set[int]()
    while rest:
        v = rest.pop()
        if not isinstance(v, jax.core.Tracer) or id(v) in seen:
            continue
        seen.add(id(v))
        if hasattr(v, "primal"):  # of a derivative
            if not isinstance(v.tangent, Zero):
                arguments.append(v)
                continue
            rest.append(v.primal)
        elif hasattr(v, "batch_dim"):
            rest.append(v.val)
        elif hasattr(v, "parent") and hasattr(v, "val"):
            operands = _operands_of(v)
            arguments += [v] if operands is None else []
            rest += operands or []
        else:
            return None
    return arguments


def _operands_of(v: Any) -> list[Any] | None:
    """The operands of the equation that computes a tracer; None if it is an argument."""
    if v.parent is None:
        constants = getattr(getattr(v._trace, "frame", None), "constvar_to_val", {})
        return [] if is_literal(v.val) else [constants[v.val]] if v.val in constants else None
    stops = getattr(getattr(v.parent.params.get("operation"), "fn", None), "stops_gradient", False)
    return [] if stops else list(v.parent.in_tracers)


def open_scans() -> list[int]:
    """The lengths of the scans whose bodies are being traced here, innermost first: those on Python's stack."""
    lengths = []
    for frame in frames(1):
        if frame.f_code.co_name == "scan" and frame.f_globals.get("__name__") == "jax._src.lax.control_flow.loops":
            length = frame.f_locals.get("length")
            if isinstance(length, int):
                lengths.append(length)
    return lengths


class _Operand:
    """An operand of a call, of which only the type is visible."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval


def program_of_call() -> tuple[Any, list[Any] | None]:
    """The call that JAX is about to run on typed values, and it as an equation; None where that cannot be seen.

    Read from Python's stack: JAX asks for the data of each operand from within it.
    """
    for frame in frames(1):
        if frame.f_code.co_name == "bind_with_trace" and frame.f_globals.get("__name__") == "jax._src.core":
            local_vars = frame.f_locals
            if {"self", "params", "avals"} <= set(local_vars):
                eqn = SimpleNamespace(
                    primitive=local_vars["self"],
                    params=local_vars["params"],
                    invars=[_Operand(aval) for aval in local_vars["avals"]],
                    effects=(),
                    source_info=source_info_util.current(),
                )
                counts = [len(jaxpr_of(body).outvars) for body, _ in inner_jaxprs(eqn)]
                eqn.outvars = [_Operand(None) for _ in range(max(counts, default=0))]
                return frame, [eqn]
        if frame.f_globals.get("__name__", "").startswith("jax._src.stages"):
            return frame, None
    return None, None
