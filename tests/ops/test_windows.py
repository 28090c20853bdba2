"""Windows that no border between shards cuts: convolutions, pools and their derivatives send nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from tests.end_to_end import host
from tests.tolerance import assert_close

rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(2, 8, 16, 3)).astype(np.float32)
KERNEL = rng.normal(size=(4, 4, 3, 5)).astype(np.float32)
LAYOUT = ("NHWC", "HWIO", "NHWC")

pytestmark = pytest.mark.mesh({"x": 2, "y": 2})


def patches(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(x, k, (4, 4), "VALID", dimension_numbers=LAYOUT)


def patches_with_gaps(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(x, k[:2, :2], (4, 4), "VALID", rhs_dilation=(2, 1), dimension_numbers=LAYOUT)


def patches_back(x: Any, k: Any) -> Any:
    """The transpose of the patches, from features to images."""
    y = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, 2)))
    return lax.conv_transpose(y, k.transpose(0, 1, 3, 2)[..., :3], (4, 4), "VALID", dimension_numbers=LAYOUT)


def greatest(x: Any, k: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 4, 2, 1), (1, 4, 2, 1), "VALID") * jnp.sum(k)


def mean(x: Any, k: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 4, 1), (1, 4, 4, 1), "VALID") * jnp.sum(k)


ALL = [patches, patches_with_gaps, patches_back, greatest, mean]


@pytest.mark.one_in(7)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("f", ALL)
def test_it_is_local_with_the_values_and_gradients_of_one_device(f: Callable[..., Any], policy: Any) -> None:
    def loss(x: Any, k: Any) -> Any:
        return jnp.sum(jnp.sin(f(x, k)))

    expected = jax.jit(jax.value_and_grad(loss, (0, 1)))(IMAGES, KERNEL)
    with sh.policy(policy):
        args = sh.array(IMAGES, "f32[2,8@x,16@y,3]"), sh.array(KERNEL, "f32[4,4,3,5]{R:(x,y)}")
        with sh.no_comm():
            result = jax.eval_shape(sh.lift(f), *args)
            steps: list[Callable[..., Any]] = [sh.value_and_grad(sh.lift(loss), argnums=(0, 1))]
            steps += [] if f is mean else [sh.lift(jax.value_and_grad(loss, (0, 1)))]  # JAX transposes it by a pad
            for step in steps:
                for value, plain in zip(jax.tree.leaves(jax.jit(step)(*args)), jax.tree.leaves(expected), strict=True):
                    assert_close(host(value), plain)
        assert result.shape == jax.eval_shape(f, IMAGES, KERNEL).shape


def test_a_window_across_a_border_is_refused() -> None:
    x, k = sh.abstract_array("f32[2,12@(x,y),16,3]"), sh.abstract_array("f32[4,4,3,5]")
    with pytest.raises(sh.ShardingTypeError, match="acts along dim 1, which is sharded on mesh axes"):
        sh.lift(patches)(x, k)  # three rows on each device, and windows of four


def test_each_device_computes_its_share_of_a_patch_embedding() -> None:
    x, k = sh.abstract_array("f32[1,8@x,16@y,3]"), sh.abstract_array("f32[4,4,3,5]")
    f = sh.implicit_comm(sh.lift(patches))
    assert not sh.ledger(f, x, k)
    assert str(jax.make_jaxpr(f)(x, k).out_avals[0]) == "f32[1,2@x,4@y,5]"
