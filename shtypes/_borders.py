"""Where typed values meet what JAX has for plain arrays: a part of `_compat`.

Each repair acts only where a typed value is among the operands; for plain programs it is at most one check.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import jax
from jax.extend.core import Primitive

from shtypes._compat import private


def install_borders() -> None:
    """Has JAX take typed values for arrays where that means the same, and refuse them in our words elsewhere."""
    _shim_instances()
    _shim_operators()
    _shim_losses()
    _shim_jit_shardings()
    _shim_primitives()
    _shim_conversion()
    _shim_axis_sizes()
    _shim_bases()
    _shim_placing()


def _type_of(x: Any) -> Any:
    """The type of a typed value, as JAX has it; None of anything else."""
    try:
        t: Any = jax.typeof(x)
    except TypeError:
        return None
    return t if t.is_high and hasattr(t, "refuse_native") else None


# where they are arrays


def _shim_instances() -> None:
    """``isinstance(x, jax.Array)`` of tracers: libraries ask so which leaves of a tree are arrays."""
    tracer: Any = jax.core.Tracer
    original = getattr(tracer, "_is_traced_array", None)
    if original is not None:
        tracer._is_traced_array = lambda self: original(self) or hasattr(self.aval, "refuse_native")


#: The operators of a plain array, and the method of a typed value on the right that takes each over.
_REFLECTED: Final = {
    **{
        name: f"r{name}"
        for name in ("add", "sub", "mul", "truediv", "floordiv", "divmod", "mod", "pow", "matmul", "and", "or", "xor")
    },
    "lshift": "rlshift",
    "rshift": "rrshift",
    "eq": "eq",
    "ne": "ne",
    "lt": "gt",
    "le": "ge",
    "gt": "lt",
    "ge": "le",
}


def _shim_operators() -> None:
    """A traced plain array on the left of a typed tracer: Python does not ask the right one, which has the same class.

    JAX leaves an operation that it does not know, and only then the typed value is asked to take it over.
    """
    shaped: Any = jax.core.ShapedArray
    for name, reflected in _REFLECTED.items():
        original = getattr(shaped, f"_{name}", None)
        if original is not None:
            setattr(shaped, f"_{name}", staticmethod(_leaving(original, reflected)))


def _leaving(original: Callable[..., Any], reflected: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def operate(self: Any, other: Any, *rest: Any) -> Any:
        found = original(self, other, *rest)
        if found is NotImplemented:
            t = _type_of(other)
            return found if t is None else getattr(t, f"_{reflected}")(other, self, *rest)
        return found

    return operate


def operators_leave_to_us() -> bool:
    """Whether an operator of a traced plain array leaves to a typed value on its right what it does not know."""
    shaped: Any = jax.core.ShapedArray
    return getattr(getattr(shaped, "_mul", None), "__code__", None) is _LEAVING


_LEAVING: Final = _leaving(lambda: None, "").__code__  # all that are made there have one code


def _shim_losses() -> None:
    """`jax.grad` of a typed loss: what a scalar is, and the cotangent that it starts with, are for its type to say."""
    api, lax = private("jax._src", "api"), private("jax._src.lax", "lax")
    _typed_first(api, "_check_scalar", lambda t, loss: t.check_loss())
    _typed_first(lax, "_one_vjp", lambda t, loss: t.seed())


def _typed_first(module: ModuleType | None, name: str, of_typed: Callable[[Any, Any], Any]) -> None:
    """Has a function of JAX of one value do something else with a typed one."""
    original = getattr(module, name, None)
    if original is None:
        return

    def call(x: Any) -> Any:
        t = _type_of(x)
        return original(x) if t is None else of_typed(t, x)

    setattr(module, name, call)


# where they are none


def _shim_primitives() -> None:
    """JAX's own primitives refuse typed values in words of its own; only those that take arrays and nothing else."""
    original: Any = Primitive.is_high

    def is_high(self: Any, *avals: Any, **params: Any) -> bool:
        for aval in avals:
            if aval.is_high and hasattr(aval, "refuse_native") and _takes_arrays_only(self):
                aval.refuse_native("")
        return bool(original(self, *avals, **params))

    Primitive.is_high = is_high  # type: ignore[method-assign]


#: JAX's primitives that send or show plain arrays, and say of others nothing that a user could read.
_OF_ARRAYS: Final = frozenset(
    {
        *("psum", "pmax", "pmin", "ppermute", "pbroadcast", "psend", "all_to_all", "ragged_all_to_all"),
        *("all_gather", "all_gather_invariant", "all_gather_reduced", "reduce_scatter", "psum_invariant"),
        *("debug_callback", "debug_print", "pure_callback", "io_callback"),
    }
)


@functools.cache
def _takes_arrays_only(primitive: Any) -> bool:
    """Whether a primitive's typing is that of JAX's functions of arrays, which raises at once for anything else."""
    if primitive.name in _OF_ARRAYS:
        return True
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


def _shim_axis_sizes() -> None:
    """JAX's collectives ask how many devices an axis has before they look at their operands."""

    def refuse() -> None:
        caller = sys._getframe(3)  # of the failing function
        for x in jax.tree.leaves(list(caller.f_locals.values())):
            t = _type_of(x)
            if t is not None:
                t.refuse_native("")

    _after_failure(private("jax._src.lax", "parallel"), "_axis_size", NameError, lambda *args: refuse())


def _shim_bases() -> None:
    """`jax.jacfwd` and `jax.jacrev` make arrays of what they are given."""
    api = private("jax._src", "api")
    original = getattr(api, "_std_basis", None)
    if original is None:
        return

    def basis(tree: Any) -> Any:
        for leaf in jax.tree.leaves(tree):
            t = _type_of(leaf)
            if t is not None:
                t.refuse_native("")
        return original(tree)

    api._std_basis = basis


def _shim_placing() -> None:
    """`jax.device_put` refuses typed values from 0.11 on; `jax.device_get` reads them."""

    def refuse(x: Any, *_: Any, **__: Any) -> None:
        for leaf in jax.tree.leaves(x):
            t = _type_of(leaf)
            if t is not None:
                t.refuse_native("jax.device_put")

    api = private("jax._src", "api")
    for module in (jax, api):
        _after_failure(module, "device_put", NotImplementedError, refuse)
    # For keys it would look without end for what they are made of.
    _typed_first(api, "_device_get", lambda t, x: x if isinstance(x, jax.core.Tracer) else x.__array__())


def _after_failure(module: Any, name: str, kind: type[Exception], refuse: Callable[..., None]) -> None:
    """Has a function of JAX that fails look whether a typed value is to blame."""
    original = getattr(module, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except kind:
            refuse(*args, **kwargs)
            raise

    setattr(module, name, call)
