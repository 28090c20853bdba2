"""Rows of calls, loops, branches and callbacks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np

from shtypes._compat import no_trace_is_running
from shtypes._compat.derivative_rules import bind_checkpoint
from shtypes._compat.jaxprs import Cond, Scan, While, control, jaxpr_of
from shtypes._compat.plain_programs import bind_plain, trace_plain
from shtypes._compat.typed_once import TYPED_ONCE
from shtypes.autodiff.checkpoint import checkpoint_name
from shtypes.control import debug
from shtypes.control.branches import switch
from shtypes.control.loops import scan, while_loop
from shtypes.core.callbacks import HostFunction
from shtypes.core.local import local_all
from shtypes.core.meshes import concrete_mesh
from shtypes.dispatch.apply import all_replicated, apply, is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.bound_primitive import Bound
from shtypes.evaluation.frames import current, mesh_here
from shtypes.evaluation.interpreter import evaluate_closed
from shtypes.evaluation.rows.families import Row, all_unsharded
from shtypes.evaluation.source_fixes import IMPLICIT_HINT, name_results
from shtypes.evaluation.table import body_row, row
from shtypes.evaluation.value_info import (
    cast_to_type,
    is_constant,
    is_free,
    joined,
    noted_as,
    type_constants,
    type_of,
    typed_constant,
)
from shtypes.lifting.jax_rules import Split
from shtypes.lifting.saving import ByMarks, Mark, marked, policies_in_force, under_policies, with_mark
from shtypes.lifting.typed_once import results_of_call
from shtypes.ops import functions
from shtypes.ops.along_dims import function
from shtypes.ops.table import OPS
from shtypes.rules.typing import Typing
from shtypes.scopes.comm import under_rules
from shtypes.scopes.scope_rules import NoComm, NotTransposed, Recomputed, has_comm_scope
from shtypes.types import ShType, State, dtypes
from shtypes.types.mesh import Mesh, context
from shtypes.types.policy import replicated

#: Elementwise functions that JAX writes as a loop: each is typed as one op.
_ELEMENTWISE: Final[dict[str, Any]] = {"gcd": jax.numpy.gcd, "lcm": jax.numpy.lcm}


def _is_jaxs_function(eqn: Any) -> bool:
    """Whether a call is of JAX's function of this name, by its program."""
    avals = tuple((v.aval.shape, v.aval.dtype, getattr(v.aval, "weak_type", False)) for v in eqn.invars)
    return str(jaxpr_of(eqn.params["jaxpr"])) == _program(eqn.params["name"], avals)


@functools.lru_cache(maxsize=256)
def _program(name: str, avals: tuple[Any, ...]) -> str:
    structs = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in avals]
    try:
        closed, *_ = trace_plain(_ELEMENTWISE[name], structs)
    except (TypeError, ValueError):
        return ""
    calls = [e for e in jaxpr_of(closed).eqns if e.params.get("name") == name]
    return str(jaxpr_of(calls[0].params["jaxpr"] if calls else closed))


#: The parameters of calls that are their bodies.
_BODY: Final = ("jaxpr", "call_jaxpr", "fwd_jaxpr")


@body_row("jit", "closed_call", "composite", "eval_jaxpr", "remat_opt")
def _call(eqn: Any, operands: list[Any]) -> list[Any]:
    params = eqn.params
    if params.get("name") == TYPED_ONCE and (outs := results_of_call(eqn, operands)) is not None:
        return outs
    if params.get("name") in _ELEMENTWISE and _is_jaxs_function(eqn):
        return [OPS[params["name"]].function(*operands)]
    return evaluate_closed(next(params[name] for name in _BODY if name in params), operands)


