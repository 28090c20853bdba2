"""One embedding on two pipeline stages: the first looks tokens up in it, the last multiplies with it.

Each stage has a part of its gradient. Summed over data parallelism alone, each copy gets the part of its own stage,
and the two copies of one weight drift apart. Here it is one value over ``pp``, and its gradient is pending over
``pp`` under ``"partial"``: the optimizer refuses it. Under ``"jax"`` it is summed.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results, step

Table = A[sh.Array, "f32[vocab, 16]"]
Tokens = A[sh.Array, "i32[tokens]"]
#: What each stage adds to the loss.
Part = A[sh.Array, "f32[]{V:pp}"]


def staged_loss(table: Any, tokens: Any, m: Any, lax: Any) -> Any:
    """What one stage adds to the loss: the first sends the tokens' rows, the last compares them with all rows."""
    stage = lax.axis_index("pp")
    sent = lax.ppermute(m.where(stage == 0, table[tokens], 0.0), "pp", [(0, 1)])
    return m.where(stage == 1, m.mean(m.tanh(sent @ table.T)), 0.0)


def one_device(table: Any, tokens: Any) -> Results:
    value, grad = jax.value_and_grad(lambda table: jnp.mean(jnp.tanh(table[tokens] @ table.T)))(table)
    return {"loss": value, "step": step(table, grad)}


def plain(table: Any, tokens: Any) -> Results:
    value, grad = jax.value_and_grad(lambda table: staged_loss(table, tokens, jnp, jax.lax))(table)
    return {"loss": jax.lax.psum(value, "pp"), "step": step(table, grad)}


@sh.shard_map(out_specs="{U:pp}")
def typed_loss(table: Table, tokens: Tokens) -> Part:
    part: Part = staged_loss(table, tokens, sh, sh.lax)
    return part


def naive(table: Table, tokens: Tokens) -> Results:
    value, grad = sh.value_and_grad(typed_loss)(table, tokens)
    return {"loss": value, "step": step(table, grad)}


def fixed(table: Table, tokens: Tokens) -> Results:
    value, grad = sh.value_and_grad(typed_loss)(table, tokens)
    return {"loss": value, "step": step(table, sh.all_reduce(grad))}


BUG = Bug(
    name="tied_embedding",
    wrong="the gradients of a tied embedding on two pipeline stages are not added",
    source="uw-syfi/piper#13, Tied embedding support",
    url="https://github.com/uw-syfi/piper/issues/13",
    types=("f32[vocab=8, 16]", "i32[tokens=8]"),
    shown="step",
    fix="`sh.all_reduce(grad)` sums what is pending, if anything is",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
    mesh={"pp": 2},
)
