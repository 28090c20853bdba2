"""Convolutions, pooling, and windows that are read and changed by dimension numbers."""

from __future__ import annotations

import math
from typing import Any

from shtypes import State
from tests.random_choices import Choices, Expression, Value, op


def _sharded(v: Value) -> set[int]:
    return {k for k, dim in enumerate(v.type.dims) if dim.axes}


def _lifted(d: Choices, v: Value, rank: int) -> tuple[str, list[int], list[bool]]:
    """A value with dims of size 1 put in, anywhere; its sizes, and which dims are sharded."""
    text, shape, split = v.name, list(v.shape), [k in _sharded(v) for k in range(v.ndim)]
    while len(shape) < rank:
        k = d.one(range(len(shape) + 1))
        text = f"m.expand_dims({text}, {k})"
        shape.insert(k, 1)
        split.insert(k, False)
    return text, shape, split


def _order(d: Choices, split: list[bool]) -> list[int]:
    """The dims in some order; those that are sharded mostly first, where no window moves."""
    order = [int(i) for i in d.rng.permutation(len(split))]
    if d.flip(0.1):
        return order
    first = sorted(order, key=lambda k: not split[k])[:2]
    return [*(first if d.flip() else first[::-1]), *(k for k in order if k not in first)]


def _spec(order: list[int], letters: str) -> str:
    """Which dim is what: the letter of each."""
    return "".join(letter for _, letter in sorted(zip(order, letters, strict=True)))


@op(3)
def convolution(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: 2 <= x.ndim <= 4 and x.type.size), 0.7)
    w = d.summed(d.value("f", lambda x: 1 <= x.ndim <= 3 and x.type.size))
    rank = max(3, v.ndim, w.ndim)
    (x, xs, x_split), (k, ks, k_split) = _lifted(d, v, rank), _lifted(d, w, rank)
    for _ in range(20):
        left, right = _order(d, x_split), _order(d, k_split)
        (batch, taken), (made, own) = (xs[i] for i in left[:2]), (ks[i] for i in right[:2])
        groups, several = taken // max(own, 1), d.one([1, 1, 1, 2, 4])
        if taken == groups * own and made % max(groups, 1) == 0:
            break
    else:
        shape, right, groups = (4, taken, *(1,) * (rank - 3), 3), list(range(rank)), 1
        k, made = f"0.3 * m.random.normal(m.random.key(4), {'f32' + d.type(shape)!r})", 4
    space = "HWD"[: rank - 2]
    made_order = [int(i) for i in d.rng.permutation(rank)]
    given = (
        f"dimension_numbers={(_spec(left, 'NC' + space), _spec(right, 'OI' + space), _spec(made_order, 'NC' + space))}"
    )
    if groups > 1:
        given += f", feature_group_count={groups}"
    elif batch % several == 0 and made % several == 0:
        given += f", batch_group_count={several}"
    strides, apart = (tuple(d.one([1, 1, 2]) for _ in space) for _ in range(2))
    padding = d.one(["SAME", "VALID", "SAME_LOWER", tuple(d.one([(0, 0), (1, 1), (0, 2), (-1, 2)]) for _ in space)])
    spread = None if isinstance(padding, str) else tuple(d.one([1, 1, 1, 2]) for _ in space)
    bound = v.bound * max(w.bound, 1) * math.prod(ks) ** 0.6
    return f"m.conv_general_dilated({x}, {k}, {strides}, {padding!r}, {spread}, {apart}, {given})", bound


@op(1.5)
def named_convolution(d: Choices) -> Expression:
    """By the other names, whose dims come in a fixed order."""
    v = d.summed(d.value("f", lambda x: 2 <= x.ndim <= 3 and x.type.size), 0.7)
    w = d.summed(d.value("f", lambda x: 2 <= x.ndim <= 3 and x.type.size))
    (x, xs, _), (k, ks, _) = _lifted(d, v, 3), _lifted(d, w, 3)
    bound = v.bound * w.bound * math.prod(ks) ** 0.6
    if v.ndim == w.ndim == 2 and d.flip(0.3):
        mode = d.one(["full", "same", "valid"])
        return f"m.{d.one(['convolve', 'correlate'])}({v.name}[0], {w.name}[0], mode={mode!r})", bound
    step, padding = d.one([1, 1, 2]), d.one(["SAME", "VALID"])
    forms = []
    if xs[1] == ks[1]:
        forms = [
            f"m.conv({x}, {k}, ({step},), {padding!r})",
            f"m.conv_with_general_padding({x}, {k}, ({step},), [({d.one([0, 1])}, 1)], ({d.one([1, 2])},), None)",
        ]
    if xs[2] == ks[1]:
        forms += [f"m.conv_transpose({x}, {k}, ({step},), {padding!r})"]
    if xs[2] == ks[2]:
        forms += [f"m.conv_transpose({x}, {k}, ({step},), {padding!r}, transpose_kernel=True)"]
    if xs[1] == ks[2]:
        forms += [f"m.conv_transpose({x}, {k}, ({step},), {padding!r}, dimension_numbers=('NCH', 'HOI', 'NHC'))"]
    return d.one(forms), bound


