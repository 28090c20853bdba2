"""Lookups of plain programs whose positions count along a sharded dim: that dim is a batch dim, and nothing moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.random_checks import denoted
from tests.tolerance import assert_close

ROWS = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
LABELS = np.asarray([3, 7, 0, -1], np.int32)


def _of_labels(x: Any, labels: Any) -> Any:
    return x[jnp.arange(4), labels]


def _of_numpy_labels(x: Any, labels: Any) -> Any:
    return x[np.arange(4), labels]


def _along(x: Any, labels: Any) -> Any:
    return jnp.take_along_axis(x, labels[:, None], axis=1)[:, 0]


def _mapped(x: Any, labels: Any) -> Any:
    return jax.vmap(lambda row, label: row[label])(x, labels)


def _cross_entropy(x: Any, labels: Any) -> Any:
    return jax.nn.logsumexp(jax.lax.stop_gradient(x) * 0, axis=1) - _of_labels(x, labels)


def _put(x: Any, labels: Any) -> Any:
    return jnp.put_along_axis(x, labels[:, None], 2.0, 1, inplace=False)


def _added(x: Any, labels: Any) -> Any:
    return x.at[jnp.arange(4), labels].add(jnp.sin(x[:, 1]))


def _one_hot(x: Any, labels: Any) -> Any:
    return jnp.zeros((4, 8)).at[jnp.arange(4), labels].set(x[:, 2])


@pytest.mark.one_in(23)
@pytest.mark.parametrize(
    ("f", "given", "type_of_labels", "made"),
    [
        (_of_labels, "f32[4@x, 8]", "i32[4@x]", "f32[4@x]"),
        (_of_labels, "f32[4@x, 8@y]", "i32[4@x]", "f32[4@x]{U:y}"),
        (_of_labels, "f32[4@x, 8]{I:y}", "i32[4]", "f32[4@x]{I:y}"),
        (_of_labels, "f32[4, 8]", "i32[4@x]", "f32[4@x]"),
        (_of_numpy_labels, "f32[4@x, 8@y]", "i32[4@x]", "f32[4@x]{U:y}"),
        (_along, "f32[4@x, 8@y]", "i32[4@x]", "f32[4@x]{U:y}"),
        (_mapped, "f32[4@x, 8@y]", "i32[4@x]", "f32[4@x]{U:y}"),
        (_cross_entropy, "f32[4@x, 8]", "i32[4@x]", "f32[4@x]"),
        (_put, "f32[4@x, 8]", "i32[4@x]", "f32[4@x,8]"),
        (_put, "f32[4@x, 8@y]", "i32[4@x]", "f32[4@x,8@y]"),
        (_added, "f32[4@x, 8]", "i32[4@x]", "f32[4@x,8]"),
        (_one_hot, "f32[4@x, 8]", "i32[4@x]", "f32[4@x,8]"),
    ],
)
@pytest.mark.parametrize("jitted", [False, True])
def test_positions_that_count_run_together_with_a_sharded_dim(
    f: Callable[..., Any], given: str, type_of_labels: str, made: str, jitted: bool
) -> None:
    weights = np.arange(1, 9, dtype=np.float32)

    def loss(x: Any, labels: Any) -> Any:
        return jnp.sum(f(x, labels) ** 2 * weights[: f(x, labels).shape[-1]])

    wanted = f(jnp.asarray(ROWS), jnp.asarray(LABELS))
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})):
        x, labels = sh.array(ROWS, given), sh.array(LABELS, type_of_labels)
        run = sh.jit(sh.lift(f)) if jitted else sh.lift(f)
        y = run(x, labels)
        assert str(y.type) == made
        np.testing.assert_allclose(denoted(y), wanted, rtol=1e-6)
        if jitted and "U" not in made:
            total = sh.jit(sh.grad(lambda x, labels: sh.all_reduce(sh.lift(loss)(x, labels))))
            assert_close(denoted(total(x, labels)), jax.grad(loss)(jnp.asarray(ROWS), jnp.asarray(LABELS)), 100)


def test_a_count_of_other_rows_stays_a_lookup() -> None:
    def shifted(x: Any, labels: Any) -> Any:
        return x[jnp.arange(4)[::-1], labels], x[jnp.arange(2), labels[:2]], x[jnp.arange(4) + 1, labels]

    wanted = shifted(jnp.asarray(ROWS), jnp.asarray(LABELS))
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        found = sh.lift(shifted)(sh.array(ROWS, "f32[4@x, 8]"), sh.array(LABELS, "i32[4]"))
        for y, right in zip(found, wanted, strict=True):
            assert "U:x" in str(y.type)
            np.testing.assert_allclose(denoted(y), right, rtol=1e-6)
