"""The bias of a row-parallel layer once more, in local mode: not caught, unless casts must be written.

In local mode the sum over ``tp`` is written by hand, and the bias, one value on all devices, is cast to varying
where it meets the terms. That is what the program says, and it counts the bias once for each device. With
``explicit=True`` every such cast must be written: then this one is an error, which shows the line. In global ops
`row_bias` is right as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated as A

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results
from examples.silent_bugs.row_bias import Bias, Inner, Weight, one_device, plain

WeightRows = A[sh.Array, "f32[inter, 16]{V:tp}"]
InnerColumns = A[sh.Array, "f32[batch@dp, inter]{V:tp}"]
Outer = A[sh.Array, "f32[batch@dp, 16]"]


def layer(bias: Bias, w: WeightRows, x: InnerColumns) -> Outer:
    return sh.lax.psum(x @ w + bias, "tp")


def results(layer: Callable[[Bias, Weight, Inner], Outer], bias: Bias, w: Weight, x: Inner) -> Results:
    value, grad = sh.value_and_grad(lambda bias: sh.mean(sh.sin(layer(bias, w, x))))(bias)
    return {"loss": value, "gradient of the bias": grad}


def naive(bias: Bias, w: Weight, x: Inner) -> Results:
    return results(sh.shard_map(layer, axis_names=("tp",), out_specs="[_@..., _]"), bias, w, x)


def explicit(bias: Bias, w: Weight, x: Inner) -> Results:
    """The same, where every cast to varying must be written."""
    return results(sh.shard_map(layer, axis_names=("tp",), out_specs="[_@..., _]", explicit=True), bias, w, x)


def fixed(bias: Bias, w: Weight, x: Inner) -> Results:
    def after(bias: Bias, w: WeightRows, x: InnerColumns) -> Outer:
        return sh.lax.psum(x @ w, "tp") + bias

    return results(sh.shard_map(after, axis_names=("tp",), out_specs="[_@..., _]", explicit=True), bias, w, x)


BUG = Bug(
    name="local_bias",
    wrong="in local mode, the bias of a row-parallel layer is added before the sum",
    source="awslabs/slapo#10, [Bug] Multiple reductions of linear bias after row sharding the weight",
    url="https://github.com/awslabs/slapo/issues/10",
    types=("f32[16]", "f32[inter=32@tp, 16]", "f32[batch=8@dp, inter=32@tp]"),
    shown="loss",
    fix="add it after the sum; `explicit=True` refuses it before",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
