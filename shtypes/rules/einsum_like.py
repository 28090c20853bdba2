"""Typing of ops whose dims run together by labels: einsums, other products, convolutions, searches. Pure.

Some labels must be whole, since a slice of them needs its neighbours.
"""

from __future__ import annotations

import functools
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shtypes.errors import ShardingTypeError, how_many
from shtypes.rules import messages
from shtypes.rules.typing import NO_CONSTANTS, POSITIONS, JointTyping, Label, Typing, rule
from shtypes.types import ShType


class ProductDims(NamedTuple):
    """What a product does with the dims of its operands."""

    #: The label of each dim of each operand; None for a dim of size 1 that stretches.
    labels: tuple[tuple[Label | None, ...], ...]
    result: tuple[tuple[Label, int], ...]  # the label and the size of each dim of the result
    whole: frozenset[Label] = frozenset()  # the labels whose dims must not be sharded
    #: For labels whose dims come in groups that stay on one device, how many there are.
    groups: tuple[tuple[Label, int], ...] = ()
    ids: frozenset[int] = frozenset()  # the operands that are positions or counts, not factors
    nonlinear: frozenset[int] = frozenset()  # the other operands in which the op is not linear


@rule
def contraction(
    name: str, operands: Sequence[ShType], plan: ProductDims, dtype: str, constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """A product that is linear in each factor; sharded on a label that the result lacks becomes UNREDUCED."""
    return _contracted(name, operands, plan, dtype, constants)


def _contracted(
    name: str, operands: Sequence[ShType], plan: ProductDims, dtype: str, constants: frozenset[int]
) -> Typing:
    for operand, labels in zip(operands, plan.labels, strict=True) if plan.whole or plan.groups else ():
        messages.check_whole(name, operand, [d for d, label in enumerate(labels) if label in plan.whole])
        _check_groups(name, operand, labels, dict(plan.groups))
    nonlinear = dict.fromkeys(plan.nonlinear, "") | dict.fromkeys(plan.ids, POSITIONS)
    joint = JointTyping(name, operands, plan.labels, dtype, constants, nonlinear=nonlinear)
    in_result = {label for label, _ in plan.result}
    return joint.typing(plan.result, [label for label in joint.axes if label not in in_result])


def _check_groups(name: str, operand: ShType, labels: Sequence[Label | None], groups: Mapping[Label, int]) -> None:
    for d, label in enumerate(labels):
        axes = operand.dims[d].axes
        devices = operand.mesh.product(axes)
        if label in groups and groups[label] % devices:
            raise ShardingTypeError(
                f"`{name}` has {groups[label]} groups along {messages.dim_word(operand, d)}, which is sharded on "
                f"{messages.on(axes)} into {devices} parts",
                why="a group would lie on several devices, and each of its results needs all of it",
                axes=axes,
            )


@rule
def labelled(
    name: str, operands: Sequence[ShType], plan: ProductDims, dtype: str, constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """A function that is linear in no operand: dims with one label run together, all others must be whole."""
    in_result = {label for label, _ in plan.result}
    others = {label for labels in plan.labels for label in labels if label is not None} - in_result
    nonlinear = frozenset(range(len(operands))) - plan.ids
    return _contracted(name, operands, plan._replace(whole=plan.whole | others, nonlinear=nonlinear), dtype, constants)


# einsum


class EinsumEquation(NamedTuple):
    """An equation with every label written: one string of letters per operand, and the result's."""

    inputs: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return ",".join(self.inputs) + "->" + self.output


@functools.lru_cache(maxsize=4096)
def parse_equation(equation: str, ndims: tuple[int, ...]) -> EinsumEquation:
    """Reads an equation for operands of ``ndims`` dims.

    ``...`` stands for the dims that have no letter, aligned from the right. Without ``->`` the result has the dims
    of ``...`` and then the letters that occur once, in order.
    """
    text = "".join(equation.split())
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    for part in (*inputs, right):
        odd = next((c for c in part.replace("...", "", 1) if c not in string.ascii_letters), None)
        if odd is not None:
            raise _bad(equation, f"`{odd}` is not a letter")
    if len(inputs) != len(ndims):
        raise _bad(equation, f"it names {how_many(len(inputs), 'operand')}, and there are {len(ndims)}")
    hidden = [_hidden(equation, inputs[i], ndims[i], i, len(ndims)) for i in range(len(ndims))]
    most = max(hidden)
    free = [c for c in string.ascii_letters if c not in text]
    if most > len(free):
        raise _bad(equation, "there are not enough letters for the dims of `...`")
    dots = "".join(free[:most])
    full = tuple(p.replace("...", dots[most - n :]) for p, n in zip(inputs, hidden, strict=True))
    if arrow:
        output = right.replace("...", dots)
    else:
        counts = Counter("".join(full))
        output = dots + "".join(sorted(c for c, n in counts.items() if n == 1 and c not in dots))
    _check_output(equation, full, output)
    return EinsumEquation(full, output)


def canonical_equation(equation: str, ndims: Sequence[int]) -> str:
    """The equation with every label written out; see `parse_equation`."""
    return str(parse_equation(equation, tuple(ndims)))


def _bad(equation: str, what: str) -> ShardingTypeError:
    return ShardingTypeError(f"the equation `{equation}` cannot be read: {what}")


def _hidden(equation: str, part: str, ndim: int, index: int, count: int) -> int:
    """How many dims of an operand the ``...`` stands for."""
    letters = len(part.replace("...", ""))
    word = messages.operand_word(index, count)
    if "..." not in part and letters != ndim:
        raise _bad(equation, f"`{part}` names {how_many(letters, 'dim')} of {word}, which has {ndim}")
    if letters > ndim:
        raise _bad(equation, f"`{part}` names at least {how_many(letters, 'dim')} of {word}, which has {ndim}")
    return ndim - letters


def _check_output(equation: str, inputs: tuple[str, ...], output: str) -> None:
    labels = set("".join(inputs))
    for label, n in Counter(output).items():
        if label not in labels:
            raise _bad(equation, f"the result's label `{label}` is in no operand")
        if n > 1:
            raise _bad(equation, f"the result names label `{label}` {n} times")


def label_sizes(equation: EinsumEquation, operands: Sequence[ShType]) -> dict[str, int]:
    """The size of each label; a dim of size 1 stretches to the others."""
    sizes: dict[str, tuple[int, int, int]] = {}  # and which dim of which operand says so
    for i, (labels, operand) in enumerate(zip(equation.inputs, operands, strict=True)):
        for d, (label, size) in enumerate(zip(labels, operand.shape, strict=True)):
            size_before, *where = sizes.setdefault(label, (size, i, d))
            if size_before == 1:
                sizes[label] = (size, i, d)
            elif size not in (size_before, 1):
                there, here = (
                    f"{messages.dim_word(operands[j], e)} of {messages.operand_word(j, len(operands))}"
                    for j, e in (where, (i, d))
                )
                raise ShardingTypeError(
                    f"`einsum` label `{label}` has size {size_before} in {there} and size {size} in {here}"
                )
    return {label: size for label, (size, *_) in sizes.items()}


@rule
def einsum(
    equation: str,
    operands: Sequence[ShType],
    dtype: str,
    constants: frozenset[int] = NO_CONSTANTS,
    name: str = "einsum",
) -> Typing:
    """Products summed over the labels that the result lacks; sharded on one of these becomes UNREDUCED.

    Of a diagonal (``ii``), one dim may be sharded: the local function takes its part of the other.
    """
    parsed = parse_equation(equation, tuple(t.ndim for t in operands))
    sizes = label_sizes(parsed, operands)
    labels = tuple(
        tuple(label if size == sizes[label] else None for label, size in zip(part, t.shape, strict=True))
        for part, t in zip(parsed.inputs, operands, strict=True)
    )
    result = tuple((label, sizes[label]) for label in parsed.output)
    return _contracted(name, operands, ProductDims(labels, result), dtype, constants)


# convolutions


class Window(NamedTuple):
    """How windows move along a dim."""

    size: int
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    base_dilation: int = 1
    window_dilation: int = 1

    def stays_within(self, shard: int) -> bool:
        """Whether no window needs elements of two shards of this size, and each shard has the results of its own.

        Either windows lie apart (patches, pools), or they are spread over gaps in the operand, as the transpose of
        such a convolution has them.
        """
        reach, (low, high) = (self.size - 1) * self.window_dilation + 1, self.padding
        if self.base_dilation == 1:
            return low == 0 and reach - self.stride <= high <= 0 and shard % self.stride == 0
        filled = high == self.base_dilation + reach - 2 - low
        return self.stride == 1 and reach - 1 <= low < self.base_dilation and filled

    def covers(self, size: int) -> bool:
        """Whether a window of shards, dilated as it is, gives a part of the sum over all of a dim of this size.

        So it is in the gradient of a kernel whose windows stay within shards.
        """
        low, high = self.padding
        if self.base_dilation == 1:
            return low == 0 >= high and size == self.size * self.window_dilation
        filled = max(low, high) < self.base_dilation and min(low, high) >= 0
        return self.window_dilation == 1 and filled and self.size == size * self.base_dilation


def conv_plan(
    numbers: Any,
    shape: Sequence[int],
    feature_groups: int = 1,
    batch_groups: int = 1,
    alone: Sequence[int] = (),
    summed: Sequence[int] = (),
) -> ProductDims:
    """The labels of a convolution: batch and output features stay, input features are summed, the rest is unsharded.

    Groups are the major part of the dims that have them. The output features run together with the grouped dim of the
    input: each group of it computes a group of them. The spatial dims in ``alone``, by number, stay in the result
    too: no window crosses a border between shards. Those in ``summed`` are summed, window by window.
    """
    batch, feature, *space = numbers.lhs_spec
    out_features, in_features, *window = numbers.rhs_spec
    out_batch, out_feature, *out_space = numbers.out_spec
    lhs: list[Any] = [("space", d) for d in range(len(numbers.lhs_spec))]
    rhs: list[Any] = [("window", d) for d in range(len(lhs))]
    out: list[Any] = [("result", d) for d in range(len(lhs))]
    lhs[batch], lhs[feature], rhs[out_features], rhs[in_features] = "batch", "features", "outputs", "features"
    out[out_batch], out[out_feature] = "batch", "outputs"
    unsharded: set[Any] = {("space", d) for d in space} | {("window", d) for d in window}
    for i in alone:
        lhs[space[i]] = out[out_space[i]] = "place", i
    for i in summed:
        lhs[space[i]] = rhs[window[i]] = "window of", i
    groups: tuple[tuple[Any, int], ...] = ()
    if feature_groups > 1:
        lhs[feature], rhs[in_features], groups = "outputs", "in a group", (("outputs", feature_groups),)
        unsharded.add("in a group")
    if batch_groups > 1:
        lhs[batch], out[out_batch], groups = "outputs", "of a group", (("outputs", batch_groups),)
    result = tuple(zip(out, map(int, shape), strict=True))
    return ProductDims((tuple(lhs), tuple(rhs)), result, frozenset(unsharded), groups)
