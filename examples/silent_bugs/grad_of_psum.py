"""The gradient of a loss that was summed over the devices.

Inside the mapped function the loss is summed for the logs and differentiated as it is. The transpose of a sum over
devices of unknown replication is a sum again, so each device's gradient is multiplied by their number. Here the
seed of the backward pass follows from the type of the loss, which is one value, and no factor appears. Under
``"jax"`` the gradient has been summed by then, and the sum by hand is refused.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

Weight = A[sh.Array, "f32[16]"]
Batch = A[sh.Array, "f32[batch@dp, 16]"]


def one_device(w: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)
    return {"loss": value, "gradient": grad}


def plain(w: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(lambda w: jax.lax.psum(jnp.sum(jnp.tanh(x @ w)), "dp"))(w)
    return {"loss": value, "gradient": jax.lax.psum(grad, "dp")}


def naive(w: Weight, x: Batch) -> Results:
    value, grad = sh.value_and_grad(lambda w: sh.all_reduce(sh.sum(sh.tanh(x @ w)), "dp"))(w)
    return {"loss": value, "gradient": sh.all_reduce(grad, "dp")}


def fixed(w: Weight, x: Batch) -> Results:
    value, grad = sh.value_and_grad(lambda w: sh.all_reduce(sh.sum(sh.tanh(x @ w)), "dp"))(w)
    return {"loss": value, "gradient": sh.all_reduce(grad)}


BUG = Bug(
    name="grad_of_psum",
    wrong="the gradient of a summed loss is multiplied by the number of devices",
    source="jax-ml/jax#3970, `grad(lambda x: psum(loss(x)))` computes incorrect gradients",
    url="https://github.com/jax-ml/jax/issues/3970",
    types=("f32[16]", "f32[batch=8@dp, 16]"),
    shown="gradient",
    fix="`sh.all_reduce(grad)` sums what is pending, if anything is",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
    mesh={"dp": 8},
)
