"""Ops that move elements without computing: linear, so every state is kept, and never communicating."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from shtypes.errors import ShardingTypeError
from shtypes.functions.basics import Permute
from shtypes.localfn import Linear, LocalFn
from shtypes.lowering.replay import public
from shtypes.ops import rules
from shtypes.ops.dispatch import Rule, apply, as_ints, is_number, lift
from shtypes.ops.reduce import Sum, normalize_dims
from shtypes.ops.reshard import finished
from shtypes.primitives import local
from shtypes.types import ShType


@dataclass(frozen=True)
class Reshape(LocalFn):
    """The elements in order, in another (local) shape."""

    shape: tuple[int, ...]
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"reshape[{','.join(map(str, self.shape))}]"

    def __call__(self, x: Any) -> Any:
        return x.reshape(self.shape)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return Reshape(operands[0].local_shape)


@dataclass(frozen=True)
class Broadcast(LocalFn):
    """Dim ``i`` of the operand at ``dims[i]`` of the (local) shape; dims of size 1 stretch."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"broadcast[{','.join(map(str, self.shape))}]"

    def __call__(self, x: Any) -> Any:
        return lax.broadcast_in_dim(x, self.shape, self.dims)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        shape = operands[0].local_shape
        new = tuple(d for d in range(len(self.shape)) if d not in self.dims)
        stretched = tuple(d for d, n in zip(self.dims, shape, strict=True) if n != self.shape[d])
        if stretched:
            return None
        return Sum(new)

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return None


@public
def transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    """Dims in another order (reversed by default); each keeps its axes.

    Args:
        a (...): A value.
        axes: The dims in their new order, as in `jax.numpy.transpose`.

    Communicates: nothing. Transpose: the inverse permutation.
    """
    ((a,), _) = lift([a])
    n = jax.typeof(a).ndim
    given = tuple(range(n))[::-1] if axes is None else as_ints(axes, "the axes of `transpose`")
    perm = tuple(d + n if -n <= d < 0 else d for d in given)
    if perm == tuple(range(n)):
        return a
    return apply("transpose", Permute(perm), lambda types: rules.transpose(types[0], perm), a)


permute_dims = transpose


@public
def matrix_transpose(x: Any) -> Any:
    """The last two dims swapped."""
    return swapaxes(x, -1, -2)


@public
def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """Two dims swapped. Communicates: nothing."""
    ((a,), _) = lift([a])
    n = jax.typeof(a).ndim
    (first,), (second,) = normalize_dims(axis1, n, "swapaxes"), normalize_dims(axis2, n, "swapaxes")
    perm = list(range(n))
    perm[first], perm[second] = second, first
    return transpose(a, perm)


@public
def moveaxis(a: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """Dims moved to other places, as in `jax.numpy.moveaxis`. Communicates: nothing."""
    ((a,), _) = lift([a])
    n = jax.typeof(a).ndim
    src, dst = (as_ints(v, "the dims of `moveaxis`") for v in (source, destination))
    if len(src) != len(dst):
        raise ShardingTypeError(f"`moveaxis` was given {len(src)} dims to move and {len(dst)} places")
    for given in (src, dst):
        normalize_dims(given, n, "moveaxis")
    src, dst = (tuple(d % n for d in v) for v in (src, dst))
    perm = [d for d in range(n) if d not in src]
    for place, dim in sorted(zip(dst, src, strict=True)):
        perm.insert(place, dim)
    return transpose(a, perm)


@public
def reshape(a: Any, *sizes: Any, shape: Any = None, order: str = "C", copy: bool | None = None, out: Any = None) -> Any:
    """The elements in order, in another shape.

    Dims of size 1 aside, old and new dims match in groups of equal product. Within a group only the first dim of local
    size above 1 may be sharded; its axes are dealt to the new dims from the major one.

    Args:
        a (...): A value.
        *sizes: The new shape, as ints or one sequence; one size may be -1.
        shape: The same by name.
        order: Must be ``"C"``: the last dim runs fastest.
        copy: For JAX's sake.
        out: A type to reshard the result to.

    Raises:
        ShardingTypeError: the sizes do not match, or an axis cannot be dealt whole.

    Communicates: nothing but what ``out`` asks for. Transpose: the reshape back.
    """
    ((a,), _) = lift([a])
    _in_order("reshape", order)
    given = sizes[0] if len(sizes) == 1 else sizes
    new = as_ints(given if shape is None else shape, "the shape of `reshape`")

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return rules.reshape(types[0], new)

    return finished(a if _is_shape(new, jax.typeof(a)) else _reshaped("reshape", rule, a), out)


def _is_shape(new: tuple[int, ...], t: ShType) -> bool:
    """Whether a new shape, which may leave one size open, is that of a type."""
    same = len(new) == t.ndim and all(n in (m, -1) for n, m in zip(new, t.shape, strict=True))
    return same and (-1 not in new or (new.count(-1) == 1 and t.size > 0))


def _reshaped(name: str, rule: Rule, x: Any) -> Any:
    """The elements in the local shape of the result: that of the operand as it is typed, which may not be as given."""
    return apply(name, lambda types: Reshape(rule(types).results[0].local_shape), rule, x)


def _in_order(name: str, order: str) -> None:
    if order not in ("C", "K", "A"):
        raise ShardingTypeError(
            f"`{name}` reads the last dim first, not in order {order!r}", hints=["sh.transpose first"]
        )


@public
def ravel(a: Any, order: str = "C", *, out: Any = None) -> Any:
    """All dims as one; see `reshape`."""
    _in_order("ravel", order)
    return reshape(a, (-1,), out=out)


@public
def broadcast_to(array: Any, shape: Sequence[int], *, out: Any = None) -> Any:
    """The value repeated to ``shape``, as in `jax.numpy`; new and stretched dims are not sharded.

    Args:
        array (...): A value; an unreduced one stays unreduced.
        shape: The new shape.
        out: A type to reshard the result to.

    Communicates: nothing but what ``out`` asks for. Transpose: the sum over the new and stretched dims.
    """
    ((array,), _) = lift([array])
    new = as_ints(shape, "the shape of `broadcast_to`")
    lead = len(new) - jax.typeof(array).ndim
    if lead < 0:
        raise ShardingTypeError(f"{jax.typeof(array)} cannot be broadcast to {new}, which has fewer dims")
    return finished(_broadcast(array, new, tuple(range(lead, len(new))), "broadcast_to"), out)


@public
def broadcast_in_dim(
    operand: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], *, out: Any = None
) -> Any:
    """Dim ``i`` at ``broadcast_dimensions[i]`` of ``shape``, as in `jax.lax`; ``out`` as for `broadcast_to`."""
    ((operand,), _) = lift([operand])
    dims = as_ints(broadcast_dimensions, "the dims of `broadcast_in_dim`")
    new = as_ints(shape, "the shape of `broadcast_in_dim`")
    return finished(_broadcast(operand, new, dims, "broadcast_in_dim"), out)


