"""Keys: from seeds, from other keys, and as words."""

from __future__ import annotations

import operator
from typing import Any

import jax
import numpy as np

from shtypes import dtypes
from shtypes.errors import ShardingTypeError
from shtypes.mesh import current_mesh
from shtypes.meshes import to_mesh
from shtypes.ops import rules
from shtypes.ops.dispatch import all_replicated, apply, is_number, is_typed, lift
from shtypes.ops.draws import OnKeys, as_key, key_of_seed
from shtypes.ops.rules.whole import Made
from shtypes.types import ShType
from shtypes.where import public


@public
def key(seed: Any, *, impl: str | None = None, mesh: Any = None) -> Any:
    """A key, the same on every device.

    Args:
        seed: An integer, or a scalar integer value.
        impl: The generator, as in `jax.random.key`; the default (threefry) can draw sharded arrays.
        mesh: The mesh; by default the one in context.

    Communicates: nothing.
    """
    dtype = dtypes.from_numpy(jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype)
    if is_number(seed) or isinstance(seed, np.integer):
        where = current_mesh() if mesh is None else to_mesh(mesh)
        try:
            number = operator.index(seed)
        except TypeError:
            raise ShardingTypeError(f"a seed is an integer, not {seed!r:.40}") from None
        return key_of_seed(number, impl, ShType(where, dtype, [], all_replicated(where)))
    ((value,), _) = lift([seed])
    fn = OnKeys("key", jax.random.key, (("impl", impl),))
    return apply("key", fn, lambda types: rules.nonlinear("key", types, dtype), value)


@public
def split(key: Any, num: int = 2) -> Any:
    """New keys from one, as `jax.random.split`.

    Args:
        key (): A key.
        num: How many.

    Returns:
        (num): Keys, where the key is; take them apart with ``a, b = split(key)`` or ``keys[i]``.

    Communicates: nothing.
    """
    key = as_key("split", key)
    made = (Made(jax.typeof(key).dtype_name, ((operator.index(num), None),)),)
    fn = OnKeys("split", jax.random.split, (("num", operator.index(num)),))
    return apply("split", fn, lambda types: rules.whole("split", types[0], (), made, False), key)


@public
def fold_in(key: Any, data: Any) -> Any:
    """A new key from a key and an integer, as `jax.random.fold_in`.

    Args:
        key (): A key.
        data (): An integer, or a scalar integer value; where it varies the new key does.

    Communicates: nothing.
    """
    key = as_key("fold_in", key)
    name = jax.typeof(key).dtype_name
    if is_number(data):
        fn = OnKeys("fold_in", jax.random.fold_in, (("data", operator.index(data)),))
        return apply("fold_in", fn, lambda types: rules.nonlinear("fold_in", types, name), key)
    (key, data), _ = lift([key, data])
    fn = OnKeys("fold_in", jax.random.fold_in)
    return apply("fold_in", fn, lambda types: rules.nonlinear("fold_in", types, name), key, data)


@public
def key_data(keys: Any) -> Any:
    """The words of a key, as `jax.random.key_data`.

    Args:
        keys (): A key.
    """
    keys = as_key("key_data", keys)
    words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), jax.typeof(keys).dtype)).shape
    made = (Made("u32", tuple((n, None) for n in words)),)
    fn = OnKeys("key_data", jax.random.key_data)
    return apply("key_data", fn, lambda types: rules.whole("key_data", types[0], (), made, False), keys)


@public
def wrap_key_data(words: Any, *, impl: str | None = None) -> Any:
    """The key that has these words, as `jax.random.wrap_key_data`.

    Args:
        words (..., n): Unsigned integers; the last dim must be whole.
        impl: The generator, as in `key`.

    Returns:
        (...): Keys.
    """
    ((words,), _) = lift([words])
    t = jax.typeof(words)
    if not t.ndim or t.dtype_name != "u32":
        raise ShardingTypeError(f"the words of a key are u32[..., n], not {t}")
    dtype = dtypes.from_numpy(jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype)
    made = (Made(dtype, tuple((n, d) for d, n in enumerate(t.shape[:-1]))),)
    fn = OnKeys("wrap_key_data", jax.random.wrap_key_data, (("impl", impl),))
    return apply(
        "wrap_key_data", fn, lambda types: rules.whole("wrap_key_data", types[0], (t.ndim - 1,), made, False), words
    )


@public
def key_impl(keys: Any) -> Any:
    """The name of a key's generator, as `jax.random.key_impl`."""
    if not is_typed(keys):
        return jax.random.key_impl(keys)
    found: list[Any] = []
    jax.eval_shape(lambda k: found.append(jax.random.key_impl(k)), jax.ShapeDtypeStruct((), jax.typeof(keys).dtype))
    return found[0]


@public
def clone(key: Any) -> Any:
    """The same key, for `jax.experimental.key_reuse` a new one, as `jax.random.clone`."""
    key = as_key("clone", key)
    name = jax.typeof(key).dtype_name
    return apply("clone", OnKeys("clone", jax.random.clone), lambda types: rules.nonlinear("clone", types, name), key)


__all__ = ["clone", "fold_in", "key", "key_data", "key_impl", "split", "wrap_key_data"]
