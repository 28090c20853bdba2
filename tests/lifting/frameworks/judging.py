"""Unmodified modules of frameworks, lifted under layouts, against one device: values, and gradients of all floats."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.denotation import denoted
from tests.tolerance import assert_within, computed

MESH: Final = {"dp": 2, "tp": 4}
#: Whether the batch is sharded over ``dp``; which weights of several dims lie in rows over ``tp``, of every two: the
#: others lie in columns. None: no weight is sharded.
LAYOUTS: Final[dict[str, tuple[bool, int | None]]] = {"data": (True, None), "tensor": (False, 1), "both": (True, 0)}


class Module(NamedTuple):
    """A module of a framework, as a function of its state and its inputs."""

    apply: Callable[..., Any]
    state: Any
    inputs: tuple[Any, ...]
    batch: tuple[int | None, ...] = ()
    """Which dim of each input is the batch; of those not said, the first."""
    types: Mapping[str, Sequence[str | None]] = MappingProxyType({})
    """By layout, the type of each array of the state and of the inputs, where `LAYOUTS` do not fit."""


def cases(modules: Iterable[str], daily: Iterable[str]) -> list[Any]:
    """Each module under each layout; those that are looked at each time under one, the others by night."""
    return [
        pytest.param(
            name,
            layout,
            id=f"{name}-{layout}",
            marks=() if name in daily and layout == "both" else pytest.mark.nightly,
        )
        for name in modules
        for layout in LAYOUTS
    ]


def array(*shape: int) -> Any:
    """Numbers of a shape."""
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def whole(below: int, *shape: int) -> Any:
    """Whole numbers of a shape."""
    return np.random.default_rng(1).integers(0, below, shape).astype(np.int32)


def is_float(x: Any) -> bool:
    """Whether an array has gradients."""
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _text(shape: tuple[int, ...], dim: int | None, axis: str) -> str:
    whole_ = dim is None or shape[dim] % MESH[axis]
    return f"[{', '.join(f'_@{axis}' if d == dim and not whole_ else '_' for d in range(len(shape)))}]"


def _types(module: Module, layout: str) -> list[str | None]:
    """The type of each array of a module and of its inputs; None of those that stay plain: keys and counts."""
    if layout in module.types:
        return list(module.types[layout])
    over_batch, in_rows = LAYOUTS[layout]
    found: list[str | None] = []
    matrices = 0
    for x in jax.tree.leaves(module.state):
        dim = None if in_rows is None or not x.ndim else x.ndim - 1
        if x.ndim > 1:
            dim = x.ndim - 2 if matrices % 2 == in_rows else dim
            matrices += 1
        found.append(_text(x.shape, dim, "tp") if is_float(x) else None)
    for i, x in enumerate(module.inputs):
        batch = module.batch[i] if i < len(module.batch) else 0
        found.append(_text(x.shape, batch if over_batch else None, "dp"))
    return found


def _weighted(y: Any) -> Any:
    return jnp.sum(y * np.cos(np.arange(y.size, dtype=np.float32)).reshape(y.shape))


def judged(module: Module, layout: str, *, allowing: bool = True) -> int:
    """Compares a module, lifted, with itself on one device: its results, and the gradients of a weighted sum of them.

    Args:
        module: The module.
        layout: How its arrays lie.
        allowing: Whether what it communicates is inserted.

    Returns:
        The bytes that each device sends, forward and backward.
    """
    leaves, tree = jax.tree.flatten((module.state, module.inputs))
    floats = [i for i, x in enumerate(leaves) if is_float(x)]

    def loss(given: list[Any], others: list[Any]) -> Any:
        rest = iter(others)
        known = dict(zip(floats, given, strict=True))
        state, inputs = jax.tree.unflatten(tree, [known[i] if i in known else next(rest) for i in range(len(leaves))])
        outs = [
            y for y in jax.tree.leaves(module.apply(state, *inputs)) if not jnp.issubdtype(y.dtype, jax.dtypes.extended)
        ]
        return functools.reduce(jnp.add, [_weighted(y) for y in outs if is_float(y)]), outs

    def parted(values: list[Any]) -> tuple[list[Any], list[Any]]:
        return [values[i] for i in floats], [x for i, x in enumerate(values) if i not in floats]

    wanted, errors = computed(jax.grad(loss, has_aux=True), *parted(leaves))
    lifted = sh.lift(loss)
    with sh.use_mesh(sh.make_mesh(MESH)):
        typed = [x if t is None else sh.array(x, t) for x, t in zip(leaves, _types(module, layout), strict=True)]

        def total(*args: Any) -> Any:
            value, outs = lifted(*args)
            return (sh.all_reduce(value) if value.type.axes(sh.State.UNREDUCED) else value), outs

        step = sh.value_and_grad(total, has_aux=True)
        step = sh.implicit_comm(step) if allowing else step
        (_, outs), grads = jax.block_until_ready(sh.jit(step)(*parted(typed)))
        found = grads, outs
        sent = sh.ledger(step, *parted(typed)).bytes
        for grad, x in zip(found[0], parted(typed)[0], strict=True):
            assert grad.type == x.type.cotangent(), f"{grad.type} of {x.type}"
        for part, right, most in zip(found, wanted, errors, strict=True):
            _compare(*map(jax.tree.leaves, (part, right, most)))
    return sent


def _compare(found: list[Any], wanted: list[Any], errors: list[Any]) -> None:
    """Compares arrays; one that is zero but for rounding, as a key's bias has a gradient, beside the largest of all."""
    sizes = [float(np.max(np.abs(x), initial=0)) for x in wanted]
    for y, right, size, most in zip(found, wanted, sizes, errors, strict=True):
        given = denoted(y) if isinstance(y, sh.Array) else np.asarray(y)
        beside = [max(sizes)] if size < 1e-4 * max(sizes) and is_float(right) else []
        assert_within(np.append(given, beside), np.append(right, beside), most)
