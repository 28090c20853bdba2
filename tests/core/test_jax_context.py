"""What scopes set is a part of JAX's trace-cache keys."""

import jax
import pytest

import shtypes as sh


@pytest.mark.core
def test_another_size_for_a_dim_name_is_never_answered_by_a_stale_trace() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    make = jax.jit(lambda: sh.zeros("f32[n@x]"))
    with sh.dims(n=8):
        assert make().shape == (8,)
    with sh.dims(n=16):
        assert make().shape == (16,)


@pytest.mark.core
def test_another_policy_is_never_answered_by_a_stale_trace() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    make = jax.jit(lambda: sh.zeros("f32[4]"))
    states = []
    for name in ("partial", "jax", "partial"):
        with sh.policy(name):
            states.append(make().type.state("x"))
    assert states == [sh.State.REDUCED, sh.State.INVARIANT, sh.State.REDUCED]
