"""Lowers a typed program to as few `jax.shard_map`s as possible, normally one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import source_info_util

from shtypes._compat import HiPrimitive
from shtypes._compat.jaxprs import (
    ClosedCall,
    Cond,
    Control,
    Scan,
    While,
    bind_eqn,
    bits_as_traced,
    captured,
    control,
    dtypes_of,
    equation_context,
    inner_jaxprs,
    is_literal,
    jaxpr_of,
    literal_array,
    unrounded,
    wide_enough,
)
from shtypes._compat.typed_once import TYPED_ONCE
from shtypes.caches import COMPILED, Static
from shtypes.core.array import Array, wrap
from shtypes.core.callbacks import Callback, call_on_shards, raise_after, recording_errors
from shtypes.core.checks import check_shards, check_terms_of_shards, checks_are_on
from shtypes.core.collective import Collective
from shtypes.core.collective import on_shards as collective_on_shards
from shtypes.core.combined_collectives import Joint
from shtypes.core.device_put import EnsureMapped, FromJax, Raise, ToJax
from shtypes.core.local import Local
from shtypes.core.meshes import concrete_mesh, context_mesh, manual_mesh
from shtypes.core.operation import Operation, applied_by
from shtypes.core.physical import from_shard, physical_spec, to_shard
from shtypes.core.region_plan import Planner, Segment, UnsupportedError, check_supported, is_typed, same_spec, spec_of
from shtypes.core.repeated import Layer, layers
from shtypes.core.reshard import Reshard
from shtypes.core.run_op import apply_local, reshard_on_shards
from shtypes.errors import ShardingTypeError
from shtypes.resharding.transport import AS_IT_IS, Transport
from shtypes.types import ShType, State

#: Evaluates a body on values.
Evaluate = Callable[[Any, Sequence[Any]], list[Any]]


def run_control(what: Control, xs: Sequence[Any], evaluate: Evaluate) -> list[Any]:
    """Runs an equation with bodies."""
    match what:
        case Scan():
            return _scan(what, xs, evaluate)
        case While():
            return _while(what, xs, evaluate)
        case Cond():
            index, *operands = xs
            branches = [lambda *ys, body=body: evaluate(body, ys) for body in what.branches]
            return list(lax.switch(index, branches, *operands))
        case ClosedCall():
            return _call(what, xs, evaluate)


def _scan(scan: Scan, xs: Sequence[Any], evaluate: Evaluate) -> list[Any]:
    n, m = scan.consts, scan.consts + scan.carry

    def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = evaluate(scan.body, [*xs[:n], *carry, *slices])
        return outs[: scan.carry], outs[scan.carry :]

    carry, stacked = lax.scan(
        step, list(xs[n:m]), list(xs[m:]), length=scan.length, reverse=scan.reverse, unroll=scan.unroll
    )
    return [*carry, *stacked]


def _while(loop: While, xs: Sequence[Any], evaluate: Evaluate) -> list[Any]:
    n, m = loop.cond_consts, loop.cond_consts + loop.body_consts

    def goes_on(state: Any) -> Any:
        return evaluate(loop.cond, [*xs[:n], *state])[0]

    def step(state: Any) -> Any:
        return evaluate(loop.body, [*xs[n:m], *state])

    if not jaxpr_of(loop.cond).outvars[0].aval.shape:
        return list(lax.while_loop(goes_on, step, list(xs[m:])))

    # under `vmap`: runs until all elements are done, and freezes those that are
    def step_some(state: Any) -> Any:
        on = goes_on(state)
        pairs = zip(step(state), state, strict=True)
        return [jnp.where(on.reshape(on.shape + (1,) * (x.ndim - on.ndim)), new, x) for new, x in pairs]

    return list(lax.while_loop(lambda state: jnp.any(goes_on(state)), step_some, list(xs[m:])))


def _call(call: ClosedCall, xs: Sequence[Any], evaluate: Evaluate) -> list[Any]:
    if call.barrier:
        # AD applied the checkpoint's policy; the barrier keeps the compiler from undoing it
        behind_barrier = iter(lax.optimization_barrier(tuple(x for x, b in zip(xs, call.barrier, strict=True) if b)))
        xs = [next(behind_barrier) if b else x for x, b in zip(xs, call.barrier, strict=True)]
    with source_info_util.extend_name_stack(call.scope) if call.scope else contextlib.nullcontext():
        return evaluate(call.body, xs)


# equations on one device's shards


@functools.lru_cache(maxsize=COMPILED)
def _traced_once(applied: Local | Joint) -> Callable[..., Any]:
    """The jitted operation on shards, traced once for each set of shapes."""
    if isinstance(applied, Joint):
        return jax.jit(applied.on_shards, inline=True)

    def local(*shards: Any) -> Any:
        with recording_errors() if applied.fn.calls_host else contextlib.nullcontext():
            return applied.fn(*shards)

    local.__name__ = str(applied.fn).split("[")[0]
    return jax.jit(local, inline=True)


@functools.lru_cache(maxsize=COMPILED)
def _resharded(src: ShType, dst: ShType, transport: Transport = AS_IT_IS) -> Callable[[Any], list[Any]]:
    return jax.jit(reshard_on_shards(src, dst, transport), inline=True)


def _local(eqn: Any, shards: Sequence[Any]) -> list[Any]:
    applied = applied_by(eqn)
    outs = apply_local(_traced_once(applied), shards, applied.results)
    if checks_are_on() and applied.fn.compared:
        check_shards(str(applied.fn), outs, applied.results)
        check_terms_of_shards(str(applied.fn), applied.operands, shards, applied.results, outs)
    return outs


def _reshard(eqn: Any, shards: Sequence[Any]) -> list[Any]:
    applied = applied_by(eqn)
    return _resharded(applied.src, applied.dst, applied.transport)(*shards)


def _collective(eqn: Any, shards: Sequence[Any]) -> list[Any]:
    applied = applied_by(eqn)
    return collective_on_shards(applied.op, applied.src)(*shards)


def _from_jax(eqn: Any, shards: Sequence[Any]) -> list[Any]:
    (x,), (v,), t = shards, eqn.invars, eqn.params["ty"]
    with wide_enough(v.aval.dtype):
        x = jnp.asarray(x, v.aval.dtype)
    if same_spec(spec_of(v.aval), physical_spec(t)):
        if checks_are_on():
            check_shards("from_jax", [x], [t], inputs=True)
        return [x]
    return _resharded(t.with_axes(t.mesh.axis_names, State.INVARIANT), t)(x)


def _callback(eqn: Any, shards: Sequence[Any]) -> list[Any]:
    with recording_errors():
        call_on_shards(eqn.params["call"], tuple(v.aval for v in eqn.invars), shards)
    return []


def calls_host(equations: Sequence[Any]) -> bool:
    """Whether a region calls host functions, whose errors are recorded."""
    return any(
        isinstance(eqn.primitive, Callback)
        or getattr(getattr(applied_by(eqn), "fn", None), "calls_host", False)
        or any(calls_host(jaxpr_of(body).eqns) for body, _ in inner_jaxprs(eqn))
        for eqn in equations
    )


#: How to evaluate our operations and primitives on shards.
ON_SHARDS: Final[dict[type[Operation | HiPrimitive], Callable[[Any, Sequence[Any]], list[Any]]]] = {
    Local: _local,
    Reshard: _reshard,
    Collective: _collective,
    Joint: lambda eqn, xs: list(_traced_once(applied_by(eqn))(*xs)),
    FromJax: _from_jax,
    Raise: lambda eqn, xs: [to_shard(eqn.params["ty"], *xs)],
    ToJax: lambda eqn, xs: list(xs),
    EnsureMapped: lambda eqn, xs: list(xs),
    Callback: _callback,
}


def on_shards(eqn: Any, shards: Sequence[Any]) -> list[Any]:
    """Evaluates an equation without bodies on shards."""
    rule = next((ON_SHARDS[kind] for kind in type(applied_by(eqn)).__mro__ if kind in ON_SHARDS), None)
    return _plain(eqn, shards) if rule is None else rule(eqn, shards)


def _plain(eqn: Any, xs: Sequence[Any]) -> list[Any]:
    """Evaluates one of JAX's equations on every device, without its placement."""
    if eqn.primitive.name == "reshard":
        return list(xs)
    unplaced: dict[str, Any] = {k: None for k, v in eqn.params.items() if isinstance(v, jax.sharding.Sharding)}
    if eqn.primitive.name == "broadcast_in_dim" and not eqn.invars[0].aval.shape:
        aval = eqn.outvars[0].aval
        unplaced["shape"] = aval.sharding.shard_shape(aval.shape) if len(aval.sharding.spec) else aval.shape
    with wide_enough(*dtypes_of(eqn)):
        return bind_eqn(eqn, xs, **unplaced)


