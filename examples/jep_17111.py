"""The examples of JAX's design of efficient transposition (JEP 17111), on sharding types.

Run each under the policy ``"jax"``, whose unmapped values are invariant, on a mesh with an axis ``i``. Their backward
passes have the collectives that the design asks for, and transposing twice gives the program back.

    python -m examples.jep_17111
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

from typing import Annotated, Any

import jax
import numpy as np

import shtypes as sh


def g(x: Any) -> Any:
    """Some function of one device's values; linear, so that it can be transposed."""
    return x * 2.0


# 1: a sum that is returned whole. Its transpose sends nothing.
f1 = sh.shard_map(lambda x: sh.lax.psum(g(x), "i"), in_specs="[_@i, _]", out_specs="[_, _]")

# 2: a sum that meets what varies: pbroadcast is inserted, and the transpose sums.
f2 = sh.shard_map(lambda x, y: sh.lax.psum(g(x), "i") * y, in_specs="[_@i, _]", out_specs="[_@i, _]")

# 3: nothing to do, however often it is transposed.
cursed_identity = sh.shard_map(lambda x: x, in_specs="[_]", out_specs="[_]")

# 4: a gather that is returned whole. Its transpose takes slices.
f4 = sh.shard_map(lambda x: sh.lax.all_gather_invariant(x, "i", tiled=True), in_specs="[_@i]", out_specs="[_]")

# 5: a gather that meets what varies. Its transpose is a reduce-scatter.
f5 = sh.shard_map(lambda x, y: sh.lax.all_gather(x, "i", tiled=True) * y, in_specs="[_@i]", out_specs="[_@i]")


#: What one device has of a batch: inputs, and what they should give.
Part = tuple[Annotated[sh.Array, "f32[batch, features]{V:i}"], Annotated[sh.Array, "f32[batch, targets]{V:i}"]]


@sh.shard_map(in_specs=("[_, _]", "[_@i, _]"), out_specs="[]")
def loss(params: Annotated[sh.Array, "f32[features, targets]"], batch: Part) -> Annotated[sh.Array, "f32[]"]:
    """The loss of a data-parallel step: each device has its part of the batch, and the mean of the losses is whole."""
    inputs, targets = batch
    predictions = inputs @ params
    local_loss = sh.mean(sh.sum(predictions - targets, -1))
    return sh.lax.pmean(local_loss, "i")


def psum_idrev(x: Any) -> Any:
    """A sum whose backward pass is the identity."""
    return sh.lax.psum(x, "i", to="invariant")


def id_psumrev(x: Any) -> Any:
    """The identity, whose backward pass is a sum."""
    return sh.lax.pbroadcast(x, "i")


def scaled_explicitly(w: Any, x: Any) -> Any:
    """With ``explicit=True``, where the backward sum happens is written."""
    return sh.lax.pvary(w, "i") * x


#: Each numbered example with the types of its operands; it is transposed in the first.
EXAMPLES: dict[str, tuple[Any, ...]] = {
    "f1": (f1, "f32[8@i, 3]"),
    "f2": (f2, "f32[8@i, 3]", "f32[8@i, 3]"),
    "cursed_identity": (cursed_identity, "f32[8]"),
    "f4": (f4, "f32[8@i]"),
    "f5": (f5, "f32[8@i]", "f32[32@i]"),
}


def main() -> None:
    """Prints what each example sends, forward and transposed, and what a step of training does under both policies."""
    sh.set_mesh(sh.make_mesh({"i": 4}))
    with sh.policy("jax"):
        for name, (f, *types) in EXAMPLES.items():
            x, *others = (sh.ones(t) for t in types)
            y, pull = jax.vjp(lambda x, f=f, others=others: f(x, *others), x)
            back, sent = sh.ledger(pull, sh.abstract_array(y.type.cotangent())), sh.ledger(f, x, *others)
            print(f"{name}: {x.type} -> {y.type}, sends {_kinds(sent)}; transposed {_kinds(back)}")
    for policy in ("jax", "partial"):
        with sh.policy(policy):
            rng = np.random.default_rng(0)
            params, inputs, targets = (rng.standard_normal(n).astype(np.float32) for n in ((4, 2), (8, 4), (8, 2)))
            args = sh.array(params, "f32[4, 2]"), (sh.array(inputs, "f32[8@i, 4]"), sh.array(targets, "f32[8@i, 2]"))
            (gradient,) = jax.tree.leaves(sh.grad(loss)(*args))
            step = ", ".join(
                f"{e} {e.direction} ({e.bytes} B/device)" for e in sh.ledger(sh.value_and_grad(loss), *args)
            )
            wanted = (inputs.T @ np.ones((8, 2), np.float32)) / 8
            close = np.allclose(np.asarray(sh.reshard(gradient, "[...]")), wanted, atol=1e-5)
            print(f'loss under "{policy}": gradient {gradient.type}, sends {step}; as on one device: {close}')


def _kinds(sent: Any) -> str:
    return ", ".join(map(str, sent)) or "nothing"


if __name__ == "__main__":
    main()
