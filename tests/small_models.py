"""Small typed programs and the same programs of plain JAX: what the tests of transformations run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import shtypes as sh
from shtypes.core.operation import applied_by
from tests import tolerance
from tests.end_to_end import host

AXES = {"dp": 2, "tp": 2}
BATCH, HIDDEN, INNER, LAYERS = 4, 8, 16, 3

_rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    """Random numbers of a size that keeps activations in range."""
    return np.asarray(_rng.standard_normal(shape) / shape[-1] ** 0.5, np.float32)


X, W_IN, W_OUT = normal(BATCH, HIDDEN), normal(HIDDEN, INNER), normal(INNER, HIDDEN)
STACK = normal(LAYERS, HIDDEN, HIDDEN)
ROWS = normal(5, BATCH, HIDDEN)

X_TYPE, IN_TYPE, OUT_TYPE = "f32[batch@dp, hidden]", "f32[hidden, inner@tp]", "f32[inner@tp, hidden]"


def mesh() -> Any:
    """The mesh of all programs, in context from now on."""
    found = sh.make_mesh(AXES)
    sh.set_mesh(found)
    return found


def values() -> tuple[Any, Any, Any]:
    """A batch-sharded input and two weights, sharded by column and by row."""
    return sh.array(X, X_TYPE), sh.array(W_IN, IN_TYPE), sh.array(W_OUT, OUT_TYPE)


def stack() -> Any:
    """The weights of all layers, replicated."""
    return sh.array(STACK, "f32[layer, hidden, hidden]")


# one layer


def mlp(x: Any, w_in: Any, w_out: Any) -> Any:
    """Two contractions; the second leaves a pending sum, reduced at once."""
    return sh.all_reduce(sh.silu(x @ w_in) @ w_out)


def loss(x: Any, w_in: Any, w_out: Any) -> Any:
    """A typed loss: unreduced over the batch axis."""
    out = mlp(x, w_in, w_out)
    return sh.sum(out * out)


def plain_loss_of(x: Any, w_in: Any, w_out: Any) -> Any:
    """The typed loss as a plain array, for JAX's own `grad`."""
    return to_plain(loss(x, w_in, w_out))


def to_plain(x: Any) -> Any:
    """A scalar as a plain array."""
    return sh.reshard(x, "[]{I:(dp,tp)}").to_jax()


def reference_mlp(x: Any, w_in: Any, w_out: Any) -> Any:
    """`mlp` on one device."""
    return jax.nn.silu(x @ w_in) @ w_out


def reference_loss(x: Any, w_in: Any, w_out: Any) -> Any:
    """`loss` on one device."""
    return (reference_mlp(x, w_in, w_out) ** 2).sum()


@functools.cache
def expected() -> tuple[Any, tuple[Any, ...]]:
    """The loss and its three gradients on one device."""
    value, grads = one_device(jax.value_and_grad(reference_loss, argnums=(0, 1, 2)), X, W_IN, W_OUT)
    return value, grads


# a stack of layers


def layer(x: Any, w: Any) -> Any:
    """One layer of a loop, typed."""
    return sh.silu(x @ w)


def looped(ws: Any, x: Any, **options: Any) -> Any:
    """The layers in a loop."""
    return sh.scan(lambda x, w: (layer(x, w), None), x, ws, **options)[0]


def looped_loss(ws: Any, x: Any, **options: Any) -> Any:
    """A typed loss of the loop."""
    out = looped(ws, x, **options)
    return sh.sum(out * out)


def reference_looped(ws: Any, x: Any, reverse: bool = False) -> Any:
    """`looped` on one device."""
    for i in range(LAYERS)[:: -1 if reverse else 1]:
        x = jax.nn.silu(x @ ws[i])
    return x


def reference_looped_loss(ws: Any, x: Any, reverse: bool = False) -> Any:
    """`looped_loss` on one device."""
    return (reference_looped(ws, x, reverse) ** 2).sum()


@functools.cache
def expected_looped() -> tuple[Any, Any]:
    """The gradients of the loop's loss on one device."""
    of_stack, of_x = one_device(jax.grad(reference_looped_loss, argnums=(0, 1)), STACK, X)
    return of_stack, of_x


def one_device(f: Callable[..., Any], *args: Any) -> Any:
    """A plain function compiled and run, on the host."""
    return jax.tree.map(np.asarray, jax.jit(f)(*args))


def assert_close(found: Any, wanted: Any, roundings: float | None = None) -> None:
    """Compares a tree of values with arrays, as `tests.tolerance` says."""
    leaves, others = jax.tree.leaves(found), jax.tree.leaves(wanted)
    assert len(leaves) == len(others)
    for a, b in zip(leaves, others, strict=True):
        tolerance.assert_close(host(a), b, roundings)


def assert_gradients(grads: Any, args: Any, wanted: Any) -> None:
    """Compares gradients with arrays, and their types with the cotangent map."""
    for g, a in zip(jax.tree.leaves(grads), jax.tree.leaves(args), strict=True):
        assert g.type == a.type.cotangent()
    assert_close(grads, wanted)


def equations(f: Callable[..., Any], *args: Any) -> list[str]:
    """The names of all equations of the traced program, those inside others too."""
    found: list[str] = []

    def walk(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            found.append(str(applied_by(eqn)))
            for param in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
                inner = getattr(param, "jaxpr", param)
                if hasattr(inner, "eqns"):
                    walk(inner)

    walk(jax.make_jaxpr(f)(*args).jaxpr)
    return found
