"""The examples of JAX's design of efficient transposition (JEP 17111), on sharding types.

Run each under the policy ``"jax"``, whose unmapped values are invariant, on a mesh with an axis ``i``. Their backward
passes have the collectives that the design asks for, and transposing twice gives the program back.
"""

from __future__ import annotations

from typing import Any

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


@sh.shard_map(in_specs=("[_, _]", "[_@i, _]"), out_specs="[]")
def loss(params: Any, batch: Any) -> Any:
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
