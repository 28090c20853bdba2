"""Scans by an associative function: in logarithmically many steps of typed ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from shtypes.context.signature_errors import check_function
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import as_operands, is_typed
from shtypes.errors import ShardingTypeError
from shtypes.ops.along_dims import normalize_dims
from shtypes.ops.functions import concatenate, flip, reshape, stack
from shtypes.ops.indexing import getitem


@public
def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """All partial results of an associative function along a dim, as `jax.lax.associative_scan`.

    Per axis: typed by the ops that ``fn`` is made of; the dim must be whole.

    Args:
        fn: ``(a, b) -> a . b``, of two trees of typed values with any size along the dim.
        elems: A tree of values.
        reverse: From the end.
        axis: The dim.

    Returns:
        A tree as ``elems``: ``[e0, e0 . e1, e0 . e1 . e2, ...]``.

    Raises:
        ShardingTypeError: the dim is sharded, or the values differ in its size.

    Communicates: nothing but what ``fn`` does. Transpose: that of its ops.
    """
    check_function("associative_scan", fn)
    leaves, tree = jax.tree.flatten(elems, is_leaf=is_typed)
    values, _ = as_operands(leaves)
    dims = [normalize_dims(axis, jax.typeof(v).ndim, "associative_scan")[0] for v in values]
    sizes = {jax.typeof(v).shape[d] for v, d in zip(values, dims, strict=True)}
    if len(sizes) != 1:
        raise ShardingTypeError(f"`associative_scan` needs values of one size along dim {axis}, not {sorted(sizes)}")

    def combine(first: list[Any], second: list[Any]) -> list[Any]:
        combined = fn(jax.tree.unflatten(tree, first), jax.tree.unflatten(tree, second))
        structure: Any = jax.tree.structure(combined, is_leaf=is_typed)
        parts, _ = as_operands(jax.tree.leaves(combined, is_leaf=is_typed))
        if structure != tree or [x.ndim for x in parts] != [x.ndim for x in first]:
            raise ShardingTypeError("the function of `associative_scan` returns other values than it is given")
        return list(parts)

    def part(xs: list[Any], *bounds: int | None) -> list[Any]:
        return [getitem(x, (*[slice(None)] * d, slice(*bounds))) for x, d in zip(xs, dims, strict=True)]

    def scanned(xs: list[Any]) -> list[Any]:
        count = jax.typeof(xs[0]).shape[dims[0]]
        if count < 2:
            return xs
        # Results at odd indices are those of the pairs; each at an even index has one element more.
        odd = scanned(combine(part(xs, 0, count - 1, 2), part(xs, 1, None, 2)))
        before = odd if count % 2 else part(odd, 0, count // 2 - 1)
        even = part(xs, 0, 1)
        if count > 2:
            rest = combine(before, part(xs, 2, None, 2))
            even = [concatenate([a, b], d) for a, b, d in zip(even, rest, dims, strict=True)]
        return [_woven(a, b, d) for a, b, d in zip(even, odd, dims, strict=True)]

    turned = [flip(v, d) for v, d in zip(values, dims, strict=True)] if reverse else values
    results = scanned(turned)
    turned = [flip(v, d) for v, d in zip(results, dims, strict=True)] if reverse else results
    return jax.tree.unflatten(tree, turned)


def _woven(even: Any, odd: Any, dim: int) -> Any:
    """Interleaves elements, those of ``even`` first, which has as many or one more."""
    n, m = jax.typeof(even).shape[dim], jax.typeof(odd).shape[dim]
    paired = getitem(even, (*[slice(None)] * dim, slice(0, m)))
    shape = list(jax.typeof(odd).shape)
    shape[dim] = 2 * m
    woven = reshape(stack([paired, odd], dim + 1), tuple(shape))
    return woven if n == m else concatenate([woven, getitem(even, (*[slice(None)] * dim, slice(m, n)))], dim)
