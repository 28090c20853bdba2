"""Annotations of shardings in plain programs that are traced without a mesh: each is kept as one equation.

JAX reads a `PartitionSpec` by the mesh in context, and refuses it without one. With a mesh, its own functions place
what they compute: `jnp.where(a > 0, a, 0)` gets reshards that nobody wrote. So the functions of its public modules that
take annotations are others while a plain program is traced.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shtypes._compat import private

#: The class of ``x.at[index]``, whose methods take annotations.
_indexed: Any = private("jax._src.numpy.array_methods", "_IndexUpdateRef")


class Annotation(Primitive):
    """The primitive of ours that an annotation is. Its ``spec`` says nothing of the dims ``mapped``, of `jax.vmap`."""


annotation_p: Final = Annotation("sharding_annotation")
annotation_p.def_impl(lambda x, *, spec, mapped: x)
annotation_p.def_abstract_eval(lambda x, *, spec, mapped: x)
mlir.register_lowering(annotation_p, lambda _, x, *, spec, mapped: [x])
ad.deflinear2(annotation_p, lambda ct, _, *, spec, mapped: [ct])  # what is said of a value, not of its cotangent


def _batched(args: Any, dims: Any, *, spec: Any, mapped: tuple[int, ...]) -> Any:
    (x,), (d,) = args, dims
    return annotation_p.bind(x, spec=spec, mapped=(d, *(m + (m >= d) for m in mapped))), d


batching.primitive_batchers[annotation_p] = _batched


def _is_annotation(s: Any) -> bool:
    """Whether a program says it; JAX hands on the shardings of its own values, which without a mesh say nothing."""
    return isinstance(s, jax.P) or (isinstance(s, jax.sharding.NamedSharding) and not s.mesh.empty)


def _annotated(x: Any, shardings: Any) -> Any:
    """A tree of arrays with a tree of annotations, which may end above its leaves."""

    def below(s: Any, part: Any) -> Any:
        if not _is_annotation(s):
            return part
        spec = s if isinstance(s, jax.P) else s.spec
        return jax.tree.map(lambda leaf: annotation_p.bind(jax.numpy.asarray(leaf), spec=spec, mapped=()), part)

    return jax.tree.map(below, shardings, x, is_leaf=lambda s: s is None or _is_annotation(s))


def _of_constraint(own: Callable[..., Any], holds: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(own)
    def call(x: Any, shardings: Any, *args: Any, **kwargs: Any) -> Any:
        return _annotated(x, shardings) if holds() else own(x, shardings, *args, **kwargs)

    return call


def _of_put(own: Callable[..., Any], holds: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(own)
    def call(x: Any, device: Any = None, **kwargs: Any) -> Any:
        return _annotated(x, device) if holds() and _is_annotation(device) else own(x, device, **kwargs)

    return call


def _of_result(own: Callable[..., Any], holds: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not holds() or not _is_annotation(kwargs.get("out_sharding")):
            return own(*args, **kwargs)
        spec = kwargs.pop("out_sharding")
        return _annotated(own(*args, **kwargs), spec)

    return call


def replacements(holds: Callable[[], bool]) -> list[tuple[Any, str, Any, Any]]:
    """What takes annotations: the module, the name, what keeps them as equations while ``holds()``, and JAX's own."""
    found = []
    for module, name in ((jax.lax, "with_sharding_constraint"), (jax, "reshard"), (jax.sharding, "reshard")):
        own = getattr(module, name, None)
        if own is not None:
            found.append((module, name, _of_constraint(own, holds), own))
    found.append((jax, "device_put", _of_put(jax.device_put, holds), jax.device_put))
    for module in (jax.numpy, jax.lax, jax.random, _indexed):
        for name, own in list(getattr(module, "__dict__", {}).items()):
            if not name.startswith("_") and callable(own) and not isinstance(own, type) and _takes_out_sharding(own):
                found.append((module, name, _of_result(own, holds), own))
    return found


def _takes_out_sharding(fn: Any) -> bool:
    """Whether a function of JAX has such a parameter, by its code: its signature takes ten times as long to make."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return code is not None and "out_sharding" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


__all__ = ["annotation_p", "replacements"]
