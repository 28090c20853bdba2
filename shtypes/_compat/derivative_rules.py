"""The derivative rules that equations of plain programs carry, as programs; a part of `_compat`."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.errors import UnexpectedTracerError
from jax.extend.core import Var
from jax.interpreters import ad, batching, mlir

from shtypes._compat import private, trace_ctx, trace_of
from shtypes._compat.jaxprs import captured, inner_jaxprs, is_literal, jaxpr_of
from shtypes._compat.local_axes import as_in_program
from shtypes._compat.plain_programs import (
    PlainPrimitive,
    bind_plain,
    needed,
    trace_plain,
    tracing_plain,
    without_outer_lines,
)
from shtypes._compat.typed import type_of
from shtypes.context.user_line import line_of
from shtypes.errors import ShardingTypeError


class JvpRule(NamedTuple):
    """The program of the rule of a `jax.custom_jvp`: from primals and nonzero tangents to the same of the results."""

    jaxpr: Any
    consts: Sequence[Any]
    out_zeros: Sequence[bool]  # which results have no tangent


def custom_jvp_rule(eqn: Any, in_zeros: Sequence[bool]) -> JvpRule:
    """The rule of a `custom_jvp_call`, which JAX traces once for each set of operands without a tangent."""
    with eqn.ctx.manager, tracing_plain(), as_in_program(), without_outer_lines():
        return JvpRule(*eqn.params["jvp_jaxpr_fun"].call_wrapped(*in_zeros))


def closes_over(name: str) -> ShardingTypeError:
    """The error for a rule that closes over a tracer whose trace has ended."""
    return ShardingTypeError(
        f"a derivative rule of `{name}` closes over a value of the lifted program",
        why="the program is traced before it is differentiated, as under `jax.jit`; its values are gone by then",
        hints=["pass the value as an argument of the function that has the rule", "sh.lift(jax.grad(f))"],
    )


@contextlib.contextmanager
def applying_rule(name: str) -> Iterator[None]:
    """A scope around a rule that JAX has for an equation; a missing rule is an error in the one message shape."""
    try:
        yield
    except UnexpectedTracerError:
        raise closes_over(name) from None
    except NotImplementedError as error:
        if line_of(error.__traceback__):
            raise
        raise ShardingTypeError(f"JAX has no such rule for `{name}`", why=str(error).strip()) from None


def check_closed_over(eqn: Any, perturbed: Sequence[bool]) -> None:
    """Refuses to differentiate with respect to what the function of a custom derivative closes over."""
    if any(perturbed[: eqn.params.get("num_consts", 0)]):
        raise ShardingTypeError(
            f"`{name_of(eqn)}` closes over a value that is differentiated",
            why="the rule of a custom derivative speaks of the arguments of its function, and of nothing else",
            hints=["pass the value as an argument", "jax.lax.stop_gradient(value), if it is not to be differentiated"],
        )


# values of the program that a rule closes over

keep_alive_p: Final = PlainPrimitive("keep_alive")
keep_alive_p.def_impl(lambda x, *others: x)
keep_alive_p.def_abstract_eval(lambda x, *others: x)
mlir.register_lowering(keep_alive_p, lambda ctx, x, *others: [x])
ad.primitive_jvps[keep_alive_p] = lambda primals, tangents: (keep_alive_p.bind(*primals), tangents[0])
batching.primitive_batchers[keep_alive_p] = lambda operands, dims: (keep_alive_p.bind(*operands), dims[0])


def keeping_closed_over(f: Callable[..., Any], rules: Sequence[Any]) -> Callable[..., Any]:
    """The function of a custom derivative, which also uses the traced values that its rules close over.

    So these are operands of its equation, from which they are read when the rules are traced: after the program is.
    """
    values = list({id(x): x for rule in rules for x in _closed_over(rule, set())}.values())
    if not values:
        return f

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten(f(*args, **kwargs))
        first = [keep_alive_p.bind(x, *values) for x in leaves[:1]]
        return jax.tree.unflatten(tree, [*first, *leaves[1:]])

    return call


def _closed_over(x: Any, seen: set[int]) -> Iterator[Any]:
    """The traced plain values that a function closes over, itself or in the functions that it closes over."""
    if id(x) in seen:
        return
    seen.add(id(x))
    if isinstance(x, jax.core.Tracer):
        if type_of(x) is None:
            yield x
    elif isinstance(x, functools.partial):
        yield from _closed_over((x.func, x.args, x.keywords), seen)
    elif isinstance(x, types.MethodType):
        yield from _closed_over((x.__func__, x.__self__), seen)
    elif isinstance(x, types.FunctionType):
        for cell in x.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                yield from _closed_over(cell.cell_contents, seen)
        yield from _closed_over(x.__defaults__, seen)
    elif x is not None and not isinstance(x, type | str | jax.Array):
        for leaf in jax.tree.leaves(x):
            if leaf is not x:
                yield from _closed_over(leaf, seen)


def variable_of(x: Any) -> Any:
    """The program variable of a traced value; None if it is no value of a jaxpr."""
    var = getattr(x, "val", None) if isinstance(x, jax.core.Tracer) and type_of(x) is None else None
    return var if isinstance(var, Var) else None


def is_gone(x: Any) -> bool:
    """Whether a value is one of a program whose trace has ended."""
    return variable_of(x) is not None and trace_of(x) not in _open_traces()


def _open_traces() -> list[Any]:
    traces = []
    trace = trace_ctx.trace
    while trace is not None:
        traces += [trace, getattr(trace, "tangent_trace", None)]
        trace = getattr(trace, "parent_trace", None)
    return traces


# kinds of primitives


def has_custom_vjp(prim: Any) -> bool:
    """Whether a primitive of `jax.experimental.hijax` defines its vjp itself, and not through its jvp."""
    name: str = getattr(type(prim).vjp_fwd, "__qualname__", "")
    return not name.startswith(("HiPrim.", "VJPHiPrimitive.", "_vjp_fwd_from_"))


def name_of(eqn: Any) -> str:
    """The user's name for an equation: the function of a custom derivative, or the primitive."""
    body = eqn.params.get("call_jaxpr", eqn.params.get("call"))
    info = getattr(jaxpr_of(body), "debug_info", None)
    name = str(getattr(info, "func_name", "") or "").partition(" ")[0]
    return name or str(eqn.primitive.name)


