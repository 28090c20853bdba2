"""The programs that JAX is tracing now, and their equations so far, which JAX does not publish."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import jax
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr

from shtypes._compat import Zero, private, trace_ctx, trace_of
from shtypes._compat.jaxprs import inner_jaxprs, is_literal, jaxpr_of
from shtypes._compat.program_mesh import is_of_program
from shtypes.context.frames import frames
from shtypes.context.user_line import placed
from shtypes.errors import ShardingTypeError, also

_trace: Final[Any] = private("jax._src.interpreters.partial_eval", "trace_to_jaxpr_dynamic")
_wrap: Final[Any] = private("jax._src.linear_util", "wrap_init")
_debug_info: Final[Any] = private("jax._src.api_util", "debug_info")


def trace_typed(f: Callable[..., Any], types: Sequence[Any]) -> Any:
    """The program of a function for operands of JAX's types: as `jax.make_jaxpr` traces it, at a tenth of the cost.

    For functions that are traced once: what `make_jaxpr` spends on arguments and caches is several times what an op
    costs to type.
    """
    run = _wrap(lambda *xs: jax.tree.leaves(f(*xs)), debug_info=_debug_info("jit", f, types, {}))
    jaxpr, _, consts = _trace(run, types)
    return ClosedJaxpr(jaxpr, consts)


class OpenTrace(NamedTuple):
    """A program being traced, and its equations so far."""

    purpose: str  # JAX's purpose: ``"jit"``, ``"scan"``, ``"while_body"``, ``"checkpoint / remat"``, …
    frame: Any  # JAX's holder of its equations

    @property
    def length(self) -> int:
        """The number of equations, including dead ones."""
        return len(self.frame.tracing_eqns)

    def equations(self, start: int = 0) -> list[Any]:
        """The equations from a position on, without dead ones."""
        equations = []
        for entry in self.frame.tracing_eqns[start:]:
            eqn = entry() if isinstance(entry, weakref.ref) else entry
            if eqn is not None:
                equations.append(_Traced(eqn) if hasattr(eqn, "in_tracers") else eqn)
        return equations


class _Traced:
    """An equation of an open trace, with the attributes of a jaxpr's."""

    __slots__ = ("ctx", "effects", "invars", "outvars", "params", "primitive", "source_info")

    def __init__(self, eqn: Any) -> None:
        self.invars = [t.val for t in eqn.in_tracers]
        self.outvars, self.primitive, self.params = eqn.outvars, eqn.primitive, eqn.params
        self.effects, self.source_info, self.ctx = eqn.effects, eqn.source_info, eqn.ctx


def open_traces() -> list[OpenTrace]:
    """The programs being traced, innermost first."""
    traces = []
    trace = trace_ctx.trace
    while trace is not None:
        frame: Any = getattr(trace, "frame", None)
        if hasattr(frame, "tracing_eqns"):
            purpose = getattr(frame.debug_info, "traced_for", "") if frame.debug_info is not None else ""
            traces.append(OpenTrace(str(purpose), frame))
        trace = getattr(trace, "parent_trace", None)
    return traces


def has_ended(tracer: Any) -> bool:
    """Whether a tracer's trace has ended; JAX then drops its equations."""
    trace: Any = trace_of(tracer)
    frame: Any = getattr(trace, "frame", None)
    if frame is None:
        return trace is not None and not trace.is_valid()
    return not frame.tracing_eqns and all(frame is not each.frame for each in open_traces())


def escaped_error(t: Any, *hints: str) -> ShardingTypeError:
    """The error for a traced value that is used after its trace has ended; also of JAX's class for it."""
    kind = also(jax.errors.UnexpectedTracerError)
    hints = ("return it from the function that was traced", *hints)
    return kind(f"a traced value, {t}, left its trace, which has ended", hints=hints)


def refuse_escaped(x: Any) -> None:
    """Refuses a traced value whose trace has ended."""
    if isinstance(x, jax.core.Tracer) and has_ended(x):
        raise _escaped(x)


def refuse_closure(traced: Any) -> None:
    """Refuses a value of a trace that a function closes over, which `jax.jit` has traced outside of all traces."""
    for x in getattr(traced, "_consts", ()):  # the others are constants of its jaxpr
        if isinstance(x, jax.core.Tracer):
            raise _escaped(x)


def _escaped(x: Any) -> ShardingTypeError:
    if not isinstance(x.aval, jax.core.ShapedArray):
        return escaped_error(x.aval)
    t = jax.core.ShapedArray(x.aval.shape, x.aval.dtype)
    return escaped_error(t, "to keep a constant, compute it in jax.ensure_compile_time_eval()")


def refuse_escaped_operands(primitive: Any, operands: Sequence[Any], error: ValueError) -> None:
    """Refuses operands of a primitive that JAX binds outside of the plain program that they are of, if it says so."""
    for x in operands if "should match the aval mesh" in str(error) else ():
        if isinstance(x, jax.core.Tracer) and is_of_program(x.aval):
            raise placed(_escaped(x), str(primitive)) from None


def arguments_of(x: Any) -> list[Any] | None:
    """The arguments of enclosing traces that a value depends on; None if JAX hides its operands.

    Stopped gradients and values without tangents end a dependence.
    """
    arguments, rest, seen = [], [x], set[int]()
    while rest:
        v = rest.pop()
        if not isinstance(v, jax.core.Tracer) or id(v) in seen:
            continue
        seen.add(id(v))
        if hasattr(v, "primal"):  # a derivative's tracer
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
    """The operands of the equation that computes a tracer; None for an argument."""
    if v.parent is None:
        constants = getattr(getattr(v._trace, "frame", None), "constvar_to_val", {})
        return [] if is_literal(v.val) else [constants[v.val]] if v.val in constants else None
    return [] if getattr(fn_of(v), "stops_gradient", False) else list(v.parent.in_tracers)


def fn_of(v: Any) -> Any:
    """The shard function of the typed operation that computes a tracer; None if there is none."""
    parent: Any = getattr(v, "parent", None)
    return None if parent is None else getattr(parent.params.get("operation"), "fn", None)


def open_scans() -> list[int]:
    """The lengths of the scans whose bodies are being traced, innermost first, from Python's stack."""
    lengths = []
    for frame in frames(1):
        if frame.f_code.co_name == "scan" and frame.f_globals.get("__name__") == "jax._src.lax.control_flow.loops":
            length = frame.f_locals.get("length")
            if isinstance(length, int):
                lengths.append(length)
    return lengths


class _Operand:
    """An operand of a call, with only its type."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval


def program_of_call() -> tuple[Any, list[Any] | None]:
    """The call that JAX is about to run on typed values, and its equation; None for the equation if unavailable.

    Read from Python's stack: JAX requests the data of each operand from within the call.
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
