"""Replicate forwards, partial backwards: what the two policies send for one block, tensor and sequence parallel.

After the post of that name (ezyang's blog, February 2026). `gated_mlp.py` is its first program, data and tensor
parallel. This is what it leaves to the reader: the block between two sequence parallel regions, where a pending
gradient goes straight to a reduce-scatter; and the invariant variant, which reduces early, before a fan-out.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import re
from collections.abc import Callable
from typing import Annotated as A
from typing import Any, Literal

import shtypes as sh
from shtypes.tools.demo.gated_mlp import mlp

X = "f32[seq@tp, batch@dp, hidden]"
WEIGHTS = ("f32[hidden, inner@tp]", "f32[hidden, inner@tp]", "f32[inner@tp, hidden]")
Tokens = A[sh.Array, "f32[seq@tp, batch@dp, hidden]"]
Whole = A[sh.Array, "f32[seq, batch@dp, hidden]"]
Pending = A[sh.Array, "f32[seq, batch@dp, hidden]{U:tp}"]
Up = A[sh.Array, "f32[hidden, inner@tp]"]
Down = A[sh.Array, "f32[inner@tp, hidden]"]
SIZES = {"seq": 8, "batch": 4, "hidden": 16, "inner": 32}


def norm(x: Tokens) -> Tokens:
    """What sequence parallelism is for: it works on each token, wherever it is."""
    return x * sh.rsqrt(sh.mean(x * x, -1, keepdims=True) + 1e-6)


def branch(x: Tokens, w1: Up, w3: Up, w2: Down) -> Any:
    """Into the tensor parallel region: gather the sequence, multiply. The same source under both policies.

    Under ``"partial"`` the gathered value is reduced, so its gradient stays pending over ``tp`` until the gather's
    transpose, which is a reduce-scatter. Under ``"jax"`` it is invariant: its gradient is summed by an all-reduce where
    it leaves the tensor parallel region, and then most of it is thrown away by the gather's transpose, a slice. That is
    how the program is written; `sh.jit` merges the two reshards in a row, and runs a reduce-scatter under both.
    """
    return mlp(sh.all_gather(norm(x), "tp"), w1, w3, w2)


def block(x: Tokens, w1: Up, w3: Up, w2: Down) -> Tokens:
    """And out of it: the pending sum is scattered over the sequence, and added to the residual stream."""
    pending: Pending = branch(x, w1, w3, w2)
    return x + sh.reduce_scatter(pending, "tp", 0)


def overlapped(x: Tokens, w1: Up, w3: Up, w2: Down) -> Tokens:
    """The same block with its gathers and its scatter overlapped with the products: the types are the same."""
    tokens = norm(x)
    h1 = sh.einsum("sbh,hi->sbi", tokens, w1, out="[_, _@dp, _@tp]", overlap=True)
    h3 = sh.einsum("sbh,hi->sbi", tokens, w3, out="[_, _@dp, _@tp]", overlap=True)
    return x + sh.einsum("sbi,ih->sbh", sh.silu(h1) * h3, w2, out="[_@tp, _@dp, _]", overlap=True)


def loss(run: Callable[..., Any], *args: Any) -> Any:
    """Local losses: a sum that stays pending."""
    return sh.sum(run(*args))


# The invariant variant.

State = Literal["R", "I"]


def mixed(a: Whole, b: Whole, scale: A[sh.Array, "f32[hidden]"], w1: Up, w3: Up, w2: Down) -> Any:
    """A block whose input is made of three replicated values: backward, its gradient fans out to the three."""
    return mlp((a + b) * scale, w1, w3, w2)


def gradients(state: State) -> Callable[..., Any]:
    """The gradients of the three, summed over ``tp``.

    Reduced operands keep them pending, and each is summed by itself, but that of `a` and of `b`, which are one value.
    Invariant ones have the gradient of the block's input summed once, before it fans out.
    """

    def summed(*args: Any) -> Any:
        found = sh.grad(lambda *args: sh.sum(mixed(*args)), argnums=(0, 1, 2))(*args)
        return [sh.all_reduce(g, "tp", to="I") if state == "R" else g for g in found]

    return summed


def fan_out_operands(state: State) -> list[Any]:
    """Types of the three values in a state over ``tp``, and of the weights."""
    a, scale = f"f32[seq, batch@dp, hidden]{{{state}:tp}}", f"f32[hidden]{{{state}:tp, R:dp}}"
    with sh.dims(**SIZES):
        return [sh.abstract_array(t) for t in (a, a, scale, *WEIGHTS)]


def operands() -> list[Any]:
    """The block's operands, with only their types."""
    with sh.dims(**SIZES):
        return [sh.abstract_array(t) for t in (X, *WEIGHTS)]


def kinds_on_tp(f: Callable[..., Any], args: list[Any]) -> list[str]:
    """The collectives of the compiled program whose groups are the four devices of ``tp``."""
    text = sh.jit(f).lower(*args).compile().as_text() or ""
    found = re.findall(
        r" (all-reduce|all-gather|reduce-scatter)(?:-start)?\(.*replica_groups=(mesh\S+ \S+|\S+?),? ", text
    )
    return [kind for kind, groups in found if groups.startswith(("{{0,1,2,3}", "[2,4]", "mesh['dp'=2,'tp'=4] {'tp'}"))]


def main() -> None:
    """Prints, under both policies, what the gradient of the block's input sends as written, and what is compiled."""
    sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 4}))
    for policy in ("partial", "jax"):
        with sh.policy(policy):
            args = operands()
            print(f"policy {policy}")
            print(f"  branch: {sh.typeof(branch(*args))}, block: {sh.typeof(block(*args))}")
            for run in (branch, block):
                with sh.merge_reshards(False):
                    found = sh.ledger(sh.grad(lambda *args, run=run: loss(run, *args)), *args).backward()
                sent = "; ".join(f"{e} {e.bytes} B/device" for e in found)
                print(f"  backward, for the gradient of the {run.__name__}'s input: {sent}")
            grads = sh.grad(lambda *args: loss(block, *args), argnums=(0, 1, 2, 3))(*args)
            print("  gradients: " + ", ".join(str(sh.typeof(g)) for g in grads))
            step = sh.value_and_grad(lambda *args: sh.sum(sh.sin(block(*args))), argnums=(0, 1, 2, 3))
            print("  HLO on tp: " + ", ".join(sorted(set(kinds_on_tp(step, args)))))
    for state in ("R", "I"):
        found = sh.ledger(gradients(state), *fan_out_operands(state)).select(lambda e: e.axes == ("tp",))
        sums = f"{found.launches} all-reduce{'s' * (found.launches > 1)}"
        print(f"three values that are {state}: {sums} over tp, {found.bytes} B/device")


if __name__ == "__main__":
    main()
