"""Shard functions along dims: contractions, sums, broadcasts; and sequences of shard functions as one."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from shtypes.core.shard_fn import Linear, ShardFn, as_tuple
from shtypes.types import ShType, dtypes


@dataclass(frozen=True)
class DeviceSlice:
    """A slice of an operand's replicated dim by each device, to match a sharded diagonal."""

    operand: int
    dim: int
    axes: tuple[str, ...]  # the mesh axes over which the dim is sliced
    size: int  # of the slice


@dataclass(frozen=True)
class Einsum(ShardFn):
    """A contraction of one or two operands, with explicit labels."""

    equation: str
    dtype: str
    precision: Any = None
    slices: tuple[DeviceSlice, ...] = ()
    #: For an adjoint, the index of the cotangent and the order of labels to transpose it to before the contraction. All
    #: adjoints of an einsum share this transpose.
    transposed: tuple[int, str] | None = None
    linear = Linear.MULTILINEAR

    def __str__(self) -> str:
        return f"einsum[{self.equation}]"

    def __call__(self, *xs: Any) -> Any:
        parts = list(xs)
        for s in self.slices:
            start = lax.axis_index(s.axes) * s.size
            parts[s.operand] = lax.dynamic_slice_in_dim(parts[s.operand], start, s.size, s.dim)
        equation = self.equation
        if self.transposed is not None:
            index, order = self.transposed
            inputs, output = equation.split("->")
            labels = inputs.split(",")
            parts[index] = lax.transpose(parts[index], [labels[index].index(label) for label in order])
            labels[index] = order
            if len(labels) == 2 and _dot_output(labels, output)[-1:] != output[-1:]:  # keeps the minor dim minor
                labels, parts = labels[::-1], parts[::-1]
            equation = ",".join(labels) + "->" + output
        dtype = dtypes.to_numpy(self.dtype)
        if any(map(jnp.iscomplexobj, parts)) and not jnp.issubdtype(dtype, jnp.complexfloating):
            # the gradient of a real operand beside complex ones; XLA does not always take the real part
            return jnp.einsum(equation, *parts, precision=self.precision).real.astype(dtype)
        return jnp.einsum(equation, *parts, precision=self.precision, preferred_element_type=dtype).astype(dtype)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        inputs, output = self.equation.split("->")
        parts = inputs.split(",")
        others = [p for i, p in enumerate(parts) if i != index]
        summed = set(parts[index]) - set(output).union(*others)  # summed within the operand
        repeated = any(len(set(p)) != len(p) for p in (*parts, output))
        sizes: dict[str, set[int]] = {}
        for part, t in zip((*parts, output), (*operands, result), strict=True):
            for label, n in zip(part, t.local_shape, strict=True):
                sizes.setdefault(label, set()).add(n)
        stretched = any(len(different) > 1 for different in sizes.values())
        if summed or repeated or stretched or self.slices:
            return None  # transposed by JAX: broadcast labels, diagonals, dims of size 1
        inputs = ",".join([*parts[:index], output, *parts[index + 1 :]])
        order = (index, _dot_output(parts, output))
        return Einsum(f"{inputs}->{parts[index]}", operands[index].dtype_name, self.precision, transposed=order)

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> ShardFn | None:
        letter = unused_letter(self.equation)
        if letter is None or self.slices:
            return None
        return Einsum(batched_equation(self.equation, letter, dims), self.dtype, self.precision)


def unused_letter(equations: str) -> str | None:
    """A letter that is no label of an einsum; None if all 52 are."""
    return next((c for c in string.ascii_letters if c not in equations), None)


def batched_equation(equation: str, letter: str, dims: Sequence[int | None], out: bool = True) -> str:
    """An einsum's equation with a label for the mapped dims of its operands, and for dim 0 of its result if ``out``."""
    inputs, output = equation.split("->")
    parts = [p if d is None else p[:d] + letter + p[d:] for p, d in zip(inputs.split(","), dims, strict=True)]
    return f"{','.join(parts)}->{letter if out else ''}{output}"


