"""Plain JAX programs: traces them without a mesh, binds their equations again, and recognises `searchsorted`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shtypes._compat import private
from shtypes._compat.annotations import annotated
from shtypes._compat.in_force import all_traced, mark, marked, noting_settings, without_marks
from shtypes._compat.jaxprs import bind_eqn, equations, is_literal, jaxpr_of, literal_value, wide_enough, zero_jvp
from shtypes._compat.local_axes import Axes, plain_aval, trace, untracked
from shtypes._compat.program_mesh import (
    ProgramMesh,
    constants,
    is_of_program,
    on_mesh,
    program_mesh,
    program_mesh_in_context,
    types_on_program_mesh,
)
from shtypes._compat.typed import CLASSES
from shtypes.context.eqn_source import set_plain_trace
from shtypes.context.frames import frames
from shtypes.context.settings import current_settings, scope

_source_info: Any = importlib.import_module("jax._src.source_info_util")
_source_info_context: Any = private("jax._src.source_info_util", "_source_info_context")
_dce: Any = private("jax._src.interpreters.partial_eval", "dce_jaxpr")
_partial_evals: Final[dict[Any, Any]] = private("jax._src.interpreters.partial_eval", "custom_partial_eval_rules")
_NO_MESH: Final = jax.sharding.AbstractMesh((), ())
_use_concrete_mesh: Any = private("jax._src.sharding_impls", "_internal_use_concrete_mesh")


def without_mesh() -> Any:
    """Context manager in which JAX sees no mesh, so that plain programs mean what they mean in JAX."""
    return jax.sharding.use_abstract_mesh(_NO_MESH)


def _without_devices() -> contextlib.AbstractContextManager[Any]:
    """Context manager in which JAX's eager arrays are on no mesh, as constants of a program without one."""
    manager: contextlib.AbstractContextManager[Any] = _use_concrete_mesh(jax.sharding.Mesh(np.empty((), object), ()))
    return manager


def results_of(
    jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], step: Callable[[Any, list[Any]], Any]
) -> list[Any]:
    """Evaluates a program, each equation by ``step``."""
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(v: Any) -> Any:
        return literal_value(v) if is_literal(v) else env[v]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, step(eqn, list(map(read, eqn.invars))), strict=True))
    return list(map(read, jaxpr.outvars))


