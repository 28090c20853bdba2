"""Makes functions of typed values from JAX's elementwise functions.

Operands broadcast as in numpy. Python numbers and plain concrete arrays are constants: they take any state. A plain
traced array enters with the type that JAX's type means. Nothing here communicates.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax.numpy as jnp

from shtypes import rules
from shtypes.context.signature_errors import refuse_unknown
from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import published
from shtypes.core.elementwise_fns import NamedFn
from shtypes.core.shard_fn import Linear, ShardFn
from shtypes.dispatch.apply import apply, as_operands, is_number, result_dtype
from shtypes.errors import ShardingTypeError


def apply_linear(name: str, fn: ShardFn, x: ArrayLike) -> Array:
    """Applies a linear function of one operand: the result has the operand's states, unreduced too."""
    ((x,), _) = as_operands([x])
    dtype = result_dtype(fn, [x])
    return apply(name, fn, lambda types: rules.linear_unary(name, types[0], dtype), x)


def apply_nonlinear(name: str, fn: Callable[..., Any], xs: Sequence[Any], params: dict[str, Any]) -> Array:
    """Applies a nonlinear function of operands, some of which may be Python numbers."""
    if all(map(is_number, xs)):
        raise ShardingTypeError(f"`{name}` was given numbers only", hints=[f"jax.numpy.{name}"])
    for keyword, value in params.items():
        if isinstance(value, (list, tuple)):
            raise ShardingTypeError(f"`{keyword}` of `{name}` is one number, not {value!r:.40}")
    arrays, constants = as_operands([x for x in xs if not is_number(x)])
    static = tuple(sorted(params.items()))
    numbers = tuple(x if is_number(x) else None for x in xs) if len(arrays) < len(xs) else ()
    local_fn = NamedFn(name, fn, static, numbers=numbers, per_element=True)
    dtype = result_dtype(local_fn, arrays)
    return apply(name, local_fn, lambda types: rules.nonlinear(name, types, dtype, constants), *arrays)


_DOC: Final = """{first}

    `{native}` of typed values, element by element.

    Args:
        {operands} (...): {what}; Python numbers take any state.

    Returns:
        (...): The result; sharded, replicated and varying states are kept, sharded with replicated gives sharded.

    Raises:
        ShardingTypeError: an operand is unreduced (the function is not linear), or they are sharded differently.

    Communicates: nothing. Transpose: by JAX, element by element.
    """


def nonlinear(name: str, native: Callable[..., Any], signature: inspect.Signature, arity: int) -> Callable[..., Array]:
    """The public op of a nonlinear elementwise function of JAX with ``arity`` operands.

    The signature has the operands, then the parameters.
    """
    names = list(signature.parameters)
    operands, params = names[:arity], names[arity:]

    def op(*xs: Any, **keywords: Any) -> Array:
        if len(xs) > len(names):
            raise ShardingTypeError(f"`{name}` takes {arity} operands, not {len(xs)}")
        keywords = {**dict(zip(params, xs[arity:], strict=False)), **keywords}
        values = [*xs[:arity], *(keywords.pop(x) for x in operands[len(xs) :] if x in keywords)]
        refuse_unknown(name, keywords, params)
        if len(values) < arity:
            raise ShardingTypeError(f"`{name}` takes {arity} operands, not {len(values)}")
        return apply_nonlinear(name, native, values, keywords)

    what = "The operand" if arity == 1 else f"The {arity} operands, which broadcast"
    said = {"first": _first_line(native), "native": _path(native, name), "operands": ", ".join(operands), "what": what}
    return published(op, name, _DOC.format(**said), signature)


def linear(name: str, native: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Array]:
    """The public op of a linear elementwise function of JAX of one operand."""

    def op(x: ArrayLike) -> Array:
        return apply_linear(name, NamedFn(name, native, linear=Linear.JOINTLY), x)

    doc = f"""{_first_line(native)}

    `{_path(native, name)}` of typed values: linear, so every state is kept. Communicates: nothing.
    """
    return published(op, name, doc, signature)


def _path(native: Callable[..., Any], name: str) -> str:
    return f"{native.__module__.replace('jax._src.', 'jax.')}.{name}"


def _first_line(native: Callable[..., Any]) -> str:
    """The first line of JAX's documentation of a function."""
    return (inspect.getdoc(native) or "").partition("\n")[0]


@functools.cache  # one result per function, as the key of compiled code
def broadcasting(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `jax.lax`, which needs operands of one shape and dtype, as one of operands that broadcast."""

    def broadcast(*xs: Any) -> Any:
        dtype = jnp.result_type(*xs)
        return fn(*jnp.broadcast_arrays(*(jnp.asarray(x, dtype) for x in xs)))

    return broadcast
