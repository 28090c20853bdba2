"""`sh.random`: the functions of `jax.random` for typed arrays.

A key and a type stand for one global array, the one that `jax.random` draws with that key: its numbers do not depend on
the mesh, and each device makes its own part of them and nothing more. Where the type is sharded that part is a slice,
where it is unreduced the draw is on index 0, and where it is varying the device's index is folded into the key.

The bits are equal, and so are integers, bools and numbers of the unit interval. What is made of those by logarithms and
error functions may differ in the last bits, as two calls of `jax.random` do that XLA compiles with other code around.
"""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes import dtypes
from shtypes.errors import ShardingTypeError
from shtypes.mesh import current_mesh
from shtypes.meshes import to_mesh
from shtypes.ops import rules
from shtypes.ops.dispatch import all_replicated, apply, dtype_name, is_number, lift
from shtypes.ops.draws import (
    Categorical,
    OnKeys,
    as_key,
    check_parts,
    default_float,
    draw,
    folded_axes,
    key_of_seed,
    layout_of,
)
from shtypes.ops.elementwise import astype, less
from shtypes.ops.lookup import take
from shtypes.ops.reduce import normalize_dims
from shtypes.ops.rules.random import categorical as _categorical_rule
from shtypes.ops.rules.whole import Made
from shtypes.types import ShType
from shtypes.where import public

# keys


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


# draws


@public
def uniform(
    key: Any, type: Any = (), dtype: Any = None, minval: float = 0.0, maxval: float = 1.0, *, mesh: Any = None
) -> Any:
    """Numbers in ``[minval, maxval)``: the global array that `jax.random.uniform` draws, each device its own part.

    Args:
        key (): A key; replicated, or varying for a varying draw.
        type: A text such as ``"f32[8@x,4]{U:y}"``, a type, or a shape, which is replicated by policy.
        dtype: The dtype, where the type leaves it out; the default float.
        minval: The least number.
        maxval: The end, not included.
        mesh: The mesh of a text or shape; by default that of the key.

    Returns:
        (...): The draw. It has no gradient.

    Raises:
        ShardingTypeError: the key varies where the type does not; the type is sharded and the key's generator makes all
            numbers at once (any but threefry).

    Communicates: nothing.
    """
    return draw("uniform", key, type, dtype, mesh, default_float(), minval=float(minval), maxval=float(maxval))


@public
def normal(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Standard normal numbers, as `jax.random.normal`; see `uniform`."""
    return draw("normal", key, type, dtype, mesh, default_float())


@public
def truncated_normal(
    key: Any, lower: float, upper: float, type: Any = (), dtype: Any = None, *, mesh: Any = None
) -> Any:
    """Standard normal numbers between bounds, as `jax.random.truncated_normal`; see `uniform`."""
    bounds = {"lower": float(lower), "upper": float(upper)}
    return draw("truncated_normal", key, type, dtype, mesh, default_float(), **bounds)


@public
def bernoulli(key: Any, p: Any = 0.5, type: Any = None, *, mesh: Any = None) -> Any:
    """True with probability ``p``, as `jax.random.bernoulli`; see `uniform`.

    Args:
        key (): A key.
        p (...): A number, or typed probabilities: then the draw lies as they do.
        type: The type; one value by default.
        mesh: The mesh of a text or shape.
    """
    if is_number(p):
        return draw("bernoulli", key, () if type is None else type, "bool", mesh, "bool", p=float(p), mode="low")
    ((p,), _) = lift([p])
    t = jax.typeof(p)
    return less(draw("uniform", key, t if type is None else type, t.dtype_name, mesh, "f32"), p)


@public
def randint(key: Any, type: Any = (), minval: int = 0, maxval: int = 2, dtype: Any = None, *, mesh: Any = None) -> Any:
    """Integers in ``[minval, maxval)``, as `jax.random.randint`; see `uniform`."""
    default = dtypes.from_numpy(jax.dtypes.canonicalize_dtype(np.int64))
    bounds = {"minval": operator.index(minval), "maxval": operator.index(maxval)}
    return draw("randint", key, type, dtype, mesh, default, **bounds)


@public
def bits(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Random bits as unsigned integers, as `jax.random.bits`; see `uniform`."""
    return draw("bits", key, type, dtype, mesh, "u32")


@public
def exponential(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Exponential numbers, as `jax.random.exponential`; see `uniform`."""
    return draw("exponential", key, type, dtype, mesh, default_float())


@public
def gumbel(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Gumbel numbers, as `jax.random.gumbel`; see `uniform`."""
    return draw("gumbel", key, type, dtype, mesh, default_float())


@public
def laplace(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Laplace numbers, as `jax.random.laplace`; see `uniform`."""
    return draw("laplace", key, type, dtype, mesh, default_float())


@public
def logistic(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Logistic numbers, as `jax.random.logistic`; see `uniform`."""
    return draw("logistic", key, type, dtype, mesh, default_float())


@public
def cauchy(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Cauchy numbers, as `jax.random.cauchy`; see `uniform`."""
    return draw("cauchy", key, type, dtype, mesh, default_float())


@public
def rademacher(key: Any, type: Any = (), dtype: Any = None, *, mesh: Any = None) -> Any:
    """Minus one or one, as `jax.random.rademacher`; see `uniform`."""
    default = dtypes.from_numpy(jax.dtypes.canonicalize_dtype(np.int64))
    return draw("rademacher", key, type, dtype, mesh, default)


@public
def categorical(key: Any, logits: Any, axis: int = -1) -> Any:
    """One class for each row of logits, as `jax.random.categorical`.

    Args:
        key (): A key.
        logits (..., n, ...): Logarithms of weights; the dim of the classes must be whole, and nothing unreduced.
        axis: The dim of the classes.

    Returns:
        (...): The classes; sharded as the rows, each device draws for its own.

    Communicates: nothing.
    """
    key = as_key("categorical", key)
    (key, logits), constants = lift([key, logits])
    k, t = jax.typeof(key), jax.typeof(logits)
    (dim,) = normalize_dims(axis, t.ndim, "categorical")
    if not t.differentiable:
        logits = astype(logits, default_float())
        t = jax.typeof(logits)

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return _categorical_rule("categorical", types[0], types[1], dim, constants)

    check_parts("categorical", k, t)
    return apply("categorical", Categorical(dim, layout_of(t), folded_axes(k, t)), rule, key, logits)


@public
def permutation(key: Any, x: Any, axis: int = 0) -> Any:
    """Positions in random order, or the rows of a value, as `jax.random.permutation`.

    Args:
        key (): A key.
        x (..., n, ...): A number of positions, or a value whose rows are put in that order.
        axis: The dim of the rows; of a sharded one each row is a lookup, and the result unreduced.

    Communicates: nothing.
    """
    key = as_key("permutation", key)
    value = None if is_number(x) else lift([x])[0][0]
    (dim,) = (0,) if value is None else normalize_dims(axis, jax.typeof(value).ndim, "permutation")
    count = operator.index(x) if value is None else jax.typeof(value).shape[dim]
    made = (Made(dtype_name(jnp.arange(0).dtype), ((count, None),)),)
    fn = OnKeys("permutation", jax.random.permutation, (("x", count),))
    order = apply("permutation", fn, lambda types: rules.whole("permutation", types[0], (), made, False), key)
    return order if value is None else take(value, order, dim, mode="clip")