def _dot_output(inputs: list[str], output: str) -> str:
    """The labels of ``output`` in XLA's order: batch labels, then one operand's, then the other's."""
    if len(inputs) < 2:
        return output
    left, right = inputs
    batch = "".join(c for c in output if c in left and c in right)
    left, right = ("".join(c for c in part if c in output and c not in batch) for part in (left, right))
    return output if batch + left + right == output else batch + right + left


@dataclass(frozen=True)
class Sum(ShardFn):
    """The local sum over ``dims``, divided by ``count``: for a mean, the global number of terms."""

    dims: tuple[int, ...]
    keepdims: bool = False
    dtype: str | None = None
    count: int = 1
    linear = Linear.JOINTLY
    is_differentiable = True

    def __str__(self) -> str:
        dims = ",".join(map(str, self.dims))
        return f"{'sum' if self.count == 1 else 'mean'}[{dims}]"

    def __call__(self, x: Any) -> Any:
        dtype = dtypes.to_numpy(self.dtype) if self.dtype else None
        if self.count == 1:
            return jnp.sum(x, self.dims, keepdims=self.keepdims, dtype=dtype)
        # the sum and the count may overflow a narrow dtype
        wide = jnp.sum(x, self.dims, keepdims=self.keepdims, dtype=_wide(dtype or x.dtype))
        return (wide / float(self.count)).astype(dtype or x.dtype)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        if operands[0].dtype_name != result.dtype_name:
            return None
        return Spread(operands[0].local_shape, self.dims, self.keepdims, self.count)

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> ShardFn | None:
        return Sum(tuple(d + 1 for d in self.dims), self.keepdims, self.dtype, self.count) if dims[0] == 0 else None


@dataclass(frozen=True)
class Spread(ShardFn):
    """The transpose of `Sum`: the operand repeated along ``dims`` to ``shape``, divided by ``count``."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    keepdims: bool = False
    count: int = 1
    linear = Linear.JOINTLY
    is_differentiable = True

    def __str__(self) -> str:
        return f"broadcast[{','.join(map(str, self.dims))}]"

    def __call__(self, x: Any) -> Any:
        x = x if self.keepdims else lax.expand_dims(x, self.dims)
        x = x if self.count == 1 else (x.astype(_wide(x.dtype)) / float(self.count)).astype(x.dtype)
        return jnp.broadcast_to(x, self.shape)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        return Sum(self.dims, self.keepdims, None, self.count)


def _wide(dtype: Any) -> Any:
    """The dtype in which to compute a mean."""
    narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.float32 if narrow else dtype  # by width, since JAX promotes no 8-bit floats


@dataclass(frozen=True)
class Broadcast(ShardFn):
    """Broadcasts dim ``i`` of the operand to ``dims[i]`` of the (local) shape."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    linear = Linear.JOINTLY
    is_differentiable = True

    def __str__(self) -> str:
        return f"broadcast[{','.join(map(str, self.shape))}]"

    def __call__(self, x: Any) -> Any:
        return lax.broadcast_in_dim(x, self.shape, self.dims)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        shape = operands[0].local_shape
        new = tuple(d for d in range(len(self.shape)) if d not in self.dims)
        stretched = tuple(d for d, n in zip(self.dims, shape, strict=True) if n != self.shape[d])
        if stretched:
            return None
        return Sum(new)


@dataclass(frozen=True)
class Constant(ShardFn):
    """A constant array, the same on all devices; compared by the identity of its holder."""

    holder: Any

    is_differentiable = True

    def __str__(self) -> str:
        return "constant"

    def __call__(self) -> Any:
        return self.holder.value


@dataclass(frozen=True)
class ZerosLike(ShardFn):
    """Zeros in place of an operand."""

    is_differentiable = True

    def __str__(self) -> str:
        return "zeros"

    def __call__(self, x: Any) -> Any:
        return jnp.zeros_like(x)


class ShardStep(NamedTuple):
    """A shard function of a composite, and whether each result's dtype has a gradient.

    Its operands are slots: first those of the composite's operands, then those of each result.
    """

    fn: ShardFn
    operands: tuple[int, ...]
    inexact: tuple[bool, ...] = (True,)


