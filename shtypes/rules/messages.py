"""The errors of the typing rules, which explain what is on the devices."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Final

from shtypes.errors import ShardingTypeError, quoted
from shtypes.types import ShType, State

#: The reason why two states do not join; ``{a}`` and ``{b}`` are the operands.
_WHY: Final[dict[tuple[State, State], str]] = {
    (State.UNREDUCED, State.UNREDUCED): (
        "each device holds one term of {a} and one of {b}, and (a + b)(c + d) is not ac + bd: a term of one would "
        "meet only its own device's term of the other"
    ),
    (State.UNREDUCED, State.SHARDED): (
        "each device holds one term of {a} but only a slice of {b}: a term would meet only its own device's slice"
    ),
    (State.VARYING, State.SHARDED): (
        "{a} is a family of values, one per device, and each device holds only a slice of {b}, which has one value"
    ),
    (State.VARYING, State.UNREDUCED): (
        "{a} is a family of values, one per device, and each device holds only one term of {b}, which has one value"
    ),
}


def operand_word(index: int, count: int) -> str:
    """The name of operand ``index`` of ``count``."""
    if count == 1:
        return "the operand"
    return ("lhs", "rhs")[index] if count == 2 else f"operand {index}"


def state_word(state: State) -> str:
    """The name of a state."""
    return state.name.lower()


def dim_word(operand: ShType, dim: int) -> str:
    """The name of a dim."""
    name = operand.dims[dim].name
    return f"dim {dim}" + (f" (`{name}`)" if name else "")


def on(axes: Sequence[str]) -> str:
    """The name of mesh axes."""
    return ("mesh axis " if len(axes) == 1 else "mesh axes ") + quoted(axes)


def axes_code(axes: Sequence[str]) -> str:
    """Mesh axes as code: a name, or a tuple of names."""
    names = ", ".join(f'"{a}"' for a in axes)
    return names if len(axes) == 1 else f"({names})"


def clash(
    name: str, operands: Sequence[ShType], axis: str, lhs: tuple[int, State], rhs: tuple[int, State]
) -> ShardingTypeError:
    """Two operands are in states that do not join."""
    a, b = lhs, rhs
    if (a[1], b[1]) not in _WHY:
        a, b = rhs, lhs
    words = {"a": operand_word(a[0], len(operands)), "b": operand_word(b[0], len(operands))}
    return ShardingTypeError(
        f"`{name}` cannot combine {state_word(lhs[1])} with {state_word(rhs[1])} on {on([axis])}",
        why=_WHY.get((a[1], b[1]), "no state of the result would denote the right value").format(**words),
        axes=[axis],
    )


def nonlinear(name: str, axis: str, operand: str = "the operand", why: str = "") -> ShardingTypeError:
    """A nonlinear op meets an unreduced operand."""
    return ShardingTypeError(
        f"`{name}` is nonlinear in {operand}, which is unreduced on {on([axis])}",
        why=why or f"each device holds one term of the sum, and {name}(a + b) is not {name}(a) + {name}(b)",
        axes=[axis],
    )


def along(name: str, operand: ShType, axis: str, reduces: bool = False, dims: Sequence[int] = ()) -> ShardingTypeError:
    """An op acts along a sharded dim; ``dims`` are all dims that it acts along, for the fixes."""
    d = operand.dim_of(axis)
    assert d is not None  # the axis is on a dim of the operand
    acts = "reduces" if reduces else "acts along"
    axes = operand.dims[d].axes
    return ShardingTypeError(
        f"`{name}` {acts} {dim_word(operand, d)}, which is sharded on {on(axes)}",
        why="each device holds only its slice of that dim, and the result needs all of it",
        axes=dict.fromkeys((*axes, *(a for i in dims for a in operand.dims[i].axes))),
    )


#: Messages of ops inside a call about values that the caller does not see.
_INSIDE: Final = re.compile(r" (acts along|cannot combine|is nonlinear in) ")


def of_call(error: ShardingTypeError, name: str, operands: Sequence[ShType]) -> ShardingTypeError:
    """Restates an error of an op inside a call for the call's operand that is sharded on the axis at fault.

    Does nothing unless that is the only operand sharded on it, and the op acts along it or no operand of several is a
    pending sum: then the sum at fault arises inside the call.
    """
    match = _INSIDE.search(error.what)
    if match is None or not error.axes:
        return error
    if len(operands) > 1 and match[1] != "acts along" and any(t.axes(State.UNREDUCED) for t in operands):
        return error
    sharded = [t for t in operands if t.dim_of(error.axes[0]) is not None]
    if len(sharded) == 1:
        message = along(name, sharded[0], error.axes[0])
        error.what, error.why = message.what, message.why
    return error


def check_unsharded(name: str, operand: ShType, dims: Sequence[int]) -> None:
    """Raises if one of the dims along which an op acts is sharded."""
    for d in dims:
        for axis in operand.dims[d].axes:
            raise along(name, operand, axis, dims=dims)


def two_labels(name: str, operands: Sequence[ShType], axis: str, lhs: int, rhs: int) -> ShardingTypeError:
    """One mesh axis shards two labels, one in each of two operands."""

    def word(i: int) -> str:
        d = operands[i].dim_of(axis)
        assert d is not None  # operand i shards its label over this axis
        return f"{dim_word(operands[i], d)} of {operand_word(i, len(operands))}"

    a, b = word(lhs), word(rhs)
    return ShardingTypeError(
        f"`{name}` meets two different dims sharded on {on([axis])}: {a} and {b}",
        why=f"a device would combine its slice of {a} with the same device's slice of {b} only, but every pair of "
        "slices is needed: one of the two must be resharded",
        axes=[axis],
    )


def axes_differ(
    name: str,
    operands: Sequence[ShType],
    label: Hashable,
    lhs: tuple[int, tuple[str, ...]],
    rhs: tuple[int, tuple[str, ...]],
) -> ShardingTypeError:
    """A label is sharded differently in two operands."""
    words = [operand_word(i, len(operands)) for i in (lhs[0], rhs[0])]
    dim = f"label `{label}`" if isinstance(label, str) else f"dim {label} of the result"
    why = "the slices on one device are not the same part of the dim; only minor axes may be missing"
    tuples = [f"({', '.join(axes)})" for axes in (lhs[1], rhs[1])]
    return ShardingTypeError(
        f"`{name}` meets {dim} sharded over `{tuples[0]}` in {words[0]} and over `{tuples[1]}` in {words[1]}",
        why=why,
        axes=dict.fromkeys((*lhs[1], *rhs[1])),
    )


def broadcasts_sharded(name: str, operand: ShType, dim: int, word: str = "the operand") -> ShardingTypeError:
    """A dim of size 1 is broadcast or dropped, and an axis shards it."""
    axes = operand.dims[dim].axes
    return ShardingTypeError(
        f"`{name}` cannot stretch or drop {dim_word(operand, dim)} of {word}, of size 1 and sharded on {on(axes)}",
        why="it has size 1 only because the mesh axis has size 1; on a larger mesh it would be a dim like any other",
        axes=axes,
    )


def diagonal_twice(name: str, operand: ShType, label: Hashable, word: str) -> ShardingTypeError:
    """Both dims of a diagonal are sharded."""
    axes = [a for d in operand.dims for a in d.axes]
    return ShardingTypeError(
        f"`{name}` takes a diagonal of {word} (label `{label}` twice), and both dims are sharded",
        why="the diagonal lies on few of the devices; only one of the two dims may be sharded",
        axes=axes,
    )
