"""Convolutions. They are linear in both operands, so a sharded feature dim that is summed over gives a pending sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shtypes.core.array import Array, ArrayLike
from shtypes.core.functions.basics import NamedFn
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.arithmetic import astype
from shtypes.ops.dispatch import as_ints, dtype_name, lift
from shtypes.ops.labelled import multilinear, product
from shtypes.ops.reshard import reshard
from shtypes.rules.conv import conv_plan, pointwise
from shtypes.rules.labelled import ProductDims
from shtypes.types import ShType, dtypes


def _promoted(operands: Sequence[Any]) -> list[Array]:
    """Operands of one dtype, as `jax.lax` wants them."""
    values, _ = lift(operands)
    names = {jax.typeof(v).dtype_name for v in values}
    if len(names) == 1:
        return list(operands)
    dtype = jnp.result_type(*(jax.typeof(v).dtype for v in values))
    return [astype(v, dtype) for v in values]


@public
def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out: Any = None,
) -> Array:
    """A convolution with strides, dilations, padding and groups, as `jax.lax.conv_general_dilated`.

    Per axis, as for an einsum: a sharded batch stays sharded, and so do the features that the kernel makes; where the
    features that are summed over are sharded, the result is unreduced. Spatial dims must be whole, but for those in
    which the kernel has one element and takes each place by itself. Groups may be sharded, on the features of both
    operands, if each device has whole groups.

    Args:
        lhs (n, c, h, w): The input, in the order of ``dimension_numbers``; any number of spatial dims.
        rhs (o, c, h, w): The kernel.
        window_strides: A step for each spatial dim.
        padding: ``"SAME"``, ``"VALID"``, ``"SAME_LOWER"``, or a pair for each spatial dim.
        lhs_dilation: How far apart the elements of ``lhs`` are put.
        rhs_dilation: How far apart those of ``rhs`` are put.
        dimension_numbers: Three strings such as ``("NHWC", "HWIO", "NHWC")``; by default ``("NCHW", "OIHW", "NCHW")``.
        feature_group_count: In how many groups the features are convolved, each by itself.
        batch_group_count: The same for the batch.
        precision: As in `jax.numpy`.
        preferred_element_type: The dtype of the result, and so of each partial sum.
        out: A type to reshard the result to.

    Returns:
        (n, o, h, w): The convolution.

    Raises:
        ShardingTypeError: a spatial dim is sharded (its windows need what other devices hold); a group would lie on
            several devices; both operands are unreduced, or one is and the other sharded.

    Communicates: nothing but what ``out`` asks for; an invariant operand that is cast communicates backward.
    Transpose: convolutions of the cotangent with the other operand.
    """
    values = _promoted([lhs, rhs])
    (x, w), _ = lift(values)
    shapes = jax.typeof(x).shape, jax.typeof(w).shape
    numbers = _numbers(*shapes, dimension_numbers)
    params = {
        "window_strides": as_ints(window_strides, "the strides of `conv_general_dilated`"),
        "padding": padding if isinstance(padding, str) else tuple(tuple(map(int, pair)) for pair in padding),
        "lhs_dilation": None if lhs_dilation is None else as_ints(lhs_dilation, "a dilation"),
        "rhs_dilation": None if rhs_dilation is None else as_ints(rhs_dilation, "a dilation"),
        "dimension_numbers": numbers,
        "precision": precision,
        "preferred_element_type": None if preferred_element_type is None else _dtype(preferred_element_type),
    }
    feature_groups, batch_groups = int(feature_group_count), int(batch_group_count)
    groups = {"feature_group_count": feature_groups, "batch_group_count": batch_groups}

    def fn(**counts: Any) -> NamedFn:
        return multilinear("conv", lax.conv_general_dilated, **params, **counts)

    def local(types: tuple[ShType, ...]) -> NamedFn:
        """The groups of one device."""
        devices = types[1].mesh.product(types[1].dims[numbers.rhs_spec[0]].axes)
        return fn(**{k: n // devices if n > 1 else n for k, n in groups.items()})

    windows = [shapes[1][d] for d in numbers.rhs_spec[2:]]
    alone = pointwise(windows, params["window_strides"], padding, lhs_dilation)

    def plan(shape: Sequence[int]) -> ProductDims:
        return conv_plan(numbers, shape, feature_groups, batch_groups, alone)

    grouped = max(groups.values()) > 1
    y = product("conv_general_dilated", fn(**groups), values, plan, local=local if grouped else None)
    return y if out is None else reshard(y, out)


def _dtype(dtype: Any) -> Any:
    return dtypes.to_numpy(dtype_name(dtype))


def _numbers(lhs: tuple[int, ...], rhs: tuple[int, ...], given: Any) -> lax.ConvDimensionNumbers:
    """Which dim is what, as JAX reads it."""
    try:
        numbers = lax.conv_dimension_numbers(lhs, rhs, given)
    except (TypeError, ValueError) as error:
        raise ShardingTypeError(
            f"`conv_general_dilated` of shapes {lhs} and {rhs} cannot use dimension_numbers={given!r:.80}",
            why=str(error).strip().split("\n")[0],
        ) from None
    if 0 in [rhs[d] for d in numbers.rhs_spec[2:]]:
        raise ShardingTypeError(
            f"`conv_general_dilated` of shapes {lhs} and {rhs} has windows without elements",
            why="JAX traces such a convolution, and cannot compile it",
        )
    return numbers


@public
def conv(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out: Any = None,
) -> Array:
    """A convolution of ``(n, c, h, w)`` with ``(o, c, h, w)``, as `jax.lax.conv`; see `conv_general_dilated`."""
    options = {"precision": precision, "preferred_element_type": preferred_element_type, "out": out}
    return conv_general_dilated(lhs, rhs, window_strides, padding, **options)


@public
def conv_with_general_padding(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out: Any = None,
) -> Array:
    """A convolution with dilations, as `jax.lax.conv_with_general_padding`; see `conv_general_dilated`."""
    options = {"precision": precision, "preferred_element_type": preferred_element_type, "out": out}
    return conv_general_dilated(lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, **options)


@public
def conv_transpose(
    lhs: ArrayLike,
    rhs: ArrayLike,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
    *,
    out: Any = None,
) -> Array:
    """A fractionally strided convolution, as `jax.lax.conv_transpose`; typed as `conv_general_dilated`.

    Args:
        lhs (n, h, w, c): The input, in the order of ``dimension_numbers``; by default channels are last.
        rhs (h, w, c, o): The kernel.
        strides: A step of the result for each spatial dim.
        padding: ``"SAME"``, ``"VALID"``, or a pair for each spatial dim.
        rhs_dilation: How far apart the elements of the kernel are put.
        dimension_numbers: As for `conv_general_dilated`.
        transpose_kernel: Turns the kernel round and swaps its features: the gradient of a convolution.
        precision: As in `jax.numpy`.
        preferred_element_type: The dtype of the result.
        use_consistent_padding: As in `jax.lax`.
        out: A type to reshard the result to.

    Communicates: nothing but what ``out`` asks for. Transpose: convolutions.
    """
    values = _promoted([lhs, rhs])
    (x, w), _ = lift(values)
    shapes = jax.typeof(x).shape, jax.typeof(w).shape
    spatial = len(shapes[0]) - 2
    channels_last = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NHWDC", "HWDIO", "NHWDC")}
    spec = channels_last.get(spatial) if dimension_numbers is None else dimension_numbers
    numbers = _numbers(*shapes, spec)
    params = {
        "strides": as_ints(strides, "the strides of `conv_transpose`"),
        "padding": padding if isinstance(padding, str) else tuple(tuple(map(int, pair)) for pair in padding),
        "rhs_dilation": None if rhs_dilation is None else as_ints(rhs_dilation, "a dilation"),
        "dimension_numbers": numbers if dimension_numbers is None else spec,
        "transpose_kernel": bool(transpose_kernel),
        "precision": precision,
        "preferred_element_type": None if preferred_element_type is None else _dtype(preferred_element_type),
    }
    if use_consistent_padding:
        params["use_consistent_padding"] = True
    alone = pointwise([shapes[1][d] for d in numbers.rhs_spec[2:]], params["strides"], padding)
    if transpose_kernel:
        made_, taken, *window = numbers.rhs_spec
        numbers = numbers._replace(rhs_spec=(taken, made_, *window))
    y = product(
        "conv_transpose",
        multilinear("conv_transpose", lax.conv_transpose, **params),
        values,
        lambda shape: conv_plan(numbers, shape, alone=alone),
    )
    return y if out is None else reshard(y, out)