class _Slot(NamedTuple):
    """Whether and how a value depends on the operands that have a gradient."""

    depends: bool
    linear: bool
    inexact: bool = True
    zero: bool = False


@dataclass(frozen=True)
class Composite(ShardFn):
    """Shard functions in sequence, differentiated by JAX as one, by the chain rule on each device.

    ``results`` are the slots of its results; ``moving`` says whether each operand has a gradient.
    """

    name: str
    steps: tuple[ShardStep, ...]
    results: tuple[int, ...]
    moving: tuple[bool, ...]

    def __str__(self) -> str:
        return self.name

    def __call__(self, *shards: Any) -> Any:
        slots = list(shards)
        for fn, operands, _ in self.steps:
            slots += as_tuple(fn(*[slots[i] for i in operands]))
        results = tuple([slots[i] for i in self.results])
        return results[0] if len(results) == 1 else results

    @functools.cached_property
    def _linearized(self) -> tuple[Linear, ShardFn | None]:
        """How it is linear, and its linear part: the function with each constant term replaced by zero."""
        slots = [_Slot(moves, True, moves) for moves in self.moving]
        part = _Steps(len(slots))
        for fn, operands, inexact in self.steps:
            ins = [slots[i] for i in operands]
            depends = any(x.depends for x in ins) and not fn.stops_gradient
            linear = not depends or (all(x.linear for x in ins) and _is_linear(fn, ins))
            at = [part.places[i] for i in operands]
            if depends and fn.linear in (Linear.JOINTLY, Linear.IN_DIFFERENTIABLE):
                at = [
                    i if x.depends or x.zero or not x.inexact else part.zeros(i) for i, x in zip(at, ins, strict=True)
                ]
            part.add(ShardStep(fn, tuple(at), inexact))
            slots += [_Slot(depends, linear, kind, isinstance(fn, ZerosLike)) for kind in inexact]
        outs = [slots[i] for i in self.results]
        if not all(x.linear for x in outs) or not any(x.depends for x in outs):
            return Linear.NO, None
        results = [
            part.places[i] if x.depends or x.zero else part.zeros(part.places[i])
            for i, x in zip(self.results, outs, strict=True)
        ]
        if part.is_same:
            return (Linear.JOINTLY if all(self.moving) else Linear.IN_DIFFERENTIABLE), self
        return Linear.NO, Composite(self.name, tuple(part.steps), tuple(results), self.moving)

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a class attribute elsewhere; here it depends on the steps
        return self._linearized[0]

    @property
    def linear_part(self) -> ShardFn | None:
        return self._linearized[1]

    @property
    def is_differentiable(self) -> bool:
        return all(step.fn.is_differentiable for step in self.steps)

    def linear_in(self, index: int) -> bool:
        return self.moving[index]


class _Steps:
    """Builds the steps of a linear part."""

    def __init__(self, count: int) -> None:
        self.steps: list[ShardStep] = []
        self.places = list(range(count))  # the slot here for each slot of the composite
        self.is_same = True
        self._count = count

    def add(self, step: ShardStep) -> None:
        """Adds a step of the composite."""
        self.steps.append(step)
        self.places += range(self._count, self._count + len(step.inexact))
        self._count += len(step.inexact)

    def zeros(self, slot: int) -> int:
        """The slot of zeros in place of a constant term."""
        self.steps.append(ShardStep(ZerosLike(), (slot,)))
        self.is_same = False
        self._count += 1
        return self._count - 1


def _is_linear(fn: ShardFn, operands: Sequence[_Slot]) -> bool:
    """Whether a function is linear in all operands that depend on something."""
    moving = [i for i, x in enumerate(operands) if x.depends]
    if not moving or fn.linear in (Linear.JOINTLY, Linear.IN_DIFFERENTIABLE):
        return not moving or all(operands[i].inexact for i in moving)
    return fn.linear is Linear.MULTILINEAR and len(moving) == 1 and fn.linear_in(moving[0])
