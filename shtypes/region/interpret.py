"""The two interpreters of a typed jaxpr: on the shards of a region, and on global arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import source_info_util

from shtypes._compat import HiPrimitive
from shtypes._compat.jaxprs import (
    bits_as_traced,
    bound,
    captured,
    control,
    dtypes_of,
    equation_context,
    inner_jaxprs,
    is_literal,
    jaxpr_of,
    kept_wide,
    without_its_mesh,
)
from shtypes.core.array import Array, wrap
from shtypes.core.carrier import from_shard, to_shard
from shtypes.core.checks import check_shards, checks_are_on
from shtypes.core.host_errors import raise_after
from shtypes.core.localfn import wide_enough
from shtypes.core.meshes import concrete_mesh, context_mesh, manual_mesh
from shtypes.core.operation import applied_by
from shtypes.errors import ShardingTypeError
from shtypes.region.control import run_control
from shtypes.region.on_shards import calls_host, on_shards
from shtypes.region.planning import Planner, Segment, UnsupportedError, check_supported, is_typed, spec_of

#: Applies one equation to values.
Step = Callable[[Any, list[Any]], list[Any]]


class Lowering:
    """Lowers one program; what it decides about bodies holds for all their uses.

    Args:
        one_region: Whether a program that needs more than one region is an error.
    """

    def __init__(self, *, one_region: bool = False) -> None:
        self._one_region = one_region
        self._planner = Planner()

    def lower(self, program: Any, constants: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """The results of a closed typed jaxpr on carriers and plain arrays.

        Raises:
            UnsupportedError: the program is left to JAX.
            ShardingTypeError: one region is required and not enough.
        """
        jaxpr = jaxpr_of(program)
        if not check_supported(jaxpr):
            raise UnsupportedError("nothing in it is typed")
        if self._one_region:
            self._check_one_region(jaxpr)
        return self._arrays(jaxpr, [*constants, *operands])

    def _check_one_region(self, jaxpr: Any) -> None:
        segments = self._planner.segments(jaxpr)
        outside = [e for s in segments if not s.region for e in s.equations]
        if not outside:
            return
        eqn = next((e for e in outside if self._planner.against(e)), outside[0])
        raise ShardingTypeError(
            f"the program does not fit in one region: `{applied_by(eqn).name}` runs outside",
            where=source_info_util.summarize(eqn.source_info),
            why=self._planner.against(eqn) or "an equation outside needs it",
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

        def body(*blocks: Any) -> list[Any]:
            local = dict(zip(segment.operands, blocks, strict=True))
            typed = [v for v in segment.operands if is_typed(v)]
            local |= {v: to_shard(v.aval, local[v]) for v in typed}
            if checks_are_on():
                check_shards("jit", [local[v] for v in typed], [v.aval for v in typed], given=True)
            _run(segment.equations, local, self._on_shards)
            results = [_leaving(v, _read(local, v)) for v in segment.results]
            if calls_host(segment.equations):
                raise_after(mesh.axis_names, results)
            return results

        mesh = next(v.aval.mesh for e in segment.equations for v in (*e.invars, *e.outvars) if is_typed(v))
        over, options = manual_mesh(mesh)
        if not segment.operands and context_mesh() is None:
            over = concrete_mesh(mesh)  # nothing else says which devices
        run = jax.shard_map(
            body,
            mesh=over,
            in_specs=tuple(spec_of(v.aval) for v in segment.operands),
            out_specs=[spec_of(v.aval) for v in segment.results],
            check_vma=False,
            **options,
        )
        env.update(zip(segment.results, run(*[_read(env, v) for v in segment.operands]), strict=True))

    def _shards(self, body: Any, shards: Sequence[Any]) -> list[Any]:
        jaxpr = jaxpr_of(body)
        env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*captured(body), *shards), strict=True))
        _run(jaxpr.eqns, env, self._on_shards)
        return [_read(env, v) for v in jaxpr.outvars]

    def on_one_device(self, program: Any, axes: Sequence[str], operands: Sequence[Any]) -> list[Any]:
        """The results of a closed typed jaxpr over axes of size 1, from plain arrays to plain arrays; needs no mesh."""

        def body(*xs: Any) -> list[Any]:
            return self._shards(program, xs)

        for axis in axes:  # bound, so that a device can ask where it is
            body = jax.vmap(body, in_axes=None, axis_name=axis, axis_size=1)
        return [y.reshape(y.shape[len(axes) :]) for y in body(*operands)]

    def _on_shards(self, eqn: Any, xs: list[Any]) -> list[Any]:
        what = control(eqn)
        return on_shards(eqn, xs) if what is None else run_control(what, xs, self._shards)


def _on_arrays(eqn: Any, xs: Sequence[Any]) -> list[Any]:
    """An equation without bodies on carriers: one of ours is lowered on its own."""
    with equation_context(eqn):
        if not isinstance(eqn.primitive, HiPrimitive):
            with wide_enough(*dtypes_of(eqn)):
                return bound(eqn, xs)
        values = [wrap(v.aval, x) if is_typed(v) else x for v, x in zip(eqn.invars, xs, strict=True)]
        outs = eqn.primitive.to_lojax(*values, **eqn.params)
        outs = outs if eqn.primitive.multiple_results else [outs]
        return [out.data if type(out) is Array else out for out in outs]


def _leaving(v: Any, shard: Any) -> Any:
    if is_typed(v):
        return from_shard(v.aval, shard)
    return shard if isinstance(shard, jax.Array) else jnp.asarray(shard, v.aval.dtype)


def _run(equations: Sequence[Any], env: dict[Any, Any], step: Step) -> None:
    """Applies equations one after the other, under the names and lines of the user's program."""
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
    """Says which of the user's lines was being lowered; the innermost equation speaks."""
    if not any(note.startswith("while lowering") for note in getattr(err, "__notes__", ())):
        err.add_note(f"while lowering `{applied_by(eqn).name}` from {source_info_util.summarize(eqn.source_info)}")


def _read(env: dict[Any, Any], atom: Any) -> Any:
    """The value of an operand."""
    return kept_wide(without_its_mesh(atom) if is_literal(atom) else env[atom])