def _broadcast(x: Any, shape: tuple[int, ...], dims: tuple[int, ...], name: str) -> Any:
    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return rules.broadcast(types[0], shape, dims, name)

    if shape == jax.typeof(x).shape and dims == tuple(range(len(shape))):
        return x
    return apply(name, lambda types: Broadcast(rule(types).results[0].local_shape, dims), rule, x)


def broadcast_leading(x: Any, size: int) -> Any:
    """A new leading dim, along which the value is repeated."""
    t = jax.typeof(x)
    return local(Broadcast((size, *t.local_shape), tuple(range(1, t.ndim + 1))), x, out=t.inc_rank(size, 0))


@public
def expand_dims(a: Any, axis: int | Sequence[int]) -> Any:
    """New dims of size 1, as in `jax.numpy.expand_dims`. Communicates: nothing."""
    ((a,), _) = lift([a])
    dims = as_ints(axis, "the axis of `expand_dims`")
    return _reshaped("expand_dims", lambda types: rules.expand(types[0], dims), a)


@public
def squeeze(a: Any, axis: int | Sequence[int] | None = None) -> Any:
    """Dims of size 1 dropped, as in `jax.numpy.squeeze`. Communicates: nothing."""
    ((a,), _) = lift([a])
    dims = None if axis is None else as_ints(axis, "the axis of `squeeze`")
    if dims == () or (dims is None and 1 not in jax.typeof(a).shape):
        return a
    return _reshaped("squeeze", lambda types: rules.squeeze(types[0], dims), a)


# by name


def _at_least(name: str, count: int, dims: Any) -> Any:
    def op(*arys: Any) -> Any:
        made = []
        for x in lift([np.asarray(a) if is_number(a) else a for a in arys])[0]:
            ndim = jax.typeof(x).ndim
            made.append(expand_dims(x, dims(ndim)) if ndim < count else x)
        return made[0] if len(made) == 1 else made

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"""Values with at least {count} dims, as in `jax.numpy.{name}`. Communicates: nothing."""
    return public(op)


atleast_1d = _at_least("atleast_1d", 1, lambda n: (0,))
atleast_2d = _at_least("atleast_2d", 2, lambda n: (0, 1) if n == 0 else (0,))
atleast_3d = _at_least("atleast_3d", 3, lambda n: {0: (0, 1, 2), 1: (0, 2), 2: (2,)}[n])


@public
def broadcast_arrays(*args: Any) -> list[Any]:
    """Values broadcast to one shape, as in `jax.numpy.broadcast_arrays`; each keeps its axes. Communicates: nothing."""
    values, _ = lift([np.asarray(a) if is_number(a) else a for a in args])
    shape = np.broadcast_shapes(*(jax.typeof(x).shape for x in values))
    return [broadcast_to(x, shape) for x in values]


@public
def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """A dim moved to before another, as in `jax.numpy.rollaxis`. Communicates: nothing."""
    ((x,), _) = lift([a])
    n = jax.typeof(x).ndim
    (dim,) = normalize_dims(axis, n, "rollaxis")
    before = start + n if start < 0 else start
    return moveaxis(x, dim, before - 1 if dim < before else before)


@public
def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """Neighbouring dims as one, as in `jax.lax.collapse`; see `reshape`."""
    ((x,), _) = lift([operand])
    sizes = jax.typeof(x).shape
    start, stop, _ = slice(start_dimension, stop_dimension).indices(len(sizes))
    return reshape(x, (*sizes[:start], math.prod(sizes[start:stop]), *sizes[stop:]))


@public
def broadcast(operand: Any, sizes: Sequence[int], *, out: Any = None) -> Any:
    """New leading dims along which the value is repeated, as in `jax.lax.broadcast`; ``out`` as for `broadcast_to`."""
    ((x,), _) = lift([operand])
    return broadcast_to(x, (*as_ints(sizes, "the sizes of `broadcast`"), *jax.typeof(x).shape), out=out)
