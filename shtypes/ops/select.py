"""Choosing between values, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.functions.arithmetic import unbroadcast
from shtypes.core.localfn import Linear, LocalFn, local_dtype, tell_apart
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.dispatch import apply, is_number, lift
from shtypes.ops.elementwise import not_equal
from shtypes.types import ShType, State, dtypes


@dataclass(frozen=True)
class Where(LocalFn):
    """``where(predicate, on_true, on_false)``; Python numbers are a part of the function, None marks an operand."""

    numbers: tuple[Any, Any] = field(default=(None, None), compare=False)
    same: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tell_apart(self, *self.numbers)

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a class attribute elsewhere: here it depends on the numbers
        return Linear.NO if any(self.numbers) else Linear.BESIDE

    @property
    def linear_part(self) -> LocalFn | None:
        return Where((_zero(self.numbers[0]), _zero(self.numbers[1])))

    def __str__(self) -> str:
        return "where" if self.numbers == (None, None) else f"where[{', '.join(map(_shown, self.numbers))}]"

    def __call__(self, predicate: Any, *branches: Any) -> Any:
        rest = iter(branches)
        return jnp.where(predicate, *[next(rest) if n is None else n for n in self.numbers])

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        if operands[index].dtype_name != result.dtype_name:
            return None
        chosen = [place for place, n in enumerate(self.numbers) if n is None][index - 1]
        return unbroadcast(
            Where((None, 0) if chosen == 0 else (0, None)), operands[index].local_shape, result.local_shape
        )

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return self if len(set(ranks)) == 1 and set(dims) == {0} else None


def _zero(number: Any) -> Any:
    return None if number is None else 0


def _shown(number: Any) -> str:
    return "_" if number is None else f"{number:g}" if isinstance(number, float) else f"{number}"


@public
def where(condition: Any, x: ArrayLike, y: ArrayLike) -> Array:
    """``x`` where the condition holds, ``y`` elsewhere; see `shtypes.where`."""
    ((predicate,), _) = lift([condition])
    if jax.typeof(predicate).dtype_name != "bool":
        predicate = not_equal(predicate, 0)
    numbers = (x if is_number(x) else None, y if is_number(y) else None)
    (predicate, *branches), constants = lift([predicate, *(b for b in (x, y) if not is_number(b))])
    dtype = local_dtype(Where(numbers), tuple(jax.typeof(v).dtype_name for v in (predicate, *branches)))
    if len(branches) == 2:
        fixed = constants
    elif branches and any(numbers) and State.UNREDUCED in jax.typeof(branches[0]).states:
        # The number would count once per device: as an array it is masked like any replicated branch. Of numpy, since
        # JAX's would be traced, and have a gradient.
        arrays = [np.asarray(b, dtypes.to_numpy(dtype)) if is_number(b) else b for b in (x, y)]
        numbers = (None, None)
        (predicate, *branches), fixed = lift([predicate, *arrays])
    else:
        return apply(
            "where", Where(numbers), lambda types: _beside_number(types, dtype, constants), predicate, *branches
        )

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        condition, on_true, on_false = types
        return rules.select(condition, on_true, on_false, dtype, fixed)

    return apply("where", Where(), rule, predicate, *branches)


def _beside_number(types: tuple[ShType, ...], dtype: str, constants: frozenset[int]) -> rules.Typing:
    """A predicate with no or with one branch: the branch is a factor beside the predicate."""
    if len(types) == 1:
        return rules.nonlinear("where", types, dtype, constants)
    return rules.multilinear("where", types, dtype, constants)


@public
def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Array:
    """The element of the first choice whose condition holds, as `jax.numpy.select`; typed as `where`, choice by choice.

    Args:
        condlist: Bool arrays.
        choicelist: As many arrays or numbers.
        default: The value where no condition holds.

    Communicates: nothing.
    """
    if len(condlist) != len(choicelist) or not condlist:
        raise ShardingTypeError(
            f"`select` needs one condition for each choice, not {len(condlist)} for {len(choicelist)}"
        )
    chosen: Any = default
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        chosen = where(condition, choice, chosen)
    selected: Array = chosen
    return selected
