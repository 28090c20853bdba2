"""The programs of JAX's design of shard_map (JEP 14273), on sharding types."""

from __future__ import annotations

from typing import Any

import shtypes as sh

# Mesh i=4, j=2.


@sh.shard_map(in_specs=("[_@i, _@j]", "[_@j, _]"), out_specs="[_@i, _]")
def matmul_basic(a_block: Any, b_block: Any) -> Any:
    """Partial sums, added on all devices along ``j``."""
    return sh.lax.psum(a_block @ b_block, "j")


@sh.shard_map(in_specs=("[_@i, _@j]", "[_@j, _]"), out_specs="[_@i, _@j]")
def matmul_reduce_scatter(a_block: Any, b_block: Any) -> Any:
    """Partial sums, of which each device along ``j`` keeps its part."""
    return sh.lax.psum_scatter(a_block @ b_block, "j", scatter_dimension=1, tiled=True)


@sh.shard_map(in_specs=("[_@i, _@j]", "[_@j, _]"), out_specs="[_@i, _]{U:j}")
def matmul_pending(a_block: Any, b_block: Any) -> Any:
    """What the design could not say: the sum is left pending, and its type tells."""
    return a_block @ b_block


# Mesh i=8.


@sh.shard_map(in_specs=("[_@i, _]", "[_, _]"), out_specs="[_@i, ...]")
def collective_matmul(lhs: Any, rhs: Any) -> Any:
    """The left side goes round the ring, so that sending and multiplying overlap; every device gets all of the product.

    The rows arrive in another order on each device, so no type can tell that the products are equal: they leave
    concatenated.
    """
    size, index = sh.lax.axis_size("i"), sh.lax.axis_index("i")
    rows = lhs.shape[0]
    accumulated = sh.lax.pvary(sh.zeros((rows * size, rhs.shape[1]), lhs.dtype), "i")

    def step(i: Any, carry: Any) -> Any:
        accumulated, lhs = carry
        update = lhs @ rhs
        lhs = sh.lax.ppermute(lhs, "i", [(j, (j - 1) % size) for j in range(size)])
        start = ((index + i) % size) * rows
        return sh.dynamic_update_slice_in_dim(accumulated, update, start, 0), lhs

    accumulated, _ = sh.fori_loop(0, size, step, (accumulated, lhs))
    return accumulated
