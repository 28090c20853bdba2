"""The derivative rules of plain programs' equations, as programs."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import UnexpectedTracerError
from jax.extend.core import Var
from jax.interpreters import ad, batching, mlir

from shtypes._compat import plain_programs, private, trace_ctx, trace_of
from shtypes._compat.jaxprs import captured, inner_jaxprs, is_literal, jaxpr_of
from shtypes._compat.local_axes import as_in_program
from shtypes._compat.typed import type_of
from shtypes.context.user_line import line_of
from shtypes.errors import ShardingTypeError


class JvpRule(NamedTuple):
    """The program of a `jax.custom_jvp` rule: from primals and nonzero tangents to those of the results."""

    jaxpr: Any
    consts: Sequence[Any]
    out_zeros: Sequence[bool]  # whether each result lacks a tangent


def custom_jvp_rule(eqn: Any, in_zeros: Sequence[bool]) -> JvpRule:
    """The rule of a `custom_jvp_call`, which JAX traces once for each set of operands without tangents."""
    with eqn.ctx.manager, plain_programs.tracing_plain(), as_in_program(), plain_programs.without_outer_lines():
        return JvpRule(*eqn.params["jvp_jaxpr_fun"].call_wrapped(*in_zeros))


@functools.cache
def cholesky_reads_lower() -> bool:
    """Whether the derivative of a Cholesky factor reads the lower triangle of the tangent alone, as newer JAX does."""
    factor = functools.partial(jax.lax.linalg.cholesky, symmetrize_input=False)
    with plain_programs.alone():
        closed, *_ = plain_programs.trace_plain(
            lambda *xs: jax.jvp(factor, xs[:1], xs[1:]), [jax.core.ShapedArray((2, 2), np.dtype("f"))] * 2
        )
    program = jaxpr_of(closed)
    return program.invars[1] not in next(e for e in program.eqns if e.primitive.name == "triangular_solve").invars


def closes_over(name: str) -> ShardingTypeError:
    """The error for a rule that closes over a tracer of an ended trace."""
    return ShardingTypeError(
        f"a derivative rule of `{name}` closes over a value of the lifted program",
        why="the program is traced before it is differentiated, as under `jax.jit`; its values are gone by then",
        hints=["pass the value as an argument of the function that has the rule", "sh.lift(jax.grad(f))"],
    )


@contextlib.contextmanager
def applying_rule(name: str) -> Iterator[None]:
    """Context manager around a JAX rule of an equation; converts errors for a missing rule."""
    try:
        yield
    except UnexpectedTracerError:
        raise closes_over(name) from None
    except NotImplementedError as error:
        if line_of(error.__traceback__):
            raise
        raise ShardingTypeError(f"JAX has no such rule for `{name}`", why=str(error).strip()) from None


def check_closed_over(eqn: Any, perturbed: Sequence[bool]) -> None:
    """Refuses to differentiate with respect to a captured value of a custom derivative's function."""
    if any(perturbed[: eqn.params.get("num_consts", 0)]):
        raise ShardingTypeError(
            f"`{name_of(eqn)}` closes over a value that is differentiated",
            why="the rule of a custom derivative speaks of the arguments of its function, and of nothing else",
            hints=["pass the value as an argument", "jax.lax.stop_gradient(value), if it is not to be differentiated"],
        )


# captured values of a program

keep_alive_p: Final = plain_programs.PlainPrimitive("keep_alive")
keep_alive_p.def_impl(lambda x, *others: x)
keep_alive_p.def_abstract_eval(lambda x, *others: x)
mlir.register_lowering(keep_alive_p, lambda ctx, x, *others: [x])
ad.primitive_jvps[keep_alive_p] = lambda primals, tangents: (keep_alive_p.bind(*primals), tangents[0])
batching.primitive_batchers[keep_alive_p] = lambda operands, dims: (keep_alive_p.bind(*operands), dims[0])


def keeping_closed_over(f: Callable[..., Any], rules: Sequence[Any]) -> Callable[..., Any]:
    """Wraps the function of a custom derivative to use the traced values that its rules capture.

    So these are operands of its equation, from which the rules read them when traced later.
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
    """The traced plain values that a function captures, directly or in captured functions."""
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
    """The jaxpr variable of a traced value, or None."""
    var = getattr(x, "val", None) if isinstance(x, jax.core.Tracer) and type_of(x) is None else None
    return var if isinstance(var, Var) else None


def has_ended(x: Any) -> bool:
    """Whether a value's trace has ended."""
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
    """Whether a primitive of `jax.experimental.hijax` defines its vjp directly, and not by its jvp."""
    name: str = getattr(type(prim).vjp_fwd, "__qualname__", "")
    return not name.startswith(("HiPrim.", "VJPHiPrimitive.", "_vjp_fwd_from_"))


