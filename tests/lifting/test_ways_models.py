"""Models in plain JAX whose rows, sequence, plane, vocabulary or experts are sharded, against one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from benchmarks.models import neighbours
from tests.end_to_end import host
from tests.tolerance import SERIES, assert_close

LINE, PLANE = {"x": 8}, {"x": 4, "y": 2}


class Model(NamedTuple):
    """A function, the types of its arguments, and the mesh."""

    f: Callable[..., Any]
    types: Any
    mesh: dict[str, int] = LINE
    gradient: bool = True


MODELS = {
    "linear attention": Model(
        neighbours.linear_attention, ({"conv": "[4,1,8]", "qkv": "[8,24]", "out": "[8,8]"}, "[2,64@x,8]")
    ),
    "mamba": Model(neighbours.mamba, (neighbours.mamba_weights(), "[2,64@x,8]")),
    "unet": Model(neighbours.unet, (neighbours.unet_weights(), "[2,32@x,16,3]", "[2]")),
    "fno": Model(neighbours.fno, (neighbours.fno_weights(), "[2,16@x,16@y,8]"), PLANE),
    "top_p": Model(neighbours.top_p, ("[4,64@x]", "[4,64@x]"), gradient=False),
    "router": Model(neighbours.router, ({"router": "[16,8@x]", "up": "[8@x,16,32]", "down": "[8@x,32,16]"}, "[32,16]")),
}


def arrays(types: Any, mesh: Any) -> Any:
    """Arrays of the types, between 0 and 1 where they are operands, small where they are weights."""
    rng = np.random.default_rng(0)

    def array(path: Any, t: str) -> Any:
        shape = sh.abstract_array(f"f32{t}", mesh=mesh).shape
        x = rng.normal(size=shape) if len(path) > 1 else rng.uniform(0.01, 0.99, shape)
        return (x / np.sqrt(np.prod(shape[:-1])) if len(path) > 1 else x).astype(np.float32)

    return jax.tree_util.tree_map_with_path(array, types)


@pytest.mark.one_in(19)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_what_it_is_on_one_device(name: str, policy: Any) -> None:
    model = MODELS[name]
    mesh = sh.make_mesh(model.mesh)
    plain = arrays(model.types, mesh)

    def loss(*args: Any) -> Any:
        y = model.f(*args)
        return jnp.sum(jnp.sin(y)), y

    one = jax.jit(jax.grad(loss, has_aux=True) if model.gradient else model.f)(*plain)
    with sh.policy(policy), sh.use_mesh(mesh):
        args = jax.tree.map(sh.array, plain, model.types)
        f = sh.grad(sh.lift(loss), has_aux=True) if model.gradient else sh.lift(model.f)
        typed = jax.block_until_ready(jax.jit(sh.implicit_comm(f))(*args))
    for value, expected in zip(jax.tree.leaves(typed), jax.tree.leaves(one), strict=True):
        assert_close(host(value), expected, SERIES)


@pytest.mark.nightly
def test_rows_of_an_image_send_their_borders_alone() -> None:
    """Eleven convolutions of 3 x 3, of which one has a stride, and the sums of five norms."""
    mesh = sh.abstract_mesh(LINE)
    types = (neighbours.unet_weights(), "[2,512@x,512,3]", "[2]")
    args = jax.tree.map(lambda t: sh.abstract_array(f"f32{t}", mesh=mesh), types)
    with sh.use_mesh(mesh):
        ledger = sh.ledger(sh.implicit_comm(sh.lift(neighbours.unet)), *args)
    assert {entry.kind for entry in ledger} == {"permute", "all-reduce"}
    assert sum(entry.kind == "permute" for entry in ledger) == 2 * 9 + 1
