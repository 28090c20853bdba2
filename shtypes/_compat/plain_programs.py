"""Plain programs of JAX: how one is traced without a mesh, and its equations bound again where they came from."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shtypes._compat import private
from shtypes._compat.jaxprs import bound, jaxpr_of
from shtypes.context.origin import Origin
from shtypes.context.whose import Whose, whose

_source_info: Any = private("jax._src", "source_info_util")
_dce: Any = private("jax._src.interpreters.partial_eval", "dce_jaxpr")
_NO_MESH: Final = jax.sharding.AbstractMesh((), ())


def without_mesh() -> Any:
    """A scope in which JAX sees no mesh: plain programs keep their own meaning, whatever mesh is set."""
    return jax.sharding.use_abstract_mesh(_NO_MESH)


def needed(closed: Any) -> tuple[Any, tuple[Any, ...]]:
    """The open jaxpr without equations whose results nothing uses, and its constants."""
    jaxpr = jaxpr_of(closed)
    live, _ = _dce(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return live, tuple(closed.consts)


# where an equation comes from

#: What users call the modules that a function of JAX is in.
_MODULES: Final = (
    ("/numpy/linalg", "jnp.linalg"),
    ("/numpy/fft", "jnp.fft"),
    ("/numpy/", "jnp"),
    ("/scipy/", "jax.scipy"),
    ("/nn/", "jax.nn"),
    ("/random", "jax.random"),
    ("/lax/", "jax.lax"),
)


def origin_of(eqn: Any) -> Origin:
    """The user's line that an equation comes from, and the function that was called there."""
    traceback = eqn.source_info.traceback
    if traceback is None:
        return Origin("", "")
    line = inmost = library = called = ""
    for code, last in zip(*traceback.raw_frames(), strict=True):  # innermost first
        kind = whose(code.co_filename)
        if kind is Whose.USERS:
            line = _words(code, last)
            break
        if kind is Whose.INSTALLED:
            library, inmost = _called(code), inmost or _words(code, last)
        called = _called(code) or called
    if not line:
        return Origin(inmost, called)
    return Origin(line + (f" (in {library})" if library else ""), called)


def _words(code: Any, last: int) -> str:
    positions = list(code.co_positions())
    line = positions[last // 2][0] if 0 <= last // 2 < len(positions) else code.co_firstlineno
    place = f"{code.co_filename.replace(chr(92), '/').rpartition('/')[2]}:{line}"
    return place if code.co_name == "<module>" else f"{place} in {code.co_name}"


def _called(code: Any) -> str:
    """A function as users call it: ``jnp.median``, ``optax.apply_updates``; empty for what they do not call by name."""
    file, function = code.co_filename.replace("\\", "/"), code.co_qualname.partition(".<locals>")[0]
    if "/jax/" in file:
        file = file.rpartition("/jax/")[2]
        module = next((name for part, name in _MODULES if part in f"/{file}"), "")
        return "" if not module or function.startswith(("_", "<")) else f"{module}.{function}"
    for site in ("/site-packages/", "/dist-packages/"):
        if site in file:
            return f"{file.rpartition(site)[2].partition('/')[0]}.{function}"
    return ""


def as_written(eqn: Any) -> contextlib.AbstractContextManager[Any]:
    """Around what an equation is evaluated to: its line and its name scopes."""
    if _source_info is None:
        return contextlib.nullcontext()
    names = _source_info.current_name_stack() + eqn.source_info.name_stack
    manager: contextlib.AbstractContextManager[Any] = _source_info.user_context(
        eqn.source_info.traceback, name_stack=names
    )
    return manager


def bind_plain(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """An equation on plain arrays, under the settings that it was traced in."""
    with eqn.ctx.manager, without_mesh():
        return bound(eqn, operands)


# provenance: what `jnp.zeros_like` was given


class _Thread(threading.local):
    tracing = 0


_thread: Final = _Thread()


def is_tracing_plain() -> bool:
    """Whether a plain program is being traced here for `lift`."""
    return _thread.tracing > 0


def _filled(x: Any, *, value: Any, dtype: Any) -> Any:
    return jax.lax.full(x.shape, value, dtype)


class PlainPrimitive(Primitive):
    """A primitive of ours on plain arrays."""


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
_own_full_like: Any = getattr(_lax_module, "full_like", None)


def _full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Any = None, sharding: Any = None) -> Any:
    """JAX's own, which keeps in the program what it is like."""
    same = isinstance(x, jax.core.Tracer) and (shape is None or tuple(shape) == x.shape) and sharding is None
    if not (is_tracing_plain() and same and isinstance(fill_value, (bool, int, float))):
        return _own_full_like(x, fill_value, dtype, shape, sharding=sharding)
    wanted = jax.dtypes.canonicalize_dtype(x.dtype if dtype is None else dtype, allow_extended_dtype=True)
    if not isinstance(wanted, np.dtype):  # keys
        return _own_full_like(x, fill_value, dtype, shape, sharding=sharding)
    return full_like_p.bind(x, value=fill_value, dtype=wanted)


_lock: Final = threading.Lock()
_users = 0


@contextlib.contextmanager
def tracing_plain() -> Iterator[None]:
    """Around the trace of a plain program: no mesh, and `zeros_like` keeps what it is like.

    `jax.lax.full_like` is another function while any thread is in here; other threads find JAX's own behind it.
    """
    global _users
    with _lock:
        _users += 1
        for module in _places:
            module.full_like = _full_like
    _thread.tracing += 1
    try:
        with without_mesh():
            yield
    finally:
        _thread.tracing -= 1
        with _lock:
            _users -= 1
            if not _users:
                for module in _places:
                    module.full_like = _own_full_like


def trace_plain(f: Callable[..., Any], avals: Sequence[Any]) -> tuple[Any, Any]:
    """The program of a function of plain arrays, and the structure of its results; JAX remembers it by the function."""
    with tracing_plain():
        traced = jax.jit(f).trace(*avals)
    return traced.jaxpr, jax.tree.structure(traced.out_info)


__all__ = [
    "PlainPrimitive",
    "as_written",
    "bind_plain",
    "full_like_p",
    "is_tracing_plain",
    "needed",
    "origin_of",
    "trace_plain",
    "tracing_plain",
    "without_mesh",
]
