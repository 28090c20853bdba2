"""Repairs of what JAX's transformations lack for typed values, on 0.10.2 to 0.12: a part of `_compat`.

Each acts only where a typed value is among the operands or results; for plain programs it is at most one check.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import primitives

from shtypes._borders import install_borders
from shtypes._compat import private


def _raise_all(avals: Sequence[Any], lo_values: Sequence[Any]) -> list[Any]:
    rest = iter(lo_values)
    return [a.raise_val(*[next(rest) for _ in a.lo_ty()]) if a.is_high else next(rest) for a in avals]


_installed = False


def install_shims() -> None:
    """Repairs what JAX lacks for typed values, on 0.10.2 to 0.12: around checkpoints, in `cond`, at its borders."""
    global _installed
    if _installed:
        return
    _installed = True
    install_borders()
    _shim_remat(primitives.remat_p)
    barrier = private("jax._src.lax.lax", "optimization_barrier_p")
    if barrier is not None:
        _shim_barrier(barrier)
    _shim_custom_lin(private("jax._src.interpreters.ad", "custom_lin_p"))
    closed_call = private("jax._src.core", "closed_call_p")
    if closed_call is not None:
        _shim_closed_call(closed_call)
    conditionals = private("jax._src.lax.control_flow", "conditionals")
    if hasattr(getattr(conditionals, "lax", None), "asarray"):
        conditionals.lax = _KeepsTyped(conditionals.lax)
        _shim_mapped_branches(conditionals)
    _shim_repetition(private("jax._src.interpreters", "batching"))


def _shim_remat(remat_p: Any) -> None:
    """`jax.checkpoint` evaluated outside jit returns its lowered results unraised."""
    original = remat_p.to_lojax

    def to_lojax(*args: Any, jaxpr: Any, **params: Any) -> Any:
        outs = original(*args, jaxpr=jaxpr, **params)
        avals = [v.aval for v in getattr(jaxpr, "jaxpr", jaxpr).outvars]
        return _raise_all(avals, outs) if any(a.is_high for a in avals) else outs

    remat_p.to_lojax = to_lojax


def _shim_custom_lin(custom_lin_p: Any) -> None:
    """What a `custom_vjp` is in forward mode: JAX says that there is none, but for typed values not in these words."""
    if custom_lin_p is None:
        return

    def to_lojax(*args: Any, **_: Any) -> Any:
        next(t for t in map(jax.typeof, args) if t.is_high).refuse_forward()

    custom_lin_p.is_high = lambda *avals, **_: any(a.is_high for a in avals)
    custom_lin_p.to_lojax = to_lojax


def _shim_barrier(barrier_p: Any) -> None:
    """`optimization_barrier`, which checkpoint puts around its operands, does not know typed values."""

    def to_lojax(*args: Any) -> Any:
        avals = [jax.typeof(x) for x in args]
        lowered = [lo for a, x in zip(avals, args, strict=True) for lo in (a.lower_val(x) if a.is_high else [x])]
        return _raise_all(avals, barrier_p.bind(*lowered))

    barrier_p.is_high = lambda *avals, **_: any(a.is_high for a in avals)
    barrier_p.to_lojax = to_lojax


def shim_custom_derivatives(replaced: Callable[[Any, Any], Any]) -> None:
    """Lets JAX's own `custom_vjp` and `custom_jvp` run as another one, call by call.

    Args:
        replaced: From one of them and the arguments of a call to the one to run.
    """
    for kind in (jax.custom_vjp, jax.custom_jvp):
        _shim_call(kind, kind.__call__, replaced)


def _shim_call(kind: Any, original: Any, replaced: Callable[[Any, Any], Any]) -> None:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(replaced(self, (args, kwargs)), *args, **kwargs)

    kind.__call__ = call


def _shim_closed_call(closed_call_p: Any) -> None:
    """`checkpoint` of a `scan` evaluates a closed call that has no lowering for typed values."""

    def to_lojax(*args: Any, call_jaxpr: Any, **_: Any) -> Any:
        return jax.core.eval_jaxpr(call_jaxpr.jaxpr, call_jaxpr.consts, *args)

    closed_call_p.to_lojax = to_lojax


class _KeepsTyped:
    """JAX's module of operations as its `cond` and `switch` see it.

    What every branch passes on as it is goes past the conditional through ``asarray``, which refuses typed values.
    """

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def asarray(self, x: Any) -> Any:
        return x if jax.typeof(x).is_high else self._module.asarray(x)

    def stop_gradient(self, x: Any) -> Any:
        t: Any = jax.typeof(x)
        return t.stopped(x) if t.is_high else self._module.stop_gradient(x)


def _shim_mapped_branches(conditionals: Any) -> None:
    """`cond` under `vmap` with a mapped predicate selects among the results of all branches."""
    for name, order in (("_bcast_select", (1, 0)), ("_bcast_select_n", None)):
        original = getattr(conditionals, name, None)
        if original is not None:
            setattr(conditionals, name, _selecting(original, order))


def _shim_repetition(batching: Any) -> None:
    """`vmap` repeats what is not mapped where a loop, a branch or a result has to be."""
    original = getattr(batching, "broadcast", None)
    if original is None:
        return

    def broadcast(x: Any, size: int, axis: int, *args: Any, **kwargs: Any) -> Any:
        t: Any = jax.typeof(x)
        return t.repeated(x, size, axis) if t.is_high else original(x, size, axis, *args, **kwargs)

    batching.broadcast = broadcast


def _selecting(original: Any, order: tuple[int, ...] | None) -> Any:
    def select(which: Any, *cases: Any) -> Any:
        t: Any = jax.typeof(cases[0])
        if not t.is_high:
            return original(which, *cases)
        return t.selected(which, cases if order is None else [cases[i] for i in order])

    return select
