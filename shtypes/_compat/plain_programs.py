"""Plain programs of JAX: how one is traced without a mesh, and its equations bound again where they came from."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shtypes._compat import private
from shtypes._compat.annotations import replacements
from shtypes._compat.jaxprs import bound, jaxpr_of
from shtypes._compat.typed import type_of
from shtypes.context.ambient import current_ambient, scope

_source_info: Any = private("jax._src", "source_info_util")
_dce: Any = private("jax._src.interpreters.partial_eval", "dce_jaxpr")
_NO_MESH: Final = jax.sharding.AbstractMesh((), ())
_use_concrete_mesh: Any = private("jax._src.sharding_impls", "_internal_use_concrete_mesh")


def without_mesh() -> Any:
    """A scope in which JAX sees no mesh: plain programs keep their own meaning, whatever mesh is set."""
    return jax.sharding.use_abstract_mesh(_NO_MESH)


def _without_devices() -> contextlib.AbstractContextManager[Any]:
    """A scope in which arrays that JAX makes at once are on no mesh: constants of a program that has none."""
    if _use_concrete_mesh is None:
        return contextlib.nullcontext()
    manager: contextlib.AbstractContextManager[Any] = _use_concrete_mesh(jax.sharding.Mesh(np.empty((), object), ()))
    return manager


def _under_one_plan() -> contextlib.AbstractContextManager[None]:
    """A scope that is the same for all that `implicit_comm` tries: what sends nothing is traced once."""
    now = current_ambient()
    return scope(now._replace(plan=(), shared=False, tried=False, aim="")) if now.scopes else contextlib.nullcontext()


def needed(closed: Any) -> tuple[Any, tuple[Any, ...]]:
    """The open jaxpr without equations whose results nothing uses, and its constants."""
    jaxpr = jaxpr_of(closed)
    live, _ = _dce(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return live, tuple(closed.consts)


def as_written(eqn: Any, lines: Any) -> contextlib.AbstractContextManager[Any]:
    """Around what an equation is evaluated to: its name scopes, and the lines of ``lines``, JAX's stack of it."""
    if _source_info is None:
        return contextlib.nullcontext()
    names = _source_info.current_name_stack() + eqn.source_info.name_stack
    manager: contextlib.AbstractContextManager[Any] = _source_info.user_context(lines, name_stack=names)
    return manager


def _with_own_lines() -> contextlib.AbstractContextManager[Any]:
    """Equations that are traced in here say where they come from themselves, whatever is being evaluated around."""
    if _source_info is None:
        return contextlib.nullcontext()
    manager: contextlib.AbstractContextManager[Any] = _source_info.user_context(
        None, name_stack=_source_info.current_name_stack()
    )
    return manager


def implementation_of(eqn: Any) -> Callable[..., list[Any]] | None:
    """The function that a primitive of a third party runs, if all of it is in what JAX traces there; else None."""
    primitive = eqn.primitive
    impl: Any = getattr(primitive, "impl", None)
    own = impl
    while isinstance(own, functools.partial):  # as those of JAX's own are
        own = own.func
    module = getattr(inspect.unwrap(own), "__module__", None) or "" if callable(own) else ""
    if not module or module.partition(".")[0] in ("jax", "jaxlib"):
        return None

    def run(*xs: Any) -> list[Any]:
        outs = impl(*xs, **eqn.params)
        return list(outs) if primitive.multiple_results else [outs]

    return run


def has_transpose(eqn: Any) -> bool:
    """Whether the primitive of an equation says itself how it is transposed."""
    return eqn.primitive in ad.primitive_transposes