# typed bodies

#: Makes the constants of a jaxpr its first operands.
_with_operands_for_constants: Any = private("jax._src.interpreters.partial_eval", "convert_constvars_jaxpr")


def trace_typed(f: Callable[..., list[Any]], operands: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The open jaxpr of a function of typed values, without constants, and its leading operands, the constants."""
    traced = jax.jit(f).trace(*operands)
    closed = traced.jaxpr
    consts = [*captured(closed), *getattr(traced, "_consts", ())]
    return _with_operands_for_constants(jaxpr_of(closed)), consts


#: The primitive of `jax.ad_checkpoint.checkpoint_name`.
name_p: Final[Any] = private("jax._src.ad_checkpoint", "name_p")
_rules: Final[dict[Any, Any]] = private("jax._src.interpreters.partial_eval", "partial_eval_jaxpr_custom_rules")
_Offloadable: Final[Any] = private("jax._src.interpreters.partial_eval", "Offloadable")
_Saveable: Final[Any] = private("jax._src.interpreters.partial_eval", "SaveableType")


def is_asked_about(eqn: Any) -> bool:
    """Whether a policy decides about an equation; else it decides about those in its bodies, if it has any."""
    return eqn.primitive not in _rules


def asks_inside(eqn: Any) -> bool:
    """Whether a policy decides about the equations in the bodies of an equation."""
    return eqn.primitive in _rules and eqn.primitive.name != "while"


class Residuals(NamedTuple):
    """What the backward pass of an equation needs of its forward pass."""

    operands: tuple[bool, ...]  # of each operand whether its value
    results: bool  # whether its results


def residuals_of(eqn: Any, operands: Sequence[int]) -> Residuals:
    """What the derivative of an equation by some operands needs, by JAX's rule; everything where there is none."""

    def kept(*xs: Any) -> list[Any]:
        def at(*ys: Any) -> list[Any]:
            values = [*xs]
            for i, y in zip(operands, ys, strict=True):
                values[i] = y
            outs = bind_plain(eqn, values)
            return [y for y in outs if jnp.issubdtype(y.dtype, jnp.inexact)]

        return jax.tree.leaves(jax.vjp(at, *(xs[i] for i in operands))[1])

    try:
        closed, _, _ = trace_plain(kept, [v.aval for v in eqn.invars])
    except (TypeError, ValueError, NotImplementedError):
        return Residuals((True,) * len(eqn.invars), results=True)
    jaxpr, _ = needed(closed)
    own = None if inner_jaxprs(eqn) else next((e for e in jaxpr.eqns if _does_the_same(e, eqn)), None)
    read = {v for e in jaxpr.eqns if e is not own for v in e.invars if not is_literal(v)}
    read.update(v for v in jaxpr.outvars if not is_literal(v))
    return Residuals(tuple(v in read for v in jaxpr.invars), results=own is not None)


def _does_the_same(one: Any, other: Any) -> bool:
    try:
        return one.primitive is other.primitive and bool(one.params == other.params)
    except ValueError:  # of arrays among them
        return False


def offloads(decision: Any) -> bool:
    """Whether a policy has a value moved to another memory."""
    return isinstance(decision, _Offloadable)


def saves(decision: Any) -> bool:
    """Whether a policy saves a value."""
    return decision is True or isinstance(decision, _Saveable)
