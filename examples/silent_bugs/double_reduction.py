"""A gradient that is summed twice.

The gradient of a value has been summed over ``tp`` where it entered a column-parallel layer, and the training loop
sums the gradients of all replicated weights over ``tp`` once more: they come out four times too large, and only
those. A sum of what is not pending is refused, under both policies.
"""

from __future__ import annotations

from typing import Any

import jax

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results
from examples.silent_bugs.column_input import Batch, First, Second, loss


def one_device(w0: Any, w1: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(loss)(w0, w1, x)
    return {"loss": value, "gradient": grad}


def plain(w0: Any, w1: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(loss)(w0, w1, x)
    whole = jax.lax.pmean(grad, ("dp", "tp"))  # what the layer does
    return {"loss": jax.lax.pmean(value, ("dp", "tp")), "gradient": jax.lax.psum(whole, "tp")}


def naive(w0: First, w1: Second, x: Batch) -> Results:
    value, grad = sh.value_and_grad(lambda w0: loss(w0, w1, x, sh))(w0)
    return {"loss": value, "gradient": sh.all_reduce(sh.all_reduce(grad, "dp", "tp"), "tp")}


def fixed(w0: First, w1: Second, x: Batch) -> Results:
    value, grad = sh.value_and_grad(lambda w0: loss(w0, w1, x, sh))(w0)
    return {"loss": value, "gradient": sh.all_reduce(grad)}


BUG = Bug(
    name="double_reduction",
    wrong="a gradient that has been summed over tp is summed over tp again",
    source="inclusionAI/AReno#496, fix(bailing): correct MLA tensor-parallel gradient reduction",
    url="https://github.com/inclusionAI/AReno/pull/496",
    types=("f32[16, 16]", "f32[16, inter=32@tp]", "f32[batch=8@dp, 16]"),
    shown="gradient",
    fix="one `sh.all_reduce(grad)`: the type says whether a sum is due",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
