"""Everything that differs between JAX releases, or that JAX does not publish. Nothing else imports ``jax._src``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental.hijax import HiType, Zero, aval_method, aval_property, instantiate_zeros, is_undefined_primal
from jax.experimental.hijax import register_hitype as register_hitype
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

__all__ = [
    "HiPrimitive",
    "HiType",
    "Zero",
    "aval_method",
    "aval_property",
    "install_shims",
    "instantiate_zeros",
    "is_undefined_primal",
    "no_trace_is_running",
    "register_hitype",
]

VERSION: tuple[int, ...] = tuple(int(part) for part in jax.__version__.split(".")[:3])


class HiPrimitive(Primitive):
    """A primitive on typed values: what `jax.experimental.hijax` called so until 0.11.0, on every release.

    JAX asks ``is_high`` and ``to_lojax`` of it when it lowers; the other rules go into JAX's public tables.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        ad.primitive_jvps[self] = self.jvp
        ad.primitive_transposes[self] = self.transpose
        batching.fancy_primitive_batchers[self] = self.batch

    def is_high(self, *avals: Any, **params: Any) -> bool:
        return True

    def is_effectful(self, params: Any) -> bool:
        return False

    def abstract_eval(self, *avals: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` has no type rule")

    def to_lojax(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` cannot be lowered")

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` cannot be differentiated")

    def transpose(self, cts: Any, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` cannot be transposed")

    def batch(self, axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` cannot be mapped over")


def _private(module: str, name: str) -> Any:
    """A private JAX object, or None where this release has none."""
    import importlib

    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


_trace_state_clean: Callable[[], bool] | None = _private("jax._src.core", "trace_state_clean")


def no_trace_is_running() -> bool:
    """Whether an operation on concrete values would run at once; False where this JAX cannot tell."""
    return _trace_state_clean is not None and _trace_state_clean()


def _raise_all(avals: Sequence[Any], lo_values: Sequence[Any]) -> list[Any]:
    rest = iter(lo_values)
    return [a.raise_val(*[next(rest) for _ in a.lo_ty()]) if a.is_high else next(rest) for a in avals]


_installed = False


def install_shims() -> None:
    """Repairs what JAX's own lowering of typed values lacks, on 0.10.2 to 0.12: three gaps around `jax.checkpoint`.

    Each repair acts only where a typed value is among the operands or results.
    """
    global _installed
    if _installed:
        return
    _installed = True
    from jax.extend.core import primitives

    _shim_remat(primitives.remat_p)
    barrier = _private("jax._src.lax.lax", "optimization_barrier_p")
    if barrier is not None:
        _shim_barrier(barrier)
    closed_call = _private("jax._src.core", "closed_call_p")
    if closed_call is not None:
        _shim_closed_call(closed_call)


def _shim_remat(remat_p: Any) -> None:
    """`jax.checkpoint` evaluated outside jit returns its lowered results unraised."""
    original = remat_p.to_lojax

    def to_lojax(*args: Any, jaxpr: Any, **params: Any) -> Any:
        outs = original(*args, jaxpr=jaxpr, **params)
        avals = [v.aval for v in getattr(jaxpr, "jaxpr", jaxpr).outvars]
        return _raise_all(avals, outs) if any(a.is_high for a in avals) else outs

    remat_p.to_lojax = to_lojax


def _shim_barrier(barrier_p: Any) -> None:
    """`optimization_barrier`, which checkpoint puts around its operands, does not know typed values."""

    def to_lojax(*args: Any) -> Any:
        avals = [jax.typeof(x) for x in args]
        lowered = [lo for a, x in zip(avals, args, strict=True) for lo in (a.lower_val(x) if a.is_high else [x])]
        return _raise_all(avals, barrier_p.bind(*lowered))

    barrier_p.is_high = lambda *avals, **_: any(a.is_high for a in avals)
    barrier_p.to_lojax = to_lojax


def _shim_closed_call(closed_call_p: Any) -> None:
    """`checkpoint` of a `scan` evaluates a closed call that has no lowering for typed values."""

    def to_lojax(*args: Any, call_jaxpr: Any, **_: Any) -> Any:
        return jax.core.eval_jaxpr(call_jaxpr.jaxpr, call_jaxpr.consts, *args)

    closed_call_p.to_lojax = to_lojax
