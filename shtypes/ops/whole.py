"""Functions of `jax.numpy` applied along dims that every device holds whole: one local function, whatever it makes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp

from shtypes import rules
from shtypes.caches import MOST
from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public
from shtypes.core.elementwise_fns import NamedFn
from shtypes.core.shard_fn import Linear, ShardFn, as_tuple, promotion, static_params
from shtypes.dispatch.apply import apply, apply_all, lift
from shtypes.errors import ShardingTypeError
from shtypes.ops.reduce import normalize_dims
from shtypes.types import ShType, dtypes


def function(name: str, fn: Callable[..., Any], *, linear: bool = False, **params: Any) -> NamedFn:
    """A local function from one of JAX's and its static parameters, which its name shows."""
    given = static_params(name, sorted(params.items()))
    shown = [f"{k}={v}".replace(" ", "") for k, v in given if v not in (None, False) and not callable(v)]
    full = f"{name}[{', '.join(shown)}]" if shown else name
    return NamedFn(full, fn, given, Linear.JOINTLY if linear else Linear.NO)


_NO_MESH: Final = jax.sharding.AbstractMesh((), ())


def made(fn: ShardFn, *operands: tuple[tuple[int, ...], str]) -> Any:
    """The shapes and dtypes that a function makes of operands of these, in the structure in which it gives them.

    Raises:
        ShardingTypeError: JAX refuses the operands or a parameter.
    """
    return _made(fn, operands, promotion())


@functools.lru_cache(maxsize=MOST)
def _made(fn: ShardFn, operands: tuple[tuple[tuple[int, ...], str], ...], promotion: tuple[Any, ...]) -> Any:
    structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in operands]
    try:
        with jax.sharding.use_abstract_mesh(_NO_MESH):  # JAX's own sharding rules do not matter here
            return jax.eval_shape(fn, *structs)
    except (TypeError, ValueError, IndexError, NotImplementedError) as error:
        given = " and ".join(f"{dtype}{list(shape)}" for shape, dtype in operands)
        raise ShardingTypeError(f"`{fn}` cannot be applied to {given}", why=str(error).strip().split("\n")[0]) from None


def apply_whole(
    name: str,
    fn: ShardFn,
    x: Any,
    along: Sequence[int],
    sources: Sequence[Sequence[int | None]] | None = None,
    linear: bool | None = None,
) -> Array:
    """As `apply_whole_tree`, of a function that has one result."""
    result: Array = apply_whole_tree(name, fn, x, along, sources, linear)
    return result


def apply_whole_tree(
    name: str,
    fn: ShardFn,
    x: Any,
    along: Sequence[int],
    sources: Sequence[Sequence[int | None]] | None = None,
    linear: bool | None = None,
) -> Any:
    """Applies a local function of one typed operand along ``along``, which must be whole; gives the tree that it gives.

    Args:
        name: The op, for messages.
        fn: The local function; linear or not.
        x (...): The operand.
        along: The dims, from the front, that the function acts along.
        sources: For each result and each of its dims, the dim of the operand that it was; each its own by default.
        linear: Whether an unreduced operand is taken; what the function is, if not said.
    """
    t = jax.typeof(x)
    outs = made(fn, (t.shape, t.dtype_name))
    flat = as_tuple(outs)
    if sources is None:
        sources = [range(len(o.shape)) for o in flat]
    results = tuple(
        rules.WholeResult(dtypes.from_numpy(o.dtype), tuple(zip(map(int, o.shape), source, strict=True)))
        for o, source in zip(flat, sources, strict=True)
    )
    dims, takes_unreduced = tuple(sorted(set(along))), fn.linear is not Linear.NO if linear is None else linear

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return rules.whole(name, types[0], dims, results, takes_unreduced)

    values = apply_all(name, fn, rule, [x])
    return jax.tree.unflatten(jax.tree.structure(outs), values)


def reduced(
    name: str, fn: Callable[..., Any], x: Any, axis: int | Sequence[int] | None, keepdims: bool, **params: Any
) -> Array:
    """A reduction over dims, as one local function."""
    dims = normalize_dims(axis, jax.typeof(x).ndim, name)
    given = dims[0] if isinstance(axis, int) else None if axis is None else dims
    return reduced_by(name, function(name, fn, axis=given, keepdims=bool(keepdims), **params), x, dims, keepdims)


def reduced_by(name: str, fn: ShardFn, x: Any, dims: tuple[int, ...], keepdims: bool) -> Array:
    """A reduction over ``dims`` by a local function that makes one result."""
    t = jax.typeof(x)
    dtype = dtypes.from_numpy(made(fn, (t.shape, t.dtype_name)).dtype)
    return apply(name, fn, lambda types: rules.reduce_nonlinear(name, types[0], dims, keepdims, dtype), x)


@public
def frexp(x: ArrayLike) -> tuple[Array, Array]:
    """The mantissa and the exponent of each element, as `jax.numpy.frexp`, which releases of JAX have as a primitive.

    Per axis: every state but unreduced is kept. Communicates: nothing.
    """
    ((x,), _) = lift([x])
    found: tuple[Array, Array] = apply_whole_tree("frexp", function("frexp", jnp.frexp), x, [])
    return found
