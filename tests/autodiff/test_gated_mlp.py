"""A gated MLP under every policy and many shardings: each gradient is the one of one device, in the mapped type."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import shtypes as sh
from tests import small_models as p

SEQ, BATCH, HIDDEN, INNER = 2, 4, 8, 16
ARRAYS = {
    "x": p.normal(SEQ, BATCH, HIDDEN),
    "norm": 1 + p.normal(HIDDEN),
    "gate": p.normal(HIDDEN, INNER),
    "up": p.normal(HIDDEN, INNER),
    "down": p.normal(INNER, HIDDEN),
}
LAYOUTS = {
    "data": {"x": "[2, 4@(dp,tp), 8]"},
    "tensor": {"x": "[2, 4, 8]", "gate": "[8, 16@(dp,tp)]", "up": "[8, 16@(dp,tp)]", "down": "[16@(dp,tp), 8]"},
    "both": {"x": "[2, 4@dp, 8]", "gate": "[8, 16@tp]", "up": "[8, 16@tp]", "down": "[16@tp, 8]"},
    "sequence": {"x": "[2@tp, 4@dp, 8]", "gate": "[8, 16@tp]", "up": "[8, 16@tp]", "down": "[16@tp, 8]"},
    "fully sharded": {"x": "[2, 4@dp, 8]", "gate": "[8@dp, 16@tp]", "up": "[8@dp, 16@tp]", "down": "[16@tp, 8@dp]"},
    "reduced": {"x": "[2, 4@dp, 8]{R:tp}", "norm": "[8]{R:(dp,tp)}", "down": "[16@tp, 8]{R:dp}"},
    "invariant": {"x": "[2, 4@dp, 8]{I:tp}", "norm": "[8]{I:(dp,tp)}", "gate": "[8, 16@tp]{I:dp}"},
}


def gathered(w: Any, *dims: int) -> Any:
    """A weight with its fully sharded dims gathered, but not the one that both sides of a contraction share."""
    return sh.all_gather(w, "dp") if any(w.type.dims[d].axes == ("dp",) for d in dims) else w


def typed_loss(args: dict[str, Any]) -> Any:
    """A scaling, a gated MLP and a residual connection; gathers and reductions stand where a layout needs them."""
    x = sh.all_gather(args["x"], "tp") if args["x"].type.dims[0].axes else args["x"]
    gate, up, down = gathered(args["gate"], 0), gathered(args["up"], 0), gathered(args["down"], 1)
    h = x * args["norm"]
    h = sh.silu(sh.einsum("sbh,hi->sbi", h, gate)) * sh.einsum("sbh,hi->sbi", h, up)
    out = sh.all_reduce(sh.einsum("sbi,ih->sbh", h, down)) + x
    return sh.sum(out * out)


def reference_loss(args: dict[str, Any]) -> Any:
    x = args["x"]
    h = x * args["norm"]
    h = jax.nn.silu(h @ args["gate"]) * (h @ args["up"])
    return ((h @ args["down"] + x) ** 2).sum()


@pytest.mark.one_in(29)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_a_gated_mlp_has_the_gradients_of_one_device(layout: str, policy: str) -> None:
    p.mesh()
    with sh.policy(policy):
        args = {k: sh.array(v, LAYOUTS[layout].get(k, f"[{', '.join(map(str, v.shape))}]")) for k, v in ARRAYS.items()}
        value, grads = jax.jit(sh.value_and_grad(typed_loss))(args)
        wanted_value, wanted = p.one_device(jax.value_and_grad(reference_loss), ARRAYS)
        p.assert_close(value, wanted_value)
        p.assert_gradients(grads, args, wanted)