#: Applies one equation to values.
Step = Callable[[Any, list[Any]], list[Any]]


class Lowering:
    """Lowers one program; caches decisions about its bodies. If ``one_region``, several regions are an error."""

    def __init__(self, *, one_region: bool = False) -> None:
        self._one_region = one_region
        self._planner = Planner()

    def lower(self, program: Any, constants: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """The results of a closed typed jaxpr on physical and plain arrays; `UnsupportedError` if it is left to JAX."""
        jaxpr = jaxpr_of(program)
        if not check_supported(jaxpr):
            raise UnsupportedError("nothing in it is typed")
        if self._one_region:
            self._check_one_region(jaxpr)
        return self._arrays(jaxpr, [*constants, *operands])

    def _check_one_region(self, jaxpr: Any) -> None:
        outside = [e for s in self._planner.segments(jaxpr) if not s.region for e in s.equations]
        if not outside:
            return
        eqn = next((e for e in outside if self._planner.obstacle(e)), outside[0])
        raise ShardingTypeError(
            f"the program does not fit in one region: `{applied_by(eqn).name}` runs outside",
            where=source_info_util.summarize(eqn.source_info),
            why=self._planner.obstacle(eqn) or "an equation outside needs it",
            hints=['sh.set_region("auto") runs it in between regions'],
        )

    # on global arrays

    def _arrays(self, jaxpr: Any, operands: Sequence[Any]) -> list[Any]:
        env = dict(zip((*jaxpr.constvars, *jaxpr.invars), operands, strict=True))
        for segment in self._planner.segments(jaxpr):
            if segment.region:
                self._region(segment, env)
            else:
                _run(segment.equations, env, self._on_arrays)
        return [_read(env, v) for v in jaxpr.outvars]

    def _on_arrays(self, eqn: Any, xs: list[Any]) -> list[Any]:
        what = control(eqn)
        if what is None or not any(check_supported(jaxpr_of(body)) for body, _ in inner_jaxprs(eqn)):
            return _on_arrays(eqn, xs)
        return run_control(what, xs, lambda body, ys: self._arrays(jaxpr_of(body), [*captured(body), *ys]))

    # on shards

    def _region(self, segment: Segment, env: dict[Any, Any]) -> None:
        """Runs a segment in one shard_map, and puts its results into ``env``."""
        # XLA drops operands without elements, which its partitioner then misses, so they are created inside
        empty = [v for v in segment.operands if is_typed(v) and not v.aval.size]
        passed = [v for v in segment.operands if v not in empty]

        def body(*blocks: Any) -> list[Any]:
            local = dict(zip(passed, blocks, strict=True))
            local |= {v: to_shard(v.aval, local[v]) for v in passed if is_typed(v)}
            local |= {v: jnp.zeros(v.aval.local_shape, v.aval.dtype) for v in empty}
            typed = [v for v in segment.operands if is_typed(v)]
            if checks_are_on():
                check_shards("jit", [local[v] for v in typed], [v.aval for v in typed], inputs=True)
            self._run_layers(segment, local)
            results = [_leaving(v, _read(local, v)) for v in segment.results]
            if calls_host(segment.equations):
                raise_after(mesh.axis_names, results)
            return results

        mesh = next(v.aval.mesh for e in segment.equations for v in (*e.invars, *e.outvars) if is_typed(v))
        over, options = manual_mesh(mesh)
        if not passed and context_mesh() is None:
            over = concrete_mesh(mesh)  # nothing else says which devices
        run = jax.shard_map(
            body,
            mesh=over,
            in_specs=tuple(spec_of(v.aval) for v in passed),
            out_specs=[spec_of(v.aval) for v in segment.results],
            check_vma=False,
            **options,
        )
        env.update(zip(segment.results, run(*[_read(env, v) for v in passed]), strict=True))

    def _run_layers(self, segment: Segment, env: dict[Any, Any]) -> None:
        """Evaluates a region's equations. Layers that were traced once for several calls are calls again."""
        eqns, at = segment.equations, 0
        calls: dict[Any, Callable[..., Any]] = {}  # by the form of a layer
        for layer in _layers_traced_once(segment):
            _run(eqns[at : layer.steps.start], env, self._on_shards)
            if layer.form not in calls:

                def run(xs: Sequence[Any], layer: Layer = layer) -> list[Any]:
                    inner = dict(zip(layer.inputs, xs, strict=True))
                    _run([eqns[i] for i in layer.steps], inner, self._on_shards)
                    return [inner[v] for v in layer.outputs]

                calls[layer.form] = jax.jit(run)
            env.update(zip(layer.outputs, calls[layer.form]([env[v] for v in layer.inputs]), strict=True))
            at = layer.steps.stop
        _run(eqns[at:], env, self._on_shards)

    def _shards(self, body: Any, shards: Sequence[Any]) -> list[Any]:
        jaxpr = jaxpr_of(body)
        env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*captured(body), *shards), strict=True))
        _run(jaxpr.eqns, env, self._on_shards)
        return [_read(env, v) for v in jaxpr.outvars]

    def on_one_device(self, program: Any, axes: Sequence[str], operands: Sequence[Any]) -> list[Any]:
        """The results of a closed typed jaxpr over axes of size 1, from plain arrays to plain arrays; needs no mesh."""

        def body(*xs: Any) -> list[Any]:
            return self._shards(program, xs)

        for axis in axes:  # bound for `axis_index`
            body = jax.vmap(body, in_axes=None, axis_name=axis, axis_size=1)
        return [y.reshape(y.shape[len(axes) :]) for y in body(*operands)]

    def _on_shards(self, eqn: Any, xs: list[Any]) -> list[Any]:
        what = control(eqn)
        return on_shards(eqn, xs) if what is None else run_control(what, xs, self._shards)


