"""The public function that a row of `OPS` describes, with JAX's signature and documentation."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import numpy as np

from shtypes.context.signature_errors import refuse_unknown
from shtypes.core.eager_cache import published
from shtypes.dispatch.apply import dtype_name
from shtypes.errors import ShardingTypeError
from shtypes.ops.jax_functions import JaxFunction
from shtypes.ops.rows import Op
from shtypes.types import dtypes

#: Parameters that are dtypes, which may also be short names such as "bf16".
_DTYPES: Final = frozenset({"dtype", "new_dtype", "out_dtype", "preferred_element_type"})


def _pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """As `jax.numpy.pad`, or, with a padding value and what is before, after and between elements, `jax.lax.pad`."""
    if isinstance(mode, str) or callable(mode):
        return jax.numpy.pad(array, pad_width, mode, **kwargs)
    return jax.lax.pad(array, jax.numpy.asarray(pad_width, array.dtype), mode, **kwargs)


def _compress(condition: Any, a: Any, axis: Any = None, *, size: Any = None, fill_value: Any = 0) -> Any:
    """As `jax.numpy.compress`; a constant condition needs no size where JAX traces, too."""
    if size is not None or isinstance(condition, jax.core.Tracer):
        return jax.numpy.compress(condition, a, axis, size=size, fill_value=fill_value)
    return jax.numpy.take(a, np.flatnonzero(condition), axis)


def _polyval(p: Any, x: Any, *, unroll: int = 16) -> Any:
    """As `jax.numpy.polyval`, by products and sums: in the coefficients it is linear."""
    p, x = jax.numpy.asarray(p), jax.numpy.asarray(x)
    y = jax.numpy.zeros(np.broadcast_shapes(p.shape[1:], x.shape), jax.numpy.result_type(p, x))
    for i in range(p.shape[0]):
        y = y * x + p[i]
    return y


def _with_default(fn: Callable[..., Any], **defaults: Any) -> Callable[..., Any]:
    """A function of JAX with other defaults, where JAX refuses its defaults."""
    parameters = [p.replace(default=defaults.get(p.name, p.default)) for p in inspect.signature(fn).parameters.values()]
    signature = inspect.signature(fn).replace(parameters=parameters)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return fn(*bound.args, **bound.kwargs)

    call.__signature__ = signature  # type: ignore[attr-defined]  # what `inspect` reads
    return call


#: Rows whose function is not JAX's alone.
_NATIVE: Final[Mapping[str, Callable[..., Any]]] = {
    "compress": _compress,
    "fill_diagonal": _with_default(jax.numpy.fill_diagonal, inplace=False),
    "pad": _pad,
    "place": _with_default(jax.numpy.place, inplace=False),
    "polyval": _polyval,
    "put": _with_default(jax.numpy.put, inplace=False),
    "put_along_axis": _with_default(jax.numpy.put_along_axis, inplace=False),
    "ravel_multi_index": _with_default(jax.numpy.ravel_multi_index, mode="clip"),
}
_DOC: Final = """{first}

    `{path}` of typed values. {typed}
    """


def native_of(op: Op) -> Callable[..., Any] | None:
    """The function of JAX that a row names; None if the installed release lacks it."""
    module, _, attr = op.jax.rpartition(".")
    return _NATIVE.get(op.name) or getattr(importlib.import_module(module), attr, None)


def function_of(op: Op) -> Callable[..., Any]:
    """The public function that a row describes."""
    name = op.name.rpartition(".")[2]
    native = native_of(op)
    if native is None:
        return _missing_function(op, name)
    inner = JaxFunction(op.name, native)
    signature = with_out(inspect.signature(native))
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    names = [] if open_ended else [*signature.parameters]

    def call(*args: Any, **kwargs: Any) -> Any:
        if names:
            refuse_unknown(name, kwargs, names)
        bound = signature.bind(*args, **kwargs)
        for parameter in _DTYPES & bound.arguments.keys():
            if isinstance(dtype := bound.arguments[parameter], str):
                bound.arguments[parameter] = dtypes.to_numpy(dtype_name(dtype))
        out = bound.arguments.pop("out", None)
        return inner.into(out, *bound.args, **bound.kwargs)

    doc = _DOC.format(first=(inspect.getdoc(native) or "").partition("\n")[0], path=op.jax, typed="")
    return published(call, name, doc, signature)


def _missing_function(op: Op, name: str) -> Callable[..., Any]:
    """A function that raises: the installed release of JAX lacks it."""

    def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        raise ShardingTypeError(f"the installed JAX has no `{op.jax}`", hints=["a newer release of JAX"])

    doc = f"`{op.jax}` of typed values, for releases of JAX that have it."
    return published(call, name, doc, inspect.signature(call))


def with_out(signature: inspect.Signature) -> inspect.Signature:
    """A signature with ``out``: in JAX's position if it has one, else by keyword."""
    out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
    if "out" in signature.parameters:
        replaced = [out.replace(kind=p.kind) if p.name == "out" else p for p in signature.parameters.values()]
        return signature.replace(parameters=replaced)
    parameters = list(signature.parameters.values())
    at = len(parameters) - sum(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    return signature.replace(parameters=[*parameters[:at], out, *parameters[at:]])
