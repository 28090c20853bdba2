"""Where typed values meet what JAX has for plain arrays: a part of `_compat`.

Each repair acts only where a typed value is among the operands; for plain programs it is at most one check.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.extend.core import Primitive

from shtypes._compat import private


def install_borders() -> None:
    """Has JAX refuse typed values in our words where it takes plain arrays only."""
    _shim_jit_shardings()
    _shim_primitives()
    _shim_conversion()


def _shim_primitives() -> None:
    """JAX's own primitives refuse typed values in words of its own; only those that take arrays and nothing else."""
    original: Any = Primitive.is_high

    def is_high(self: Any, *avals: Any, **params: Any) -> bool:
        for aval in avals:
            if aval.is_high and hasattr(aval, "refuse_native") and _takes_arrays_only(self):
                aval.refuse_native("")
        return bool(original(self, *avals, **params))

    Primitive.is_high = is_high  # type: ignore[method-assign]


@functools.cache
def _takes_arrays_only(primitive: Any) -> bool:
    """Whether a primitive's typing is that of JAX's functions of arrays, which raises at once for anything else."""
    cells = getattr(primitive.abstract_eval, "__closure__", None) or ()
    rules = (getattr(cell.cell_contents, "func", None) for cell in cells)
    return any(getattr(rule, "__name__", "").startswith("standard_") for rule in rules)


def _shim_conversion() -> None:
    """A traced value has no data for numpy: that of a typed one is said as for eager ones."""
    tracer: Any = jax.core.Tracer
    original = tracer.__array__

    def to_numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        t: Any = jax.typeof(self)
        if t.is_high and hasattr(t, "refuse_native"):
            t.refuse_native("a function of numpy")
        return original(self, *args, **kwargs)

    tracer.__array__ = to_numpy


def _shim_jit_shardings() -> None:
    """`jax.jit` up to 0.11 takes shardings for typed values, and moves their carriers; `jax.reshard` asserts."""
    pjit: Any = private("jax._src", "pjit")
    original = getattr(pjit, "pjit_check_aval_sharding", None)
    if original is None:
        return

    def check(shardings: Any, flat_avals: Any, *args: Any, **kwargs: Any) -> Any:
        for sharding, aval in zip(shardings, flat_avals, strict=False):
            if isinstance(sharding, jax.sharding.Sharding) and hasattr(aval, "refuse_sharding"):
                aval.refuse_sharding(by_jit="constraint" not in str(args))
        return original(shardings, flat_avals, *args, **kwargs)

    pjit.pjit_check_aval_sharding = check
    reshard_p: Any = getattr(pjit, "reshard_p", None)
    if reshard_p is not None:
        was_high = reshard_p.is_high

        def is_high(*avals: Any, **params: Any) -> bool:
            for aval in avals:
                if hasattr(aval, "refuse_sharding"):
                    aval.refuse_sharding(by_jit=False)
            return bool(was_high(*avals, **params))

        reshard_p.is_high = is_high