@body_row("remat2")
def _checkpoint(eqn: Any, operands: list[Any]) -> list[Any]:
    """Binds JAX's checkpoint primitive with the typed body."""
    body, params = eqn.params["jaxpr"], eqn.params
    if not any(isinstance(x, jax.core.Tracer) for x in operands):
        return evaluate_closed(body, operands)
    policy, policies, split = params["policy"] or None, policies_in_force(), Split(operands)  # falsy is none, as in JAX
    if policy not in (None, jax.checkpoint_policies.everything_saveable, jax.checkpoint_policies.nothing_saveable):
        policy, policies = ByMarks(policy), (*policies, policy)

    def run(xs: Any) -> list[Any]:
        with under_policies(policies):
            return evaluate_closed(marked(body, policies), xs)

    prevent = params["prevent_cse"]
    return bind_checkpoint(
        under_rules(None, split.body(run), Recomputed()),
        split.inputs(operands),
        prevent if isinstance(prevent, bool) else split.inputs(prevent),
        policy=policy,
        differentiated=params["differentiated"],
    )


@body_row("name")
def _name(eqn: Any, operands: list[Any]) -> list[Any]:
    name = eqn.params["name"]
    return [(with_mark if isinstance(name, Mark) else checkpoint_name)(operands[0], name)]


class _Retry(Exception):  # noqa: N818  # a signal, not an error
    """Aborts the trace of a body that needs other types: those to start or end in, None where they do not change."""

    def __init__(self, types: list[ShType | None]) -> None:
        self.types = types