def name_of(eqn: Any) -> str:
    """The user's name for an equation: the function of a custom derivative, or the primitive."""
    info = getattr(jaxpr_of(eqn.params.get("call_jaxpr", eqn.params.get("call"))), "debug_info", None)
    name = str(getattr(info, "func_name", "") or "").partition(" ")[0]
    return name or str(eqn.primitive.name)


# typed bodies

#: Converts the constants of a jaxpr to its first operands.
_with_operands_for_constants: Any = private("jax._src.interpreters.partial_eval", "convert_constvars_jaxpr")


def trace_typed(f: Callable[..., list[Any]], operands: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Traces a function of typed values: its open jaxpr without constants, and the constants as leading operands."""
    traced = jax.jit(f).trace(*operands)
    closed = traced.jaxpr
    consts = [*captured(closed), *getattr(traced, "_consts", ())]
    return _with_operands_for_constants(jaxpr_of(closed)), consts


_checkpoint_p: Final[Any] = private("jax._src.ad_checkpoint", "remat_p")


def bind_checkpoint(
    f: Callable[..., list[Any]], operands: Sequence[Any], prevent_cse: bool | Sequence[bool], **params: Any
) -> list[Any]:
    """The results of a function in a checkpoint with the parameters of JAX's primitive.

    `jax.checkpoint` makes only those of a forward pass, which XLA may merge with others.
    """
    jaxpr, consts = trace_typed(f, operands)
    if not isinstance(prevent_cse, bool):
        prevent_cse = (*[False] * len(consts), *prevent_cse)
    return list(_checkpoint_p.bind(*consts, *operands, jaxpr=jaxpr, prevent_cse=prevent_cse, **params))


#: The primitive of `jax.ad_checkpoint.checkpoint_name`.
name_p: Final[Any] = private("jax._src.ad_checkpoint", "name_p")
_rules: Final[dict[Any, Any]] = private("jax._src.interpreters.partial_eval", "partial_eval_jaxpr_custom_rules")
_Offloadable: Final[Any] = private("jax._src.interpreters.partial_eval", "Offloadable")
_Saveable: Final[Any] = private("jax._src.interpreters.partial_eval", "SaveableType")


def run_again_in_checkpoints(primitive: Any) -> None:
    """Makes checkpoints run a call that has only an effect again where they compute its operands again.

    By default JAX leaves it to the forward pass; for `debug_callback` it has a rule like this one.
    """

    def rule(_: Any, unknown: Sequence[bool], recomputed: Sequence[bool], eqn: Any) -> tuple[Any, ...]:
        saved = [v for v, again in zip(eqn.invars, recomputed, strict=True) if not again]
        if any(unknown):
            return None, eqn, [], [], saved
        return eqn, None if saved else eqn, [], [], []

    _rules[primitive] = rule


def policy_decides(eqn: Any) -> bool:
    """Whether a checkpoint policy decides about an equation itself, and not about those in its bodies."""
    return eqn.primitive not in _rules


def policy_decides_inside(eqn: Any) -> bool:
    """Whether a checkpoint policy decides about the equations in an equation's bodies."""
    return eqn.primitive in _rules and eqn.primitive.name != "while"


class Residuals(NamedTuple):
    """The values that the backward pass of an equation needs."""

    operands: tuple[bool, ...]  # whether each operand is needed
    results: bool  # whether the results are needed


def residuals_of(eqn: Any, operands: Sequence[int]) -> Residuals:
    """The residuals of an equation's derivative by some operands, by JAX's rule; all without a rule."""

    def residuals(*xs: Any) -> list[Any]:
        def at(*ys: Any) -> list[Any]:
            values = [*xs]
            for i, y in zip(operands, ys, strict=True):
                values[i] = y
            return [y for y in plain_programs.bind_plain(eqn, values) if jnp.issubdtype(y.dtype, jnp.inexact)]

        return jax.tree.leaves(jax.vjp(at, *(xs[i] for i in operands))[1])

    try:
        closed, _, _ = plain_programs.trace_plain(residuals, [v.aval for v in eqn.invars])
    except (TypeError, ValueError, NotImplementedError):
        return Residuals((True,) * len(eqn.invars), results=True)
    jaxpr, _ = plain_programs.needed(closed)
    same_eqn = None if inner_jaxprs(eqn) else next((e for e in jaxpr.eqns if _same_operation(e, eqn)), None)
    read = {v for e in jaxpr.eqns if e is not same_eqn for v in e.invars if not is_literal(v)}
    read.update(v for v in jaxpr.outvars if not is_literal(v))
    return Residuals(tuple(v in read for v in jaxpr.invars), results=same_eqn is not None)


def _same_operation(one: Any, other: Any) -> bool:
    try:
        return one.primitive is other.primitive and bool(one.params == other.params)
    except ValueError:  # array parameters
        return False


def offloads(decision: Any) -> bool:
    """Whether a policy moves a value to another memory."""
    return isinstance(decision, _Offloadable)


def saves(decision: Any) -> bool:
    """Whether a policy saves a value."""
    return decision is True or isinstance(decision, _Saveable)
