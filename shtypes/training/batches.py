"""Batches of host arrays as typed values, a few ahead of the step that takes them."""

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
    """Batches of host arrays as typed values, the next ones on their way to the devices while a step runs.

    JAX copies to devices and runs steps without waiting for them, so that no thread is needed: the loader loads while
    the devices compute, as long as the loop does not wait for each step. A loader with worker processes, such as
    grain's or torch's, loads ahead by itself.

    Args:
        batches: Trees of host arrays. In several processes each process's own rows, as for `array_from_process`.
        types: The type of each array: a tree of the structure of a batch, or of a part of it; one type for all.
        size: How many batches are on the devices besides the one that was yielded.

    Returns:
        The batches as trees of typed values, in order. A loader that is to go on where a checkpoint was made counts
        the batches that were taken, not those that were loaded.

    Raises:
        ShardingTypeError: ``batches`` cannot be iterated over; ``size`` is less than 1; (later, at the line that takes
            a batch) a batch does not fit its types. What the loader raises arrives when its batch would have been
            taken.

    Communicates: nothing but what `array_from_process` compares.
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
    """A batch as typed values; ``types`` has the structure of the batch, or stops above it."""
    try:
        each = jax.tree.broadcast(types, batch)
    except ValueError as error:
        what = "the types of `prefetch_to_device` are of another structure than a batch"
        raise placed(ShardingTypeError(what, why=str(error)), "prefetch_to_device") from None
    return jax.tree.map(array_from_process, batch, each)