def _on_arrays(eqn: Any, xs: Sequence[Any]) -> list[Any]:
    """Evaluates an equation without bodies on physical arrays; lowers one of ours alone."""
    with equation_context(eqn):
        if not isinstance(eqn.primitive, HiPrimitive):
            with wide_enough(*dtypes_of(eqn)):
                return bind_eqn(eqn, xs)
        values = [wrap(v.aval, x) if is_typed(v) else x for v, x in zip(eqn.invars, xs, strict=True)]
        outs = eqn.primitive.to_lojax(*values, **eqn.params)
        outs = outs if eqn.primitive.multiple_results else [outs]
        return [out.data if type(out) is Array else out for out in outs]


def _layers_traced_once(segment: Segment) -> list[Layer]:
    """The repeated layers of a region, of equations that are copies of those of one call."""
    codes: list[Any] = []
    for i, eqn in enumerate(segment.equations):
        operands = [x.val if is_literal(x) else None for x in eqn.invars]
        once = any(getattr(scope, "name", "") == TYPED_ONCE for scope in eqn.source_info.name_stack.stack)
        parts = [id(x) if isinstance(x, Operation) else Static(x) for x in (*eqn.params.values(), *operands)]
        codes.append((eqn.primitive, *parts) if once else i)
    if set(map(type, codes)) == {int}:
        return []
    reads = [[v for v in eqn.invars if not is_literal(v)] for eqn in segment.equations]
    return layers(codes, reads, [eqn.outvars for eqn in segment.equations], segment.results)


def _leaving(v: Any, shard: Any) -> Any:
    if is_typed(v):
        return from_shard(v.aval, shard)
    return shard if isinstance(shard, jax.Array) else jnp.asarray(shard, v.aval.dtype)


def _run(equations: Sequence[Any], env: dict[Any, Any], step: Step) -> None:
    """Evaluates equations in sequence, under the user's name scopes and lines."""
    for eqn in equations:
        stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
        with source_info_util.user_context(eqn.source_info.traceback, name_stack=stack), bits_as_traced(eqn):
            try:
                outs = step(eqn, [_read(env, v) for v in eqn.invars])
            except Exception as err:
                _note(err, eqn)
                raise
        env.update(zip(eqn.outvars, outs, strict=True))


def _note(err: Exception, eqn: Any) -> None:
    """Adds the innermost equation being lowered, with its line, to an error's notes."""
    if not any(note.startswith("while lowering") for note in getattr(err, "__notes__", ())):
        err.add_note(f"while lowering `{applied_by(eqn).name}` from {source_info_util.summarize(eqn.source_info)}")


def _read(env: dict[Any, Any], atom: Any) -> Any:
    return unrounded(literal_array(atom) if is_literal(atom) else env[atom])
