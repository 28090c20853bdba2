"""Batches of host arrays as typed values, prefetched to the devices."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from shtypes.context.user_line import placed, public
from shtypes.core.processes import array_from_process
from shtypes.errors import ShardingTypeError

Tree = Any


@public
def prefetch_to_device(batches: Iterable[Tree], types: Tree, *, size: int = 2) -> Iterator[Tree]:
    """Yields batches of host arrays as typed values; the next ones are transferred while a step runs.

    JAX transfers and runs steps asynchronously, so no thread is needed: the loader loads while the devices compute, as
    long as the loop does not block on each step. A loader with worker processes, such as grain's or torch's, loads
    ahead by itself.

    Args:
        batches: Pytrees of host arrays. In several processes, the process's rows, as for `array_from_process`.
        types: The type of each array: a pytree with the structure of a batch or a prefix of it; or one type for all.
        size: The number of batches on the devices besides the yielded one.

    Returns:
        The batches as pytrees of typed values, in order. To resume from a checkpoint, count the batches that were
        taken, not those that were loaded.

    Raises:
        ShardingTypeError: ``batches`` is not iterable; ``size`` is less than 1; (later, at the line that takes a batch)
            a batch does not fit its types. An error of the loader is raised in place of its batch.

    Communicates: only what `array_from_process` compares.
    Source: ``flax.jax_utils.prefetch_to_device``.

    Examples:
        >>> import numpy as np
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.make_mesh({"dp": 4})):
        ...     for tokens in sh.prefetch_to_device((np.full((8, 3), i) for i in range(2)), "i32[batch@dp, seq]"):
        ...         print(tokens.type, np.asarray(tokens)[0, 0])
        i32[batch@dp, seq] 0
        i32[batch@dp, seq] 1
    """
    try:
        iterator = iter(batches)
    except TypeError as error:
        raise ShardingTypeError("`prefetch_to_device` takes batches one after another", why=str(error)) from None
    if size < 1:
        raise ShardingTypeError(f"`prefetch_to_device` holds at least 1 batch ahead, not {size!r}", hints=["size=2"])
    return _ahead(iterator, types, size)


def _ahead(batches: Iterator[Tree], types: Tree, size: int) -> Iterator[Tree]:
    ready: collections.deque[Tree] = collections.deque()
    failed: Exception | None = None
    while failed is None:
        try:
            ready.append(_typed(next(batches), types))
        except StopIteration:
            break
        except Exception as error:
            failed = error
        if len(ready) > size:
            yield ready.popleft()
    yield from ready
    if failed is not None:
        raise failed


def _typed(batch: Tree, types: Tree) -> Tree:
    """Converts a batch to typed values; ``types`` has its structure or a prefix of it."""
    try:
        each = jax.tree.broadcast(types, batch)
    except ValueError as error:
        what = "the types of `prefetch_to_device` are of another structure than a batch"
        raise placed(ShardingTypeError(what, why=str(error)), "prefetch_to_device") from None
    return jax.tree.map(array_from_process, batch, each)
