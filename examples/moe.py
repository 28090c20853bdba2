"""A mixture of experts: tokens go to the devices of their experts and back, by two all-to-alls.

Tokens come in groups, one for each device or more. Routing, dispatch and combination act inside a group, so they need
no communication: a dispatched group holds a slot for each expert and place. What moves is that array, from sharded by
group to sharded by expert, and back; the transposes move the gradients the same ways.

Run ``python -m examples.moe``.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

from typing import Any

import numpy as np

import shtypes as sh
from examples.hlo import collectives_run, compiled_text

GROUPS, TOKENS, HIDDEN, INNER, EXPERTS, CAPACITY, DEVICES = 8, 16, 8, 16, 16, 4, 8

X = f"f32[groups={GROUPS}@ep, tokens={TOKENS}, hidden={HIDDEN}]"
ROUTER = f"f32[hidden={HIDDEN}, experts={EXPERTS}]"
W_IN = f"f32[experts={EXPERTS}@ep, hidden={HIDDEN}, inner={INNER}]"
W_OUT = f"f32[experts={EXPERTS}@ep, inner={INNER}, hidden={HIDDEN}]"


@sh.no_comm
def route(x: Any, router: Any) -> tuple[Any, Any]:
    """For each token its expert and its place there, one-hot, and the same times the router's probability."""
    scores = sh.softmax(sh.einsum("gth,he->gte", x, router), -1)
    chosen = sh.one_hot(sh.argmax(scores, -1), EXPERTS)
    place = sh.cumsum(chosen, 1) * chosen - 1.0  # -1 for the experts that were not chosen
    dispatch = sh.one_hot(sh.astype(place, "i32"), CAPACITY)  # nothing for places beyond the capacity
    return dispatch, dispatch * sh.expand_dims(scores * chosen, -1)


@sh.comm_budget(kinds="all-to-all", launches=2)
def moe(x: Any, router: Any, w_in: Any, w_out: Any) -> Any:
    """The layer; a token beyond the capacity of its expert gives zero."""
    dispatch, combine = route(x, router)
    slots = sh.all_to_all(sh.einsum("gth,gtec->gech", x, dispatch), "ep", 1)
    done = sh.einsum("geci,eih->gech", sh.silu(sh.einsum("gech,ehi->geci", slots, w_in)), w_out)
    return sh.einsum("gech,gtec->gth", sh.all_to_all(done, "ep", 0), combine)


def loss(*args: Any) -> Any:
    """The sum of squares: a pending sum over ``ep``."""
    return sh.sum(moe(*args) ** 2)


def step(x: Any, router: Any, w_in: Any, w_out: Any) -> Any:
    """The gradients of the tokens and the weights; the router's is summed once."""
    g_x, g_router, g_in, g_out = sh.grad(loss, argnums=(0, 1, 2, 3))(x, router, w_in, w_out)
    return g_x, sh.reshard(g_router, sh.typeof(router)), g_in, g_out


def arguments() -> tuple[Any, ...]:
    """Tokens and weights."""
    rng = np.random.default_rng(0)
    types = [sh.ShType.parse(t) for t in (X, ROUTER, W_IN, W_OUT)]
    return tuple(sh.array(rng.standard_normal(t.shape).astype(np.float32), t) for t in types)


def bytes_of_slots() -> int:
    """What each device sends in one all-to-all: all of its slots but its own."""
    return GROUPS // DEVICES * EXPERTS * CAPACITY * HIDDEN * 4 * (DEVICES - 1) // DEVICES


def main() -> None:
    """Prints the ledger and what the compiled program runs."""
    sh.set_mesh(sh.make_mesh({"ep": DEVICES}))
    args = arguments()
    ledger = sh.ledger(step, *args)
    print(ledger)
    print(f"each all-to-all: the formula says {bytes_of_slots()} B/device")
    print(f"compiled: {dict(collectives_run(compiled_text(sh.jit(step), *args)))}")


if __name__ == "__main__":
    main()
