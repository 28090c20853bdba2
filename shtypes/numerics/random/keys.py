"""Keys: from seeds, from other keys, and from words."""

from __future__ import annotations

import operator
from typing import Any

import jax
import numpy as np

from shtypes import rules
from shtypes.core.checkpoints import note_key_data
from shtypes.core.eager_cache import public
from shtypes.core.jax_type import HiShType
from shtypes.core.meshes import context_mesh, to_mesh, use_mesh
from shtypes.dispatch.apply import all_replicated, apply, as_operands, is_number, is_typed
from shtypes.errors import ShardingTypeError
from shtypes.numerics.random.draw import KeyFn, as_key, key_of_seed
from shtypes.rules.along_dims import ResultDims
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import current_mesh


@public
def key(seed: Any, *, impl: str | None = None, dtype: Any = None, mesh: Any = None) -> Any:
    """A key, replicated over the mesh.

    Args:
        seed: An integer, or a scalar integer value.
        impl: The generator, as in `jax.random.key`; only the default (threefry) can sample sharded arrays.
        dtype: The dtype of its keys, instead of its name.
        mesh: The mesh; by default the one in context.

    Communicates: nothing.
    """
    impl, name = _generator(impl, dtype)
    if is_number(seed) or isinstance(seed, np.integer):
        where = current_mesh() if mesh is None else to_mesh(mesh)
        try:
            number = operator.index(seed)
        except TypeError:
            raise ShardingTypeError(f"a seed is an integer, not {seed!r:.40}") from None
        return key_of_seed(number, impl, ShType(where, name, [], all_replicated(where)))
    ((value,), _) = as_operands([seed])
    t = jax.typeof(value)
    if t.ndim or not jax.numpy.issubdtype(t.dtype, jax.numpy.integer):
        raise ShardingTypeError(f"a seed is one integer, not {t}", hints=["sh.vmap of sh.random.key, for many"])
    return _apply_elementwise("key", name, value, impl=impl)


def _generator(impl: str | None, dtype: Any) -> tuple[str | None, str]:
    """The name and key dtype of a generator, from either."""
    if dtype is not None:
        name = dtypes.from_any(dtype)
        if impl is not None or not dtypes.is_key(name):
            raise ShardingTypeError(f"a key has a generator's name or a dtype of keys, not {impl!r} and `{name}`")
        impl = dtypes.key_impl(name)
    return impl, dtypes.from_numpy(jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype)


def _apply_elementwise(name: str, dtype: str, *operands: Any, **params: Any) -> Any:
    """Applies an elementwise function of keys and integers."""
    fn = KeyFn(name, getattr(jax.random, name), tuple(params.items()))
    return apply(name, fn, lambda types: rules.nonlinear(name, types, dtype), *operands)


def _apply_to_one(
    name: str, dtype: str, dims: list[tuple[int, int | None]], x: Any, along: tuple[int, ...] = (), **params: Any
) -> Any:
    """Applies a function of one operand; ``dims``: the result sizes with source dims; ``along``: unsharded dims."""
    fn, result = KeyFn(name, getattr(jax.random, name), tuple(params.items())), ResultDims(dtype, tuple(dims))
    return apply(name, fn, lambda types: rules.unary_along(name, types[0], along, (result,), False), x)


@public
def split(key: Any, num: int = 2) -> Any:
    """New keys from one, as `jax.random.split`.

    Args:
        key (): A key.
        num: The number of keys.

    Returns:
        (num): Keys, replicated or varying as the key; unpack with ``a, b = split(key)`` or ``keys[i]``.

    Communicates: nothing.
    """
    key = as_key("split", key)
    count = operator.index(num)
    return _apply_to_one("split", jax.typeof(key).dtype_name, [(count, None)], key, num=count)


@public
def fold_in(key: Any, data: Any) -> Any:
    """A new key from a key and an integer, as `jax.random.fold_in`.

    Args:
        key (): A key.
        data (): An integer, or a scalar integer value; if it varies, so does the new key.

    Communicates: nothing.
    """
    key = as_key("fold_in", key)
    name = jax.typeof(key).dtype_name
    if is_number(data):
        return _apply_elementwise("fold_in", name, key, data=operator.index(data))
    (key, data), _ = as_operands([key, data])
    return _apply_elementwise("fold_in", name, key, data)


@public
def key_data(keys: Any) -> Any:
    """The words of a key, as `jax.random.key_data`.

    Args:
        keys (): A key.
    """
    return _words(as_key("key_data", keys))


def _words(keys: Any) -> Any:
    """The words of one key or of several; dims of keys keep their sharding."""
    t = jax.typeof(keys)
    words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), t.dtype)).shape
    return _apply_to_one(
        "key_data", "u32", [*((n, d) for d, n in enumerate(t.shape)), *((n, None) for n in words)], keys
    )


@public
def wrap_key_data(key_bits_array: Any, *, impl: str | None = None, dtype: Any = None) -> Any:
    """The key with these words, as `jax.random.wrap_key_data`.

    Args:
        key_bits_array (..., n): Unsigned integers; the last dim must be unsharded.
        impl: The generator, as in `key`.
        dtype: The dtype of its keys, instead of its name.

    Returns:
        (...): Keys.
    """
    ((words,), _) = as_operands([key_bits_array])
    t = jax.typeof(words)
    if not t.ndim or t.dtype_name != "u32":
        raise ShardingTypeError(f"the words of a key are u32[..., n], not {t}")
    impl, name = _generator(impl, dtype)
    dims: list[tuple[int, int | None]] = [(n, d) for d, n in enumerate(t.shape[:-1])]
    return _apply_to_one("wrap_key_data", name, dims, words, (t.ndim - 1,), impl=impl)


@public
def key_impl(keys: Any) -> Any:
    """The name of a key's generator, as `jax.random.key_impl`."""
    if not is_typed(keys):
        return jax.random.key_impl(keys)
    names: list[Any] = []
    jax.eval_shape(lambda k: names.append(jax.random.key_impl(k)), jax.ShapeDtypeStruct((), jax.typeof(keys).dtype))
    return names[0]


@public
def clone(key: Any) -> Any:
    """The same key, which counts as new for `jax.experimental.key_reuse`, as `jax.random.clone`."""
    key = as_key("clone", key)
    return _apply_elementwise("clone", jax.typeof(key).dtype_name, key)


def _converted(keys: Any) -> Any:
    """The words for JAX's `key_data`, which like other conversions works for a value on any mesh."""
    mesh_in_context = context_mesh()
    if mesh_in_context is None or isinstance(keys, jax.core.Tracer) or to_mesh(mesh_in_context) is keys.type.mesh:
        words = _words(keys)
    else:
        with use_mesh(keys.to_jax().sharding.mesh):
            words = _words(keys)
    note_key_data(words, jax.typeof(keys))
    return words


HiShType.key_data = staticmethod(_converted)
