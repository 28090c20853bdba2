"""What the four transformers of this folder share: types by patterns, and twenty steps on one device and on a mesh."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax

import shtypes as sh

Tree = Any
#: A pattern of a path, and a type; the first that matches counts.
Rules = Sequence[tuple[str, str]]

VOCABULARY, BATCH, LENGTH = 32, 8, 8
TOKENS = "[batch@dp, time]"
STEPS = 20


def name_of(path: Sequence[Any]) -> str:
    """A path in a tree, as patterns are written for it: ``blocks/0/up/kernel``."""
    keys = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path]
    return "/".join(keys[:-1] if keys[-1] == "value" else keys)  # the array in a variable of NNX


def typed(tree: Tree, rules: Rules) -> Tree:
    """The arrays of a tree as typed values."""

    def one(path: Sequence[Any], x: Any) -> Any:
        name = name_of(path)
        text = next((text for pattern, text in rules if fnmatch.fnmatch(name, pattern)), None)
        if text is None:
            raise ValueError(f"no rule for {name}: {x.shape}")
        return sh.array(x, text)

    return jax.tree_util.tree_map_with_path(one, tree)


def data() -> tuple[Any, Any]:
    """Tokens, and what comes after each."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, LENGTH + 1)).astype(np.int32)
    return tokens[:, :-1], tokens[:, 1:]


def plain_step(loss: Callable[..., Any], optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """A training step of plain JAX."""

    def step(params: Tree, state: Tree, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def typed_step(loss: Callable[..., Any], optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """The same on typed values: each gradient is finished where it lies, as its parameter does."""
    lifted = sh.lift(loss)

    def total(*args: Any) -> Any:
        return sh.all_reduce(lifted(*args))

    def step(params: Tree, state: Tree, *batch: Any) -> Any:
        value, grads = sh.value_and_grad(total)(params, *batch)
        grads = jax.tree.map(lambda g, p: sh.reshard(g, p.type), grads, params)
        updates, state = sh.lift(optimizer.update)(grads, state, params)
        return sh.lift(optax.apply_updates)(params, updates), state, value

    return sh.implicit_comm(step)


def trained(step: Callable[..., Any], params: Tree, state: Tree, batch: Sequence[Any]) -> list[float]:
    """The losses of some steps."""
    losses = []
    for _ in range(STEPS):
        params, state, value = step(params, state, *batch)
        losses.append(float(np.asarray(value)))
    return losses


def train(loss: Callable[..., Any], params: Tree, rules: Rules) -> dict[str, list[float]]:
    """Trains a model on one device, and under both policies on a mesh; prints its types, what a step sends, the losses.

    Args:
        loss: A plain function of the parameters, tokens and targets.
        params: Plain arrays.
        rules: Their types.
    """
    optimizer, batch = optax.adamw(1e-2), data()
    losses = {"one device": trained(jax.jit(plain_step(loss, optimizer)), params, optimizer.init(params), batch)}
    for policy in ("partial", "jax"):
        with sh.policy(policy), sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})):
            mine, tokens = typed(params, rules), [sh.array(x, TOKENS) for x in batch]
            if policy == "partial":
                for path, x in jax.tree_util.tree_leaves_with_path(mine, is_leaf=lambda x: isinstance(x, sh.Array)):
                    print(f"{name_of(path):<40} {x.type}")
            state, step = sh.lift(optimizer.init)(mine), sh.jit(typed_step(loss, optimizer))
            print(f"a step, policy {policy}:", str(sh.ledger(step, mine, state, *tokens)).splitlines()[-1])
            losses[policy] = trained(step, mine, state, tokens)
    for name, found in losses.items():
        print(f"losses, {name}:", *(f"{x:.4f}" for x in found[::4]), f"{found[-1]:.4f}")
    return losses