@op(1.5)
def pooled(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: 1 <= x.ndim <= 3), 0.5)
    still = [k in _sharded(v) and d.flip(0.9) for k in range(v.ndim)]
    window, steps = (tuple(1 if s else d.one(sizes) for s in still) for sizes in ([1, 2, 3], [1, 1, 2]))
    padding = d.one(["SAME", "VALID", tuple((0, 0) if s else d.one([(0, 0), (1, 0), (0, 2)]) for s in still)])
    start, how = d.one([("0.0", "add"), ("0.0", "add"), ("-jnp.inf", "max"), ("jnp.inf", "min")])
    options = ""
    if how == "add" and d.flip(0.3):
        options = f", window_dilation={tuple(d.one([1, 2]) for _ in v.shape)}"
    y = f"m.reduce_window({v.name}, {start}, jax.lax.{how}, {window}, {steps}, {padding!r}{options})"
    return (y if how == "add" else f"m.clip({y}, -9, 9)"), v.bound * math.prod(window)


def _places(d: Choices, v: Value, mode: Any) -> tuple[Any, str, list[int], tuple[int, ...]]:
    """Dimension numbers for windows of a value: those for reading, positions, and the shapes of both."""
    ids = d.value("i", lambda w: 1 <= w.ndim <= 2 and not w.type.axes(State.UNREDUCED))
    batch = [k for k, n in enumerate(v.shape) if n == ids.shape[0]]
    batched = d.one(batch) if batch and v.ndim >= 2 and d.flip(0.3) else None
    free = [k for k in range(v.ndim) if k != batched]
    indexed = [int(k) for k in d.rng.permutation(free)][: d.one([1, 1, 2])]
    sizes, collapsed = list(v.shape), []
    if batched is not None:
        sizes[batched] = 1
    for k in free:
        if k in indexed or d.flip(0.1):
            sizes[k] = d.one([1, 1, v.shape[k], *([] if k in _sharded(v) else [max(v.shape[k] // 2, 1)])])
        if sizes[k] == 1 and d.flip(0.8):
            collapsed.append(k)
    safe = mode in ("promise_in_bounds",)
    parts = [f"{ids.name} % {max(v.shape[k] - sizes[k] + 1, 1)}" if safe else ids.name for k in indexed]
    if len(parts) > 1 and not safe:
        parts[1] = d.one([f"{ids.name} + 1", f"2 - {ids.name}", ids.name])
    positions = f"m.stack([{', '.join(parts)}], axis=-1)"
    rank = ids.ndim + v.ndim - len(collapsed) - (batched is not None)
    windowed = sorted(int(i) for i in d.rng.permutation(rank)[: v.ndim - len(collapsed) - (batched is not None)])
    numbers: tuple[tuple[int, ...], ...] = (tuple(windowed), tuple(collapsed), tuple(indexed))
    if batched is not None:
        numbers += ((batched,), (0,))
    return numbers, positions, sizes, ids.shape


@op(2)
def gathered(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: 1 <= x.ndim <= 3), 0.5)
    mode = d.one([None, "clip", "fill", "fill", "promise_in_bounds"])
    numbers, positions, sizes, _ = _places(d, v, mode or "promise_in_bounds")
    options = "" if mode is None else f", mode={mode!r}"
    if mode == "fill" and d.flip(0.7):
        options += f", fill_value={d.one(['0', '0.5'])}"
    y = f"m.gather({v.name}, {positions}, Gathered{numbers}, {tuple(sizes)}{options})"
    return (y if "fill_value" in options or mode != "fill" else f"m.nan_to_num({y}, nan=0.25)"), v.bound


@op(2)
def scattered(d: Choices) -> Expression:
    """What is written are windows of another value, or made for it."""
    v = d.summed(d.value("f", lambda x: 1 <= x.ndim <= 3), 0.5)
    w = d.summed(d.value("f", lambda x: x.shape == v.shape), 0.5)
    mode = d.one([None, "clip", "fill", "drop", "promise_in_bounds"])
    numbers, positions, sizes, shape = _places(d, v, mode)
    new = f"m.gather({w.name}, {positions}, Gathered{numbers}, {tuple(sizes)}, mode='clip')"
    if d.flip(0.4):
        windows = [
            n for k, n in enumerate(sizes) if k not in numbers[1] and k not in (numbers[3] if len(numbers) > 3 else ())
        ]
        full: list[int] = []
        rest, own = iter(shape), iter(windows)
        for i in range(len(shape) + len(windows)):
            full.append(next(own) if i in numbers[0] else next(rest))
        new = f"m.random.normal(m.random.key(6), {v.type.dtype_name + d.type(full)!r})"
    how = d.one(["scatter_add", "scatter_add", "scatter_sub", "scatter", "scatter_max", "scatter_min", "scatter_mul"])
    value = v.name if how not in ("scatter_max", "scatter_min", "scatter_mul") else f"m.constant({v.name})"
    if value != v.name:
        new = f"m.constant({new})"
    options = "" if mode is None else f", mode={mode!r}"
    return f"m.{how}({value}, {positions}, {new}, Scattered{numbers}{options})", v.bound + 8 * w.bound
