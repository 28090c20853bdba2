"""The table of patches to JAX.

Each is for a capability that JAX's hooks for types do not reach. Programs of plain JAX run through JAX's code: the
replacements handle typed values, and call the original otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat import private
from shtypes._compat.native import by_operands, by_type
from shtypes._compat.program_mesh import allowed_in_program, in_program, pspec_in_program, shard_map_in_program
from shtypes._compat.typed import TypedType, is_typed_var, type_of
from shtypes.context.scope import attribute_set


class _Module:
    """A view of a JAX module with some functions replaced, to handle typed values."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def lowered_calls(original: Callable[..., Any]) -> Callable[..., Any]:
    """Lowers the closed call that `jax.checkpoint` makes of scan constants by evaluating its body."""

    def to_lojax(*args: Any, call_jaxpr: Any, **params: Any) -> Any:
        if not any(map(is_typed_var, (*call_jaxpr.jaxpr.invars, *call_jaxpr.jaxpr.outvars))):
            return original(*args, call_jaxpr=call_jaxpr, **params)
        return jax.core.eval_jaxpr(call_jaxpr.jaxpr, call_jaxpr.consts, *args)

    return to_lojax


def counted(original: Callable[..., Any]) -> Callable[..., Any]:
    """Infers the length of a `scan`, also from typed values."""

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


class _Broadcast(NamedTuple):
    """A predicate to be broadcast to what it selects; not broadcast for typed values."""

    pred: Any
    shape: Any
    dims: Any


class Selecting(_Module):
    """The ops module of JAX's `cond` and `switch`, which select under `vmap` with a mapped predicate."""

    broadcast_in_dim = staticmethod(_Broadcast)

    def select(self, pred: Any, on_true: Any, on_false: Any) -> Any:
        return self.select_n(pred, on_false, on_true)

    def select_n(self, which: Any, *cases: Any) -> Any:
        t, broadcast = type_of(cases[0]), isinstance(which, _Broadcast)
        if t is not None:
            return t.behaviour.select_n(which.pred if broadcast else which, cases)
        return self._module.select_n(self._module.broadcast_in_dim(*which) if broadcast else which, *cases)

    def stop_gradient(self, x: Any) -> Any:
        t = type_of(x)
        return self._module.stop_gradient(x) if t is None else t.behaviour.stop_gradient(x)


def seeded(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The first cotangent of `jax.grad`, for a typed loss by its type."""

    def seed(x: Any) -> Any:
        t = type_of(x)
        return original(x) if t is None else t.behaviour.seed(t)

    return seed


#: Maps a function of a `custom_vjp` or `custom_jvp`, its role (``"fwd"``, …), the object, and its undifferentiated
#: arguments to the function to run.
Scoped = Callable[[Callable[..., Any], str, Any, Sequence[Any]], Callable[..., Any]]
_scoped: list[Scoped] = []


class Scoping(_Module):
    """The function wrappers of JAX's `custom_vjp` and `custom_jvp` calls."""

    def wrap_init(self, f: Any, *args: Any, **options: Any) -> Any:
        caller = sys._getframe(1)
        kind, _, part = str(getattr(options.get("debug_info"), "traced_for", "")).partition(" ")
        if _scoped and caller.f_code.co_name == "__call__" and kind in ("custom_vjp", "custom_jvp"):
            locals_of_call = caller.f_locals
            native, call_args = locals_of_call.get("self"), locals_of_call.get("args", ())
            fixed = [call_args[i] for i in getattr(native, "nondiff_argnums", ()) if i < len(call_args)]
            f = _scoped[0](f, part, native, fixed)
        return self._module.wrap_init(f, *args, **options)


def run_custom_derivatives(scoped: Scoped) -> None:
    """Replaces the functions of JAX's `custom_vjp` and `custom_jvp` in each call by ``scoped``."""
    _scoped[:] = [scoped]


class Patch(NamedTuple):
    """A replaced attribute of JAX; docs/architecture.md describes the benefit for users."""

    module: str
    path: str  # the attribute, from the module
    replacement: Callable[[Any], Any]  # takes the original
    why: str  # what JAX lacks
    needed: Callable[[], bool] = lambda: True  # whether this release needs it
    last: str = ""  # the last release that needs it; empty if the newest does

    @property
    def name(self) -> str:
        """The full name of the attribute."""
        return f"{self.module}.{self.path}"

    def holder(self) -> tuple[Any, str]:
        """The object with the attribute, and the attribute's name."""
        *outer, name = self.path.split(".")
        return functools.reduce(getattr, outer, importlib.import_module(self.module)), name


def _has_no_lowering() -> bool:
    return "to_lojax" not in getattr(private("jax._src.core", "closed_call_p"), "__dict__", {})


PATCHES: Final = (
    Patch(
        *("jax._src.core", "Tracer.__init__", by_type),
        "one class for the tracers of all types, and `isinstance` asks for `ShapedArray`",
    ),
    Patch(
        *("jax._src.core", "Primitive.bind", by_operands),
        "`batching.broadcast` and `optimization_barrier` take arrays only, and `_remat_to_lojax` "
        "returns physical arrays; no rule of a primitive can be given by type",
    ),
    Patch(
        *("jax._src.core", "closed_call_p.to_lojax", lowered_calls),
        "`jax.checkpoint` makes a call of what does not change in a scan, without a lowering for types",
        needed=_has_no_lowering,
        last="0.11",
    ),
    Patch(
        *("jax._src.lax.control_flow.loops", "_infer_scan_length", counted),
        "of types that are not its own it asks for `length`, and believes it",
    ),
    Patch(
        *("jax._src.lax.control_flow.conditionals", "lax", Selecting),
        "the batching rule of `cond` applies `select_n` and `stop_gradient` to all results",
    ),
    Patch(
        *("jax._src.custom_derivatives", "lu", Scoping),
        "the functions of custom derivatives run in the context of the backward pass, not of the call",
    ),
    Patch(
        *("jax._src.lax.lax", "_one_vjp", seeded),
        "the first cotangent is made by `full_like`, which takes arrays only",
    ),
    Patch(
        *("jax._src.pjit", "_create_sharding_for_array", in_program),
        "a `PartitionSpec` needs a mesh of devices in context, and not only an abstract one",
    ),
    Patch(
        *("jax._src.pjit", "check_shardings_are_auto", allowed_in_program),
        "a constraint may name auto axes only",
    ),
    Patch(
        *("jax._src.api", "pspec_to_sharding", pspec_in_program),
        "it needs a mesh of devices in context, and not only an abstract one",
    ),
    Patch(
        *("jax._src.shard_map", "_shmap_checks", shard_map_in_program),
        "it wants the mesh in context, and that operands lie as ``in_specs`` say on explicit axes",
    ),
)

#: The installed patches, with original and replacement.
INSTALLED: Final[dict[Patch, tuple[Any, Any]]] = {}


def install() -> None:
    """Applies the patches that this release needs, once."""
    for patch in PATCHES:
        if patch in INSTALLED or not patch.needed():
            continue
        try:
            holder, name = patch.holder()
            original = getattr(holder, name)
        except (ImportError, AttributeError):
            continue  # this release has it elsewhere: a test of the capability tells whether it is needed
        INSTALLED[patch] = (original, patch.replacement(original))
        setattr(holder, name, INSTALLED[patch][1])


def without(patch: Patch) -> contextlib.AbstractContextManager[Any]:
    """Context manager that removes a patch, to see whether it is needed."""
    original, _ = INSTALLED[patch]
    return attribute_set(*patch.holder(), original)
