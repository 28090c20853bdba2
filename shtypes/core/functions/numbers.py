"""Functions of shards with their Python number as an operand, so that eager calls compile once for all numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from shtypes.core.localfn import LocalFn
from shtypes.types import ShType


@dataclass(frozen=True)
class OfNumber(LocalFn):
    """A local function of one operand, and of the Python number that ``fn`` has a place for."""

    fn: LocalFn
    place: str

    def __call__(self, x: Any, number: Any) -> Any:
        return _with(self.fn, self.place, number)(x)


def apart(fn: LocalFn, place: str, operands: Sequence[ShType]) -> tuple[LocalFn, Any] | None:
    """The number in a field of ``fn`` apart, in the dtype that JAX gives it beside the operand; see `number_apart`."""
    held: Any = getattr(fn, place)
    number: Any = next(n for n in held if n is not None) if isinstance(held, tuple) else held
    dtype: Any = operands[0].dtype
    if type(number) not in (int, float) or jnp.result_type(dtype, number) != dtype or not _plain(number, dtype):
        return None
    value = np.asarray(number, np.float32 if type(number) is float and dtype.itemsize < 4 else None).astype(dtype)
    return OfNumber(_with(fn, place, 0), place), value


def _with(fn: Any, place: str, number: Any) -> LocalFn:
    """The function with a number in a field; in a tuple, in the place of the one that is there."""
    held = getattr(fn, place)
    given = tuple(None if n is None else number for n in held) if isinstance(held, tuple) else number
    made: LocalFn = replace(fn, **{place: given})
    return made


def _plain(number: Any, dtype: Any) -> bool:
    """Whether a number is one that numpy rounds to a dtype as XLA does: no overflow, nothing subnormal, not complex."""
    about: Any = jnp  # its finfo has no annotations
    if jnp.issubdtype(dtype, jnp.integer):
        return bool(about.iinfo(dtype).min <= number <= about.iinfo(dtype).max)
    if not jnp.issubdtype(dtype, jnp.floating):
        return False
    limits = about.finfo(dtype)
    fits = abs(number) <= (float(limits.max) if type(number) is float else 1 << 24)
    return bool(fits and (number == 0 or abs(number) >= limits.tiny))