def bind_plain(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """An equation on plain arrays, under the settings that it was traced in."""
    with eqn.ctx.manager, without_mesh():
        return bound(eqn, operands)


# the trace


class _Thread(threading.local):
    tracing = 0


_thread: Final = _Thread()


def is_tracing_plain() -> bool:
    """Whether a plain program is being traced here for `lift`."""
    return _thread.tracing > 0


# typed values that a program closes over


class PlainPrimitive(Primitive):
    """A primitive of ours on plain arrays."""


def closed_over(x: Any) -> Any:
    """What a plain program that is being traced sees of a value: of a typed one, a plain array of its global shape.

    What makes it plain is an equation of the program, so that it is the typed value again where that is evaluated.
    """
    return x if type_of(x) is None else closed_over_p.bind(x)


def _no_constant(*values: Any) -> NoReturn:
    """What differentiates with respect to it in the program, or computes at once, is refused."""
    found = next(t for t in map(type_of, values) if t is not None)
    found.refuse_native("")


closed_over_p: Final = PlainPrimitive("closed_over")
closed_over_p.def_abstract_eval(lambda t: jax.core.ShapedArray(t.shape, t.dtype))
closed_over_p.def_impl(_no_constant)
ad.primitive_jvps[closed_over_p] = lambda primals, tangents: _no_constant(*primals)
batching.primitive_batchers[closed_over_p] = lambda operands, dims: (closed_over_p.bind(*operands), dims[0])


def sees_plain() -> bool:
    """Whether typed values are plain ones here: in a plain program that is being traced, on no mesh of its own."""
    return _thread.tracing > 0 and jax.sharding.get_abstract_mesh().empty


# provenance: what `jnp.zeros_like` was given


def _filled(x: Any, *, value: Any, dtype: Any) -> Any:
    return jax.lax.full(x.shape, value, dtype)


full_like_p: Final = PlainPrimitive("full_like")
full_like_p.def_impl(_filled)
full_like_p.def_abstract_eval(lambda x, *, value, dtype: x.update(dtype=dtype, weak_type=False))
mlir.register_lowering(full_like_p, mlir.lower_fun(_filled, multiple_results=False))


def _full_like_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    out = full_like_p.bind(*primals, **params)
    return out, ad.Zero(jax.typeof(out).to_tangent_aval())


ad.primitive_jvps[full_like_p] = _full_like_jvp
batching.primitive_batchers[full_like_p] = lambda args, dims, **params: (full_like_p.bind(*args, **params), dims[0])

_lax: Any = private("jax._src", "lax")
_lax_module: Any = private("jax._src.lax", "lax")
_places: Final = [m for m in (_lax_module, private("jax", "lax")) if m is not None and hasattr(m, "full_like")]
_loops: Final = [m for m in (private("jax._src.lax.control_flow", "loops"), private("jax", "lax")) if m is not None]
_own_full_like: Any = getattr(_lax_module, "full_like", None)


def _full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Any = None, sharding: Any = None) -> Any:
    """JAX's own, which keeps in the program what it is like."""
    x = closed_over(x) if sees_plain() else x
    same = isinstance(x, jax.core.Tracer) and (shape is None or tuple(shape) == x.shape) and sharding is None
    if not (is_tracing_plain() and same and isinstance(fill_value, (bool, int, float))):
        return _own_full_like(x, fill_value, dtype, shape, sharding=sharding)
    wanted = jax.dtypes.canonicalize_dtype(x.dtype if dtype is None else dtype, allow_extended_dtype=True)
    if not isinstance(wanted, np.dtype):  # keys
        return _own_full_like(x, fill_value, dtype, shape, sharding=sharding)
    return full_like_p.bind(x, value=fill_value, dtype=wanted)


@functools.cache
def _replaced() -> list[tuple[Any, str, Any, Any]]:
    """What is another function while a plain program is traced: the module, the name, that function, and JAX's own."""
    like = [(module, "full_like", _full_like, _own_full_like) for module in _places]
    loops = [(m, name, getattr(m, name)) for m in _loops for name in ("scan", "while_loop") if hasattr(m, name)]
    return like + [(m, name, _of_plain(own), own) for m, name, own in loops] + replacements(is_tracing_plain)


def _of_plain(own: Callable[..., Any]) -> Callable[..., Any]:
    """A loop of JAX's, which asks its operands what they are before any primitive does."""

    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        if sees_plain():
            args, kwargs = jax.tree.map(closed_over, (args, kwargs))
        return own(*args, **kwargs)

    return call


_lock: Final = threading.Lock()
_users = 0


@contextlib.contextmanager
def tracing_plain() -> Iterator[None]:
    """Around the trace of a plain program: no mesh; `zeros_like` keeps what it is like, and annotations are equations.

    Some functions of JAX are others while any thread is in here; other threads find JAX's own behind them.
    """
    global _users
    with _lock:
        _users += 1
        for module, name, ours, _ in _replaced():
            setattr(module, name, ours)
    _thread.tracing += 1
    try:
        with without_mesh(), _without_devices(), _under_one_plan():
            yield
    finally:
        _thread.tracing -= 1
        with _lock:
            _users -= 1
            if not _users:
                for module, name, _, own in _replaced():
                    setattr(module, name, own)


def trace_plain(f: Callable[..., Any], avals: Sequence[Any]) -> tuple[Any, list[Any], Any]:
    """The program of a function of plain arrays, and the structure of its results; JAX remembers it by the function.

    Between them are the values of traces around this one that the function closes over: the program's first arguments.
    """
    with tracing_plain(), _with_own_lines():
        traced = jax.jit(f).trace(*avals)
    return traced.jaxpr, list(getattr(traced, "_consts", ())), jax.tree.structure(traced.out_info)


__all__ = [
    "PlainPrimitive",
    "as_written",
    "bind_plain",
    "closed_over",
    "full_like_p",
    "has_transpose",
    "implementation_of",
    "is_tracing_plain",
    "needed",
    "sees_plain",
    "trace_plain",
    "tracing_plain",
    "without_mesh",
]
