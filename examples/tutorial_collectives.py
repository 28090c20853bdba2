"""Each collective of JAX's shard_map tutorial with its numbers: before, after, and put together again.

Called eagerly, typed values print what each device has. Beside each collective is the tutorial's reference function, on
a list with one block per device, and what both give is compared.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import shtypes as sh
from examples.shard_map_tutorial import shift

Blocks = list[Any]
DIGITS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 1, 2]


def psum_ref(x_blocks: Blocks) -> Blocks:
    return [sum(x_blocks)] * len(x_blocks)


def all_gather_ref(x_blocks: Blocks, *, tiled: bool = False) -> Blocks:
    combine = np.concatenate if tiled else np.stack
    return [combine(x_blocks)] * len(x_blocks)


def psum_scatter_ref(x_blocks: Blocks, *, tiled: bool = False) -> Blocks:
    total: Any = sum(x_blocks)
    if tiled:
        total = total.reshape(len(x_blocks), -1, *total.shape[1:])
    return list(total)


def ppermute_ref(x_blocks: Blocks, perm: Sequence[tuple[int, int]]) -> Blocks:
    results = [np.zeros_like(x_blocks[0])] * len(x_blocks)
    for src, dst in perm:
        results[dst] = x_blocks[src]
    return results


def all_to_all_ref(x_blocks: Blocks, *, tiled: bool = False) -> Blocks:
    if tiled:
        splits = [np.array_split(x, len(x_blocks)) for x in x_blocks]
        return [np.concatenate(s) for s in zip(*splits, strict=True)]
    return [np.stack(s) for s in zip(*map(list, x_blocks), strict=True)]


def psum_in_two_halves(x: sh.Array, axis_name: str) -> sh.Array:
    """How a sum is often done: scattered, and gathered."""
    summed_chunk = sh.lax.psum_scatter(x, axis_name, tiled=True)
    return sh.lax.all_gather(summed_chunk, axis_name, tiled=True, to="reduced")


def psum_scatter_by_permutes(x: sh.Array, axis_name: str) -> sh.Array:
    """A reduce-scatter as a ring: each device sends on what it received, and adds what it receives."""
    size, index = sh.lax.axis_size(axis_name), sh.lax.axis_index(axis_name)
    x = x.reshape(size, -1)
    for i in range(1, size):
        update = shift(x[(index + i) % size], axis_name, -1)
        x = x.at[(index + i + 1) % size].add(update)
    return x[index]


def shown(
    name: str, collective: Callable[[sh.Array], sh.Array], x: sh.Array, out_specs: str, reference: Any = None
) -> None:
    """Runs a collective in local mode, eagerly, and prints what the tutorial prints."""

    @sh.shard_map(out_specs=out_specs)
    def f(x_block: sh.Array) -> sh.Array:
        print("BEFORE:", x_block)
        y_block = collective(x_block)
        print("AFTER:", y_block)
        return y_block

    print(f"{name}: {x.type}")
    y = f(x)
    print("FINAL RESULT:", y)
    if reference is not None:
        blocks = reference(np.split(np.asarray(x), 4))
        whole = blocks[0] if "@" not in out_specs else np.concatenate(blocks)
        print("as the reference:", np.array_equal(np.asarray(y), whole))
    print()


def main() -> None:
    """Prints each collective's numbers."""
    lax, ring = sh.lax, [(i, (i + 1) % 4) for i in range(4)]
    sh.set_mesh(sh.make_mesh({"i": 4}))
    x, few = sh.array(np.array(DIGITS), "[_@i]"), sh.array(np.array([3, 9, 5, 2]), "[_@i]")
    square = sh.array(np.array(DIGITS * 2).reshape(16, 2), "[_@i, _]")
    gathered = functools.partial(all_gather_ref, tiled=True)
    scattered = functools.partial(psum_scatter_ref, tiled=True)
    exchanged = functools.partial(all_to_all_ref, tiled=True)
    shown("psum", lambda x: lax.psum(x, "i"), x, "[_]", psum_ref)
    shown("all_gather, tiled", lambda x: lax.all_gather(x, "i", tiled=True), few, "[_@i]", gathered)
    shown("all_gather", lambda x: lax.all_gather(x, "i"), few, "[_@i, _]", all_gather_ref)
    shown("psum_scatter, tiled", lambda x: lax.psum_scatter(x, "i", tiled=True), x, "[_@i]", scattered)
    shown("psum in two halves", lambda x: psum_in_two_halves(x, "i"), x, "[_]", psum_ref)
    shown("ppermute", lambda x: shift(x, "i", 1), sh.array(np.arange(8), "[_@i]"), "[_@i]",
          functools.partial(ppermute_ref, perm=ring))  # fmt: skip
    shown("psum_scatter by permutes", lambda x: psum_scatter_by_permutes(x, "i"), x, "[_@i]", scattered)
    shown("all_to_all, tiled", lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True), x, "[_@i]", exchanged)
    shown("all_to_all", lambda x: lax.all_to_all(x, "i", 0, 0), square, "[_@i, _]", all_to_all_ref)
    sh.set_mesh(sh.make_mesh({"i": 2, "j": 2}))
    grid = sh.array(np.arange(16).reshape(4, 4), "[_@i, _@j]")
    shown("psum over one axis", lambda x: lax.psum(x, "i"), grid, "[_, _@j]")
    shown("psum over both", lambda x: lax.psum(x, ("i", "j")), grid, "[_, _]")


if __name__ == "__main__":
    main()
