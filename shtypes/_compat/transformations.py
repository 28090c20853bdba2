"""What JAX's transformations lack for typed values, each in the one place where it is missing; a part of `_compat`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from shtypes._compat.typed import TypedType, is_typed_var, type_of


class _Module:
    """A module of JAX's as another one of its modules sees it: with some functions that know typed values."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


# checkpoints


def lowered_calls(original: Callable[..., Any]) -> Callable[..., Any]:
    """The call that `jax.checkpoint` makes of what does not change in a scan: lowered by doing what it calls."""

    def to_lojax(*args: Any, call_jaxpr: Any, **params: Any) -> Any:
        if not any(map(is_typed_var, (*call_jaxpr.jaxpr.invars, *call_jaxpr.jaxpr.outvars))):
            return original(*args, call_jaxpr=call_jaxpr, **params)
        return jax.core.eval_jaxpr(call_jaxpr.jaxpr, call_jaxpr.consts, *args)

    return to_lojax


# loops


def counted(original: Callable[..., Any]) -> Callable[..., Any]:
    """The number of steps of a `scan`, which typed values have as arrays do."""

    def infer(xs: Sequence[Any], avals: Sequence[Any], length: Any) -> Any:
        typed = [t for t in avals if isinstance(t, TypedType)]
        if not typed:
            return original(xs, avals, length)
        counts = dict.fromkeys(t.steps() for t in typed)
        plain = [(x, t) for x, t in zip(xs, avals, strict=True) if not isinstance(t, TypedType)]
        if plain or length is not None:
            counts[original([x for x, _ in plain], [t for _, t in plain], length)] = None
        if len(counts) > 1:
            typed[0].refuse_steps(list(counts))
        return next(iter(counts))

    return infer


# branches


class _Broadcast(NamedTuple):
    """A predicate that is to have the shape of what it selects; for typed values it stays as it is."""

    pred: Any
    shape: Any
    dims: Any


class Selecting(_Module):
    """JAX's operations as its `cond` and `switch` see them: under `vmap` with a mapped predicate they select."""

    def broadcast_in_dim(self, pred: Any, shape: Any, dims: Any) -> Any:
        return _Broadcast(pred, shape, dims)

    def select(self, pred: Any, on_true: Any, on_false: Any) -> Any:
        t = type_of(on_true)
        if t is None:
            return self._module.select(self._broad(pred), on_true, on_false)
        return t.behaviour.selected(pred.pred if isinstance(pred, _Broadcast) else pred, [on_false, on_true])

    def select_n(self, which: Any, *cases: Any) -> Any:
        t = type_of(cases[0])
        if t is None:
            return self._module.select_n(self._broad(which), *cases)
        return t.behaviour.selected(which.pred if isinstance(which, _Broadcast) else which, cases)

    def stop_gradient(self, x: Any) -> Any:
        t = type_of(x)
        return self._module.stop_gradient(x) if t is None else t.behaviour.stopped(x)

    def _broad(self, pred: Any) -> Any:
        return self._module.broadcast_in_dim(*pred) if isinstance(pred, _Broadcast) else pred


# derivatives


def seeded(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The cotangent that `jax.grad` starts with, which is for a typed loss's type to say."""

    def seed(x: Any) -> Any:
        t = type_of(x)
        return original(x) if t is None else t.behaviour.seed(t)

    return seed


#: From a function of a `custom_vjp` or `custom_jvp`, what it is there (``"fwd"``, …), the object, and those of its
#: arguments that are not differentiated, to the function to run.
Scoped = Callable[[Callable[..., Any], str, Any, Sequence[Any]], Callable[..., Any]]
_scoped: list[Scoped] = []


class Scoping(_Module):
    """JAX's way to hold functions, as its `custom_vjp` and `custom_jvp` see it when they are called."""

    def wrap_init(self, f: Any, *args: Any, **options: Any) -> Any:
        caller = sys._getframe(1)
        kind, _, part = str(getattr(options.get("debug_info"), "traced_for", "")).partition(" ")
        if _scoped and caller.f_code.co_name == "__call__" and kind in ("custom_vjp", "custom_jvp"):
            held = caller.f_locals
            native, given = held.get("self"), held.get("args", ())
            fixed = [given[i] for i in getattr(native, "nondiff_argnums", ()) if i < len(given)]
            f = _scoped[0](f, part, native, fixed)
        return self._module.wrap_init(f, *args, **options)


def run_custom_derivatives(scoped: Scoped) -> None:
    """Has the functions of JAX's own `custom_vjp` and `custom_jvp` run as others, call by call."""
    _scoped[:] = [scoped]
