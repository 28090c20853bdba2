"""The auxiliary loss of a router, whose tokens are the same on all devices of ``tp``.

The experts are split over ``tp``, so their part of the loss is summed over it. The auxiliary loss is whole on every
device of ``tp``; summed with it, it counts once for each, and so does its gradient in the router. A sum over ``tp``
of what does not vary over ``tp`` is refused, under both policies. Written in global ops there is nothing to sum: a
whole number that is added to a pending one is added once.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

Router = A[sh.Array, "f32[16, experts]"]
Experts = A[sh.Array, "f32[16, inter@tp]"]
Tokens = A[sh.Array, "f32[tokens@dp, 16]"]


def parts(router: Any, experts: Any, x: Any, m: Any = jnp) -> tuple[Any, Any]:
    """The loss of the experts, here their mean output, and how uneven the router is."""
    return m.sum(m.tanh(x @ experts)) / 64, m.sum(m.square(m.tanh(x @ router))) / 64


def one_device(router: Any, experts: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(lambda router: sum(parts(router, experts, x)))(router)
    return {"loss": value, "gradient of the router": grad}


def plain(router: Any, experts: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(lambda router: sum(parts(router, experts, x)))(router)
    both = ("dp", "tp")
    return {"loss": jax.lax.psum(value, both), "gradient of the router": jax.lax.psum(grad, both)}


@sh.shard_map(out_specs="[]")
def naive_loss(
    router: Router, experts: A[sh.Array, "f32[16, inter]{V:tp}"], x: A[sh.Array, "f32[tokens, 16]{V:dp}"]
) -> A[sh.Array, "f32[]"]:
    main: A[sh.Array, "f32[]{V:(dp,tp)}"]
    aux: A[sh.Array, "f32[]{V:dp}"]
    main, aux = parts(router, experts, x, sh)
    return sh.lax.psum(main, ("dp", "tp")) + sh.lax.psum(aux, ("dp", "tp"))  # type: ignore[sharding]


def naive(router: Router, experts: Experts, x: Tokens) -> Results:
    value, grad = sh.value_and_grad(naive_loss)(router, experts, x)
    return {"loss": value, "gradient of the router": grad}


def fixed(router: Router, experts: Experts, x: Tokens) -> Results:
    value, grad = sh.value_and_grad(lambda router: sum(parts(router, experts, x, sh)))(router)
    return {"loss": value, "gradient of the router": grad}


BUG = Bug(
    name="router_aux_loss",
    wrong="the auxiliary loss of a router counts once for each device of tp",
    source="NVIDIA/Megatron-LM#3768, [Dev] fix(moe): align MoE router loss scale semantics",
    url="https://github.com/NVIDIA/Megatron-LM/pull/3768",
    types=("f32[16, experts=8]", "f32[16, inter=32@tp]", "f32[tokens=8@dp, 16]"),
    shown="gradient of the router",
    fix="global ops: a whole number is added once to a pending sum",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
