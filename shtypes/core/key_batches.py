"""Random bits that depend on all keys of a batch under `jax.vmap`, as those of the `rbg` generators do.

JAX draws them for all keys of a batch at once, from the first: a device that has a part of the batch draws others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from shtypes._compat.plain_programs import without_mesh
from shtypes.caches import CACHE_SIZE
from shtypes.context.scope import mapped_axes
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType, State, dtypes

#: The operation of XLA's generator in a lowered program.
_GENERATOR: Final = "rng_bit_generator"


def draws_for_batch(fn: Callable[..., Any], operands: tuple[tuple[tuple[int, ...], str], ...]) -> bool:
    """Whether a function, of operands of these shapes and dtypes, draws bits that depend on the batch."""
    return any(_is_of_xla(dtype) for _, dtype in operands) and _lowers_to_generator(fn, operands)


def _is_of_xla(dtype: str) -> bool:
    return dtypes.is_key(dtype) and dtypes.key_impl(dtype) != "threefry2x32"


@functools.lru_cache(maxsize=CACHE_SIZE)
def _lowers_to_generator(fn: Callable[..., Any], operands: tuple[tuple[tuple[int, ...], str], ...]) -> bool:
    structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in operands]
    try:
        with without_mesh():
            return _GENERATOR in jax.jit(fn).lower(*structs).as_text()
    except NameError:  # it asks for the device's index, to draw other bits on each
        return True


def check_mapped_keys(
    fn: Callable[..., Any], operands: Sequence[ShType], dims: Sequence[int | None], results: Sequence[ShType]
) -> None:
    """Raises if a function draws bits that depend on the batch, of which each device has a part.

    Args:
        fn: The function of shards, before it is mapped.
        operands: The types of the mapped operands.
        dims: Their mapped dims.
        results: The types of the function's results.
    """
    pairs = list(zip(operands, dims, strict=True))
    parts = [(t, a) for t, d in pairs if d is not None for a in mapped_axes() if t.state(a) is State.VARYING]
    keys = [t.dtype_name for t in (*(t for t, _ in parts), *results) if _is_of_xla(t.dtype_name)]
    steps = (t.local_shape if d is None else (*t.local_shape[:d], *t.local_shape[d + 1 :]) for t, d in pairs)
    shapes = tuple(zip(steps, (t.dtype_name for t in operands), strict=True))
    if not parts or not keys or not draws_for_batch(fn, shapes):
        return
    axis = parts[0][1]
    raise ShardingTypeError(
        f"`{fn}` of {keys[0]} cannot be mapped over a dim that is sharded over `{axis}`",
        why="JAX draws the bits of all mapped keys at once, from the first key: a device with some draws others",
        hints=[
            "keys of sh.random.key(seed), each of which has bits of its own",
            f'sh.all_gather(x, "{axis}") of what is mapped over',
        ],
        axes=[axis],
    )