def needed(closed: Any) -> tuple[Any, tuple[Any, ...]]:
    """The open jaxpr without dead equations, and its constants."""
    jaxpr = jaxpr_of(closed)
    live, _ = _dce(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return live, constants(closed)


def as_written(eqn: Any, lines: Any) -> contextlib.AbstractContextManager[Any]:
    """Context manager that gives bound equations the name scopes and stack (``lines``) of an evaluated equation."""
    names = _source_info.current_name_stack() + without_marks(eqn.source_info.name_stack)
    manager: contextlib.AbstractContextManager[Any] = _source_info.user_context(lines, name_stack=names)
    return manager


@contextlib.contextmanager
def without_outer_lines() -> Iterator[None]:
    """Context manager in which traced equations get their stack frames, not those of the evaluated equation."""
    outer = _source_info_context.context
    _source_info_context.context = _source_info.SourceInfo(None, outer.name_stack)  # `user_context(None)` keeps stacks
    try:
        yield
    finally:
        _source_info_context.context = outer


def implementation_of(eqn: Any) -> Callable[..., list[Any]] | None:
    """The implementation of a third party's primitive, if JAX can trace all of it; else None."""
    primitive = eqn.primitive
    impl: Any = getattr(primitive, "impl", None)
    unwrapped = impl
    while isinstance(unwrapped, functools.partial):  # as in JAX
        unwrapped = unwrapped.func
    module = getattr(inspect.unwrap(unwrapped), "__module__", None) or "" if callable(unwrapped) else ""
    if not module or module.partition(".")[0] in ("jax", "jaxlib"):
        return None

    def run(*xs: Any) -> list[Any]:
        outs = impl(*xs, **eqn.params)
        return list(outs) if primitive.multiple_results else [outs]

    return run


def bind_plain(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Binds an equation to plain arrays, under its trace settings."""
    unplaced = {k: None for k, v in eqn.params.items() if type(getattr(v, "mesh", None)) is ProgramMesh}
    with eqn.ctx.manager, without_mesh():
        return bind_eqn(eqn, operands, **unplaced)


def bind_in_program(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Binds an equation of one plain program in another, under the mesh that its shardings name."""
    with eqn.ctx.manager:
        return bind_eqn(eqn, operands)


# captured typed values


class PlainPrimitive(Primitive):
    """A primitive of ours on plain arrays."""


def closed_over(x: Any) -> Any:
    """Converts a captured typed value for a plain program being traced to a plain array of its global shape.

    The conversion is an equation of the program, so that it is the typed value again in evaluation.
    """
    if type(x) not in CLASSES:
        return x
    mesh = program_mesh_in_context()
    with set_plain_trace(0):  # where a typed value has its sharding type
        return closed_over_p.bind(x, mesh=None if mesh is None else mesh.inner)


def _no_constant(*values: Any, mesh: Any = None) -> Any:
    """Refuses to differentiate with respect to a captured typed value, or to compute with it eagerly."""
    typed: Any = next(x for x in values if type(x) in CLASSES)
    return typed.type.refuse_plain_use("")


closed_over_p: Final = PlainPrimitive("closed_over")
closed_over_p.def_abstract_eval(lambda t, *, mesh: plain_aval(t.shape, t.dtype, mesh, [t]))
closed_over_p.def_impl(_no_constant)
ad.primitive_jvps[closed_over_p] = lambda primals, tangents, **_: _no_constant(*primals)
batching.primitive_batchers[closed_over_p] = lambda xs, dims, mesh: (closed_over_p.bind(*xs, mesh=mesh), dims[0])


# provenance: the argument of `jnp.zeros_like`


def _filled(x: Any, *, value: Any, dtype: Any) -> Any:
    return jax.lax.full(x.shape, value, dtype)


full_like_p: Final = PlainPrimitive("full_like")
full_like_p.def_impl(_filled)
full_like_p.def_abstract_eval(lambda x, *, value, dtype: x.update(dtype=dtype, weak_type=False))
mlir.register_lowering(full_like_p, mlir.lower_fun(_filled, multiple_results=False))


ad.primitive_jvps[full_like_p] = functools.partial(zero_jvp, full_like_p)
# its result needs the shape of the argument only, and no residual
_partial_evals[full_like_p] = lambda trace, x, **params: _filled(x.aval, **params)
batching.primitive_batchers[full_like_p] = lambda args, dims, **params: (full_like_p.bind(*args, **params), dims[0])

#: The code of functions that fill an array like their argument; with the number, if it is none of their arguments.
_LIKE: Final[dict[Any, int | None]] = {private("jax._src.lax.lax", "full_like").__code__: None}
with contextlib.suppress(ImportError):  # from 0.12 on; `full_like` with 0 before
    _LIKE[private("jax._src.lax.lax", "empty_like").__code__] = 0


def _like(args: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any] | None:
    """The argument and fill value of the `jax.numpy.zeros_like`, `full_like` or `empty_like` that binds an equation.

    Read from Python's stack, because JAX's equation has only the shape.
    """
    if any(np.ndim(x) or getattr(jax.typeof(x), "weak_type", False) for x in args):
        return None
    for frame in itertools.islice(frames(2), 12):
        if frame.f_code in _LIKE:
            x: Any = frame.f_locals.get("x")
            number = frame.f_locals.get("fill_value", _LIKE[frame.f_code])
            same = isinstance(x, jax.core.Tracer) or type(x) in CLASSES
            is_like = same and isinstance(number, (bool, int, float)) and frame.f_locals.get("shape") is None
            return (x, number) if is_like and tuple(x.shape) == tuple(params["shape"]) else None
    return None


# binding in a program being traced

#: Primitives with functions or programs as parameters, whose equations belong to the program.
_CALLS: Final = frozenset(
    {
        *("jit", "closed_call", "core_call", "core_closed_call", "eval_jaxpr", "composite", "remat2", "checkpoint"),
        *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_vmap_call", "custom_transpose_call"),
        *("scan", "while", "cond", "linear_call", "custom_linear_solve", "shard_map", "run_state", "xla_pmap"),
        *("call_hi_primitive", "custom_lin"),
    }
)


def bound_in_program(bind: Callable[..., Any], primitive: Any, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Binds a primitive in a plain program being traced; annotations and settings become part of its equations."""
    mesh = program_mesh_in_context()
    args = tuple([closed_over(x) if type(x) in CLASSES else x for x in args])
    if mesh is None or (mesh.is_inner and not mesh.manual_axes):
        return bind(*args, **params)
    with marked(mark()):
        if primitive.name in ("broadcast_in_dim", "empty"):
            like = _like(args, params)
            if like is not None:
                x, number = like
                dtype = jax.typeof(args[0]).dtype if args else params["dtype"]
                return full_like_p.bind(closed_over(x), value=number, dtype=dtype)
        bind_inner = bind if primitive.name in _CALLS else _bound_under(mesh.inner, bind)
        return annotated(bind_inner, primitive, args, params)


def _bound_under(mesh: Any, bind: Callable[..., Any]) -> Callable[..., Any]:
    def bound(*args: Any, **params: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh):
            return bind(*args, **params)

    return bound


@contextlib.contextmanager
def tracing_plain(mesh: Axes | None = None) -> Iterator[None]:
    """Context manager around the trace of a plain program that will be evaluated on typed values."""
    outer_mesh = program_mesh_in_context()
    sees = program_mesh(*mesh) if mesh is not None else outer_mesh
    with set_plain_trace(), contextlib.ExitStack() as entered:
        entered.enter_context(without_mesh())
        if sees is not None:
            entered.enter_context(jax.sharding.use_abstract_mesh(sees))
        entered.enter_context(_without_devices())
        entered.enter_context(all_traced())
        entered.enter_context(noting_settings())
        entered.enter_context(types_on_program_mesh())
        yield


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Context manager for code that is traced independently of any enclosing plain program."""
    with set_plain_trace(0), without_mesh(), untracked(), scope(current_settings()._replace(local=(), start=0)):
        yield


def trace_plain(f: Callable[..., Any], avals: Sequence[Any], mesh: Axes | None = None) -> tuple[Any, list[Any], Any]:
    """Traces a function of plain arrays: its program, captured values, and the structure of its results. Cached by JAX.

    The captured values belong to outer traces, and are the program's first arguments.
    """
    with tracing_plain(mesh), without_outer_lines(), wide_enough(*(a.dtype for a in avals)):
        traced = trace(f, avals)
    return traced.jaxpr, list(getattr(traced, "_consts", ())), jax.tree.structure(traced.out_info)


_context: Any = private("jax._src.core", "JaxprEqnContext")


def as_of_here(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with a plain program's mesh replaced by the one in context."""
    return {key: _as_of_here(value) for key, value in params.items()}


def _as_of_here(value: Any) -> Any:
    if hasattr(jaxpr_of(value), "eqns"):
        return _program(value)
    if is_of_program(value):  # a result type
        return _type(value)
    if type(value) in (tuple, list):
        items: list[Any] = [_as_of_here(item) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        changed = {name: new for name, x in fields.items() if (new := _as_of_here(x)) is not x}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def _program(jaxpr: Any) -> Any:
    """A program with variables on the mesh in context."""
    opened, changed = jaxpr_of(jaxpr), dict[Any, Any]()

    def renamed(atoms: Sequence[Any]) -> list[Any]:
        return [_literal(x) if is_literal(x) else changed.get(x, x) for x in atoms]

    def bound(variables: Sequence[Any]) -> list[Any]:
        for x in variables:
            aval = _type(x.aval)
            if aval is not x.aval:
                changed[x] = type(x)(aval)
        return renamed(variables)

    consts, invars = bound(opened.constvars), bound(opened.invars)
    eqns = [_equation(eqn, renamed(eqn.invars), bound(eqn.outvars)) for eqn in opened.eqns]
    parts = {"constvars": consts, "invars": invars, "eqns": eqns, "outvars": renamed(opened.outvars)}
    if all(a is b for key, items in parts.items() for a, b in zip(items, getattr(opened, key), strict=True)):
        return jaxpr
    program = opened.replace(**parts)
    return program if opened is jaxpr else jaxpr.replace(jaxpr=program)


def _equation(eqn: Any, invars: list[Any], outs: list[Any]) -> Any:
    parts: dict[str, Any] = {"invars": invars, "outvars": outs, "params": as_of_here(eqn.params)}
    same = all(a is b for key in ("invars", "outvars") for a, b in zip(parts[key], getattr(eqn, key), strict=True))
    if type(getattr(eqn.ctx, "cur_abstract_mesh", None)) is ProgramMesh:
        mesh = jax.sharding.get_abstract_mesh()
        with eqn.ctx.manager, jax.sharding.use_abstract_mesh(mesh):
            return eqn.replace(**parts, ctx=_context())
    return eqn if same and all(parts["params"][k] is v for k, v in eqn.params.items()) else eqn.replace(**parts)


def _type(aval: Any) -> Any:
    """The type of an array, or of a reference to one, on the mesh in context."""
    inner = getattr(aval, "inner_aval", None)
    if inner is not None:
        updated = _type(inner)
        return aval if updated is inner else aval.update(inner_aval=updated)
    if not is_of_program(aval):
        return aval
    updated = on_mesh(aval, jax.sharding.get_abstract_mesh())
    return (
        updated.update(manual_axis_type=jax.sharding.ManualAxisType())
        if hasattr(updated, "manual_axis_type")
        else updated
    )


def _literal(literal: Any) -> Any:
    if not is_of_program(literal.aval):
        return literal
    return type(literal)(literal_value(literal), _type(literal.aval))


# `searchsorted`: a primitive of JAX 0.12, and before it a jitted function that is recognised by its program

#: The methods by the names of their functions.
_SEARCH_METHODS: Final[Mapping[str, Sequence[str]]] = {
    "_searchsorted_scan_impl": ("scan", "scan_unrolled"),
    "_searchsorted_sort_impl": ("sort",),
    "_searchsorted_compare_all_impl": ("compare_all",),
}


class Search(NamedTuple):
    """The parameters of a search: the dim of the sorted array, and its number of batch dims."""

    side: str
    dimension: int = 0
    batch_dims: int = 0


def search_of(eqn: Any) -> Search | None:
    """The search of an equation, of a sorted array and queries, or None."""
    prim = eqn.params.get("_prim")
    if prim is not None:
        is_search = type(prim).__name__ == "SearchSorted" and type(prim).__module__.startswith("jax.")
        return Search(*(prim.params[key] for key in Search._fields)) if is_search else None
    if eqn.params.get("name") not in _SEARCH_METHODS or len(eqn.invars) != 2 or eqn.invars[0].aval.ndim != 1:
        return None
    avals = tuple(jax.core.ShapedArray(v.aval.shape, v.aval.dtype) for v in eqn.invars)
    return _search_programs(eqn.params["name"], avals).get(_program_text(eqn))


def _program_text(eqn: Any) -> str:
    """The program of a call, without broadcasts of numbers, which differ between releases."""
    return re.sub(r"= (full_like|broadcast_in_dim \S+:).*", "= full", str(jaxpr_of(eqn.params["jaxpr"])))


@functools.lru_cache(maxsize=256)
def _search_programs(name: str, avals: tuple[Any, ...]) -> Mapping[str, Search]:
    """The programs of searches in one array, as text."""
    programs: dict[str, Search] = {}
    for side, method in itertools.product(("left", "right"), _SEARCH_METHODS[name]):
        f = functools.partial(jax.numpy.searchsorted, side=side, method=method)
        with alone():
            closed, *_ = trace_plain(lambda *xs, f=f: [f(*xs)], avals)
        for jaxpr in (closed, needed(closed)[0]):  # which JAX 0.11 writes differently
            programs.update(
                (_program_text(eqn), Search(side)) for eqn in equations(jaxpr) if eqn.params.get("name") == name
            )
    return programs
