"""Types ops with labelled dims: einsums, other products, convolutions, searches.

Some labels must not be sharded, since a slice of them needs its neighbours.
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
    """The labels of the dims of a product."""

    #: The label of each dim of each operand; None for a dim of size 1 that stretches.
    labels: tuple[tuple[Label | None, ...], ...]
    result: tuple[tuple[Label, int], ...]  # the label and the size of each dim of the result
    unsharded: frozenset[Label] = frozenset()  # the labels whose dims must not be sharded
    #: The number of groups of labels with groups, each of which must be on one device.
    groups: tuple[tuple[Label, int], ...] = ()
    ids: frozenset[int] = frozenset()  # operands that are positions or counts, not factors
    nonlinear: frozenset[int] = frozenset()  # other operands in which the op is nonlinear


@rule
def contraction(
    name: str, operands: Sequence[ShType], plan: ProductDims, dtype: str, constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """A multilinear product. Sharded on a contracted label becomes UNREDUCED."""
    return _contracted(name, operands, plan, dtype, constants)


def _contracted(
    name: str, operands: Sequence[ShType], plan: ProductDims, dtype: str, constants: frozenset[int]
) -> Typing:
    for operand, labels in zip(operands, plan.labels, strict=True) if plan.unsharded or plan.groups else ():
        messages.check_unsharded(name, operand, [d for d, label in enumerate(labels) if label in plan.unsharded])
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
def nonlinear_contraction(
    name: str, operands: Sequence[ShType], plan: ProductDims, dtype: str, constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """A function that is linear in no operand. Labels that the result lacks must not be sharded."""
    in_result = {label for label, _ in plan.result}
    others = {label for labels in plan.labels for label in labels if label is not None} - in_result
    nonlinear = frozenset(range(len(operands))) - plan.ids
    plan = plan._replace(unsharded=plan.unsharded | others, nonlinear=nonlinear)
    return _contracted(name, operands, plan, dtype, constants)


# einsum


class EinsumEquation(NamedTuple):
    """An equation without ``...``: a string of letters for each operand and for the result."""

    inputs: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return ",".join(self.inputs) + "->" + self.output


@functools.lru_cache(maxsize=4096)
def parse_equation(equation: str, ndims: tuple[int, ...]) -> EinsumEquation:
    """Parses an equation for operands of ``ndims`` dims.

    ``...`` stands for the dims without a letter, aligned from the right. Without ``->`` the result has the dims
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
    """The number of dims of an operand that ``...`` stands for."""
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
    sizes: dict[str, tuple[int, int, int]] = {}  # with an operand and its dim of this size
    for i, (labels, operand) in enumerate(zip(equation.inputs, operands, strict=True)):
        for d, (label, size) in enumerate(zip(labels, operand.shape, strict=True)):
            size_before, *where = sizes.setdefault(label, (size, i, d))
            if size_before == 1:
                sizes[label] = (size, i, d)
            elif size not in (size_before, 1):
                earlier, later = (
                    f"{messages.dim_word(operands[j], e)} of {messages.operand_word(j, len(operands))}"
                    for j, e in (where, (i, d))
                )
                raise ShardingTypeError(
                    f"`einsum` label `{label}` has size {size_before} in {earlier} and size {size} in {later}"
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
    """An einsum. Sharded on a contracted label becomes UNREDUCED.

    One dim of a diagonal (``ii``) may be sharded: the local function slices the other one.
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
    """The window of a convolution along a dim."""

    size: int
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    base_dilation: int = 1
    window_dilation: int = 1

    def stays_within(self, shard: int) -> bool:
        """Whether each window needs elements of only one shard of this size, which gets its results.

        Windows do not overlap (patches, pools), or they are those of the transpose of such a convolution.
        """
        reach, (low, high) = (self.size - 1) * self.window_dilation + 1, self.padding
        if self.base_dilation == 1:
            return low == 0 and reach - self.stride <= high <= 0 and shard % self.stride == 0
        filled = high == self.base_dilation + reach - 2 - low
        return self.stride == 1 and reach - 1 <= low < self.base_dilation and filled

    def covers(self, size: int) -> bool:
        """Whether the window over shards gives a term of the sum over a dim of this size.

        It does in the gradient of a kernel whose windows stay within shards.
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

    Groups are the major part of their dims. The output features have the label of the grouped dim of the input: each of
    its groups computes a group of them. The spatial dims with indices in ``alone`` may be sharded, since no window
    crosses shards. Those in ``summed`` are summed, window by window.
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