class _Carry:
    """The carry of a loop: finds types that a step preserves, and which elements are constants throughout."""

    def __init__(self, start: list[Any]) -> None:
        self._start = start
        self._constant = list(map(is_constant, start))

    def noted(self, values: list[Any]) -> list[Any]:
        """Notes the constants among the new values of a carry."""
        return list(noted_as(self._constant, values))

    def returned(self, before: list[Any], after: list[Any]) -> list[Any]:
        """Casts a step's results to the carry's types; raises `_Retry` if the carry must start in other types."""
        starts: list[ShType | None] = [None] * len(before)
        for i, (x, y) in enumerate(zip(before, after, strict=True)):
            before_type, after_type = type_of(x), type_of(y)
            if after_type is None or before_type == after_type:
                continue
            if before_type is None or (is_free(before_type, after_type) and not is_free(after_type, before_type)):
                starts[i] = after_type
        constant = [c and is_constant(y) for c, y in zip(self._constant, after, strict=True)]
        is_new, self._constant = constant != self._constant, constant
        if is_new or any(t is not None for t in starts):
            raise _Retry(starts)
        return [
            cast_to_type(y, x.type) if is_typed(x) and not is_typed(y) else y
            for x, y in zip(before, after, strict=True)
        ]

    def run_until_stable(self, run: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """Runs a loop, again for each `_Retry`, and returns the last carry."""
        carry = self._start
        for _ in range(5 * len(carry)):  # each round changes the state of an element, or makes it no constant
            try:
                return run(carry)
            except _Retry as retry:
                carry = [
                    x if t is None else cast_to_type(x, t, "carry") for x, t in zip(carry, retry.types, strict=True)
                ]
        return run(carry)


@body_row("scan")
def _scan(eqn: Any, operands: list[Any]) -> list[Any]:
    loop = control(eqn)
    assert isinstance(loop, Scan)
    n, m = loop.consts, loop.consts + loop.carry
    consts, carry, xs = operands[:n], _Carry(operands[n:m]), operands[m:]
    if not loop.carry and any(x.type.dims[0].axes for x in xs if is_typed(x)):  # each device loops over its slices
        xs = type_constants(xs)
    constant, varies = list(map(is_constant, xs)), [False] * (len(eqn.outvars) - loop.carry)

    def body(state: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        out = evaluate_closed(loop.body, [*consts, *carry.noted(state), *noted_as(constant, x)])
        varies[:] = [v or not is_constant(y) for v, y in zip(varies, out[loop.carry :], strict=True)]
        return carry.returned(state, out[: loop.carry]), out[loop.carry :]

    def run(start: list[Any]) -> list[Any]:
        last, ys = scan(body, start, list(xs), loop.length, reverse=loop.reverse, unroll=loop.unroll)
        return [*carry.noted(last), *noted_as([not v for v in varies], ys)]

    return carry.run_until_stable(run)


@body_row("while")
def _while(eqn: Any, operands: list[Any]) -> list[Any]:
    loop = control(eqn)
    assert isinstance(loop, While)
    n, m = loop.cond_consts, loop.cond_consts + loop.body_consts
    cond_consts, body_consts, start = operands[:n], operands[n:m], operands[m:]
    mapped = len(jaxpr_of(loop.cond).outvars[0].aval.shape)

    def run(reduce_any: Callable[[Any], Any]) -> list[Any]:
        carry = _Carry(start)

        def cond_fun(state: list[Any]) -> Any:
            (pred,) = evaluate_closed(loop.cond, [*cond_consts, *carry.noted(state)])
            if not mapped:
                return pred
            return reduce_any(pred) if is_typed(pred) else jax.numpy.any(pred)

        def body(state: list[Any]) -> list[Any]:
            new = evaluate_closed(loop.body, [*body_consts, *carry.noted(state)])
            if mapped:  # under `vmap` a loop runs while any element does; finished elements do not change
                (pred,) = evaluate_closed(loop.cond, [*cond_consts, *state])
                new = [_select(pred, y, x, mapped) for x, y in zip(state, new, strict=True)]
            return carry.returned(state, new)

        return carry.run_until_stable(lambda first: carry.noted(while_loop(cond_fun, body, first)))

    if mapped and any(map(is_typed, operands)):
        try:  # a loop of unknown length has no backward pass, but may be in one
            return under_rules(None, run, NotTransposed(), NoComm("both"))(_any_on_device)
        except ShardingTypeError:
            pass  # the predicate is not sharded, or the loop communicates
    return run(_any_on_all)


def _any_on_all(pred: Any) -> Any:
    """Whether a loop continues for any element of any device; no line of the program is that op."""
    try:
        return functions.any(pred)
    except ShardingTypeError as error:
        if not has_comm_scope():
            error.hints = (*error.hints, IMPLICIT_HINT)
        raise


_ANY: Final = function("any", jax.numpy.any)


def _any_on_device(pred: Any) -> Any:
    """Whether a loop continues for any element of a device's shard; typed as replicated though it may vary.

    This is sound: the number of iterations does not affect finished elements, and no device waits for another, since
    the loop does not communicate.
    """

    def rule(types: tuple[ShType, ...]) -> Typing:
        (t,) = types
        states = {axis: replicated() for axis in t.axes(State.SHARDED)}
        return Typing(types, (t.replace(dims=(), states={**t.beside_dims, **states}),))

    return apply("any", _ANY, rule, pred)


def _select(pred: Any, new: Any, old: Any, mapped: int) -> Any:
    unmapped: Any = tuple(range(mapped, new.ndim))
    if unmapped:
        pred = functions.expand_dims(pred, unmapped) if is_typed(pred) else jax.numpy.expand_dims(pred, unmapped)
    if not any(map(is_typed, (pred, new, old))):
        return jax.numpy.where(pred, new, old)
    return functions.where(pred, new, old)


@body_row("cond")
def _cond(eqn: Any, operands: list[Any]) -> list[Any]:
    choice = control(eqn)
    assert isinstance(choice, Cond)
    index, *args = operands
    if isinstance(index, np.integer):
        return evaluate_closed(choice.branches[int(index)], args)
    joined_types: list[ShType | None] | None = None
    constant, varies = list(map(is_constant, args)), [False] * len(eqn.outvars)

    def attempt() -> list[Any]:
        seen: list[list[ShType | None]] = []

        def branch(body: Any) -> Any:
            def run(*xs: Any) -> list[Any]:
                out = evaluate_closed(body, noted_as(constant, xs))
                varies[:] = [v or not is_constant(y) for v, y in zip(varies, out, strict=True)]
                if joined_types is not None:
                    return [
                        y if t is None else cast_to_type(y, t, "result") for y, t in zip(out, joined_types, strict=True)
                    ]
                seen.append([type_of(y) for y in out])
                if len(seen) == len(choice.branches):
                    places = [list(types) for types in zip(*seen, strict=True)]
                    if any(None in types and any(types) for types in places):
                        raise _Retry([joined(types) for types in places])
                return out

            return run

        try:
            outs = switch(index, [branch(body) for body in choice.branches], *args)
        except ShardingTypeError as error:
            step = current()
            if error.result and step is not None:
                name_results(error, step, choice.branches, int(error.result[1:-1]))
            raise
        return list(noted_as([not v for v in varies], outs))

    try:
        return attempt()
    except _Retry as retry:
        joined_types = retry.types
    return attempt()


@body_row("platform_index")
def _platform_index(eqn: Any, operands: list[Any]) -> list[Any]:
    """The index of the branch for the devices of the program's mesh."""
    platforms, backend = eqn.params["platforms"], _platform()
    names_here = {backend, *(("cuda", "rocm") if backend == "gpu" else ())}
    branch = next((i for i, names in enumerate(platforms) if names is None or names_here & set(names)), None)
    if branch is None:
        raise ShardingTypeError(f"the program has no branch for the platform {backend}")
    return [np.int32(branch)]


def _platform() -> str:
    """The platform of the devices on which the program runs; of JAX's default ones for a mesh without any here."""
    mesh = mesh_here(())
    if mesh is not None:
        with contextlib.suppress(ShardingTypeError):
            return str(concrete_mesh(mesh).devices.flat[0].platform)
    return jax.default_backend()


@body_row("pure_callback")
def _pure_callback(eqn: Any, operands: list[Any]) -> list[Any]:
    """Calls the host on each device's shards, of constants too: devices with equal shards raise equal errors."""
    if not any(map(is_typed, operands)):
        mesh = context()
        if mesh is None or no_trace_is_running():
            return bind_plain(eqn, operands)
        operands = [typed_constant(x, mesh) for x in operands]
        if not operands:
            return _call_without_operands(eqn, mesh)
    return _PURE_CALLBACK(eqn, type_constants(operands))


_PURE_CALLBACK: Final = Row(
    all_unsharded,
    function=lambda call, operands, results: _host_function(call.eqn, operands[0].mesh),
)


def _call_without_operands(eqn: Any, mesh: Mesh) -> list[Any]:
    states = all_replicated(mesh)
    types = [ShType(mesh, dtypes.from_numpy(v.aval.dtype), list(v.aval.shape), states) for v in eqn.outvars]
    return local_all(_host_function(eqn, mesh), out=types)


def _host_function(eqn: Any, mesh: Mesh) -> HostFunction:
    p = eqn.params
    results = tuple((tuple(v.aval.shape), dtypes.from_numpy(v.aval.dtype)) for v in eqn.outvars)
    return HostFunction(
        "pure_callback", Bound(eqn.primitive, p), p["callback"], results, mesh.axis_names, p["vmap_method"]
    )


@row("debug_callback", "debug_print")
def _debug(eqn: Any, operands: list[Any]) -> list[Any]:
    """Calls the host once for each distinct shard, as `sh.debug` does."""
    p = eqn.params
    if eqn.primitive.name == "debug_print":
        args, kwargs = _print_arguments(p, operands)
        debug.print(p["fmt"], *args, ordered=p["ordered"], **kwargs)
    else:
        callback = eqn.primitive.get_bind_params(p)["callback"]
        debug.callback(callback, *operands, ordered=type(p.get("effect")).__name__.startswith("Ordered"))
    return []


def _print_arguments(params: Any, operands: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of `jax.debug.print`: its operands, and those that were static when it was traced."""
    static = dict(params["static_args"])
    rest = iter(operands)
    leaves = [static[i] if i in static else next(rest) for i in range(params["in_tree"].num_leaves)]
    args, kwargs = jax.tree.unflatten(params["in_tree"], leaves)
    return list(args), dict(kwargs)


@row("io_callback")
def _io_callback(eqn: Any, operands: list[Any]) -> list[Any]:
    raise ShardingTypeError(
        "`io_callback` of typed values would run once on each device",
        hints=["sh.debug.callback, which calls once for each part", "x.to_jax() before it, outside of `lift`"],
    )
