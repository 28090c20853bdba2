"""Random programs that move elements to odd sizes, against one device: values, gradients, what the ledger says."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from tests.end_to_end import host
from tests.tolerance import SERIES, assert_within, eps
from tests.traced.compiled import assert_compiled_as_said

#: Functions that keep numbers between a fifth and five, and have no value, or no derivative, at zero.
UNARY: dict[str, Callable[[Any], Any]] = {
    "reciprocal": lambda x: 1 / x,
    "log": lambda x: 1 + jnp.log(x) ** 2 / 4,
    "sqrt": jnp.sqrt,
    "exp": lambda x: jnp.exp(-1 / x) + 0.5,
    "where": lambda x: jnp.where(x > 1, x, 2.0),
    "steps": lambda x: jnp.floor(x * 4).astype(jnp.int32).astype(x.dtype) / 8 + jnp.sqrt(x) / 2,
    "mask": lambda x: (x > 1).astype(x.dtype) + x / 2,
    "softplus": lambda x: jax.nn.softplus(x) / 2 + jax.nn.relu(x - 1),
    "narrow": lambda x: jnp.sqrt(x.astype(jnp.bfloat16)).astype(x.dtype) + x / 4,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "quotient": lambda x, y: jnp.sqrt(x / y),
    "mean": lambda x, y: (x + y) / 2,
    "difference": lambda x, y: 1 + (x - y) ** 2 / 4,
    "maximum": jnp.maximum,
    "power": lambda x, y: x ** (y / 8),
    "where": lambda x, y: jnp.where(x > y, jnp.log(x) / 4 + 1, y),
}


def _cut(x: Any, dim: int, start: int, stop: int, step: int = 1) -> Any:
    return lax.slice_in_dim(x, start, stop, step, dim)


def _padded(x: Any, dim: int, low: int, high: int, gap: int, value: Any) -> Any:
    config = [(low, high, gap) if d == dim else (0, 0, 0) for d in range(x.ndim)]
    return lax.pad(x, jnp.asarray(value, x.dtype), config)


def _resized(x: Any, dim: int, size: int, low: int = 0) -> Any:
    """A value of another size, by a pad and a slice."""
    n = x.shape[dim]
    if n < size:
        low = min(low, size - n)
        return _padded(x, dim, low, size - n - low, 0, 1.0)
    return _cut(x, dim, min(low, n - size), min(low, n - size) + size)


def _step(r: random.Random, values: Sequence[Any], number: Any, dim: int, even: int, depth: int) -> Any:
    """One more value."""
    recent = values[-4:]
    x = r.choice(recent if r.random() < 0.8 else values)
    n = x.shape[dim]
    kinds = [
        "slice",
        "pad",
        "join",
        "rev",
        "roll",
        "unary",
        "unary",
        "binary",
        "binary",
        "row",
        "even",
        "edge",
        "number",
        "split",
    ]
    kind = r.choice([*kinds, "masked", "even", *(["body"] if depth else [])])
    match kind:
        case "slice" if n > 1:
            start = r.randrange(0, min(n, 4))
            return _cut(x, dim, start, r.randrange(max(start + 1, n - 3), n + 1), r.choice([1, 1, 1, 2, 3]))
        case "pad":
            low, high, gap = r.randrange(-1, 3), r.randrange(-1, 3), r.choice([0, 0, 0, 1])
            if n + low + high + (n - 1) * gap < 1 or n > 2 * even:
                return x
            return _padded(x, dim, low, high, gap, r.choice([1.0, number]))
        case "join":
            y = r.choice(recent)
            return x if n + y.shape[dim] > 4 * even else jnp.concatenate([x, y], dim)
        case "rev":
            return jnp.flip(x, dim)
        case "split":
            return max(jnp.split(x, sorted(r.randrange(n + 1) for _ in range(2)), dim), key=lambda y: y.shape[dim])
        case "roll":
            return jnp.roll(x, r.randrange(-5, 6), dim)
        case "unary":
            return r.choice(list(UNARY.values()))(x)
        case "binary":
            y = r.choice(values)
            return r.choice(list(BINARY.values()))(x, _resized(y, dim, n, r.randrange(2)))
        case "row":  # of one element along the dim, spread to all
            y = r.choice(values)
            i = r.randrange(y.shape[dim])
            return r.choice(list(BINARY.values()))(*r.sample([x, _cut(y, dim, i, i + 1)], 2))
        case "edge":
            i = r.randrange(n)
            shape = [r.choice([1, 2, even]) if d == dim else size for d, size in enumerate(x.shape)]
            return jnp.concatenate([jnp.broadcast_to(_cut(x, dim, i, i + 1), shape), x], dim)
        case "number":
            return jnp.sqrt(x * number)
        case "masked":
            mask = np.arange(n) % r.choice([2, 3]) == 0
            return jnp.where(mask.reshape([-1 if d == dim else 1 for d in range(x.ndim)]), x, 1 / x)
        case "body":
            return _body(r, x, number, dim, depth)
    return _resized(x, dim, even, r.randrange(2))


def _body(r: random.Random, x: Any, number: Any, dim: int, depth: int) -> Any:
    """A value after some steps in a body of its own, in the same size."""
    seed, length = r.random(), r.randrange(2, 6)

    def steps(y: Any) -> Any:
        inner, values = random.Random(seed), [y]
        for _ in range(length):
            values.append(_step(inner, values, number, dim, y.shape[dim], depth - 1))
        return _resized(values[-1], dim, y.shape[dim], 1)

    match r.choice(["jit", "checkpoint", "scan"]):
        case "jit":
            return jax.jit(steps)(x)
        case "checkpoint":
            return jax.checkpoint(steps)(x)
    return lax.scan(lambda y, _: (steps(y), None), x, None, length=2)[0]


def program(seed: int, dim: int, even: int) -> Callable[..., list[Any]]:
    """A random program, whose results are some of the values that arise, most of even sizes, and a sum."""

    def f(x: Any, y: Any, number: Any) -> list[Any]:
        r = random.Random(seed)
        values = [x, y]
        for _ in range(r.randrange(4, 14)):
            values.append(_step(r, values, number, dim, even, 2))
        values.append(_resized(values[-1], dim, even, 1))
        kept = [v for v in values[2:-1] if (v.shape[dim] == even and r.random() < 0.3) or r.random() < 0.03]
        sums = [jnp.sum(values[-2], dim)] if r.random() < 0.2 else []
        return [values[-1], *kept[:3], *sums]

    return f


LINE, PLANE = {"x": 8}, {"x": 4, "y": 2}
#: The mesh, and the types of two arrays along the dim, the second with its states.
LAYOUTS: tuple[tuple[dict[str, int], str, str, str], ...] = (
    (LINE, "{}@x", "{}@x", ""),
    (LINE, "{}@x", "{}", ""),
    (PLANE, "{}@(x,y)", "{}@(x,y)", ""),
    (PLANE, "{}@x", "{}@y", ""),
    (PLANE, "{}@(x,y)", "{}@x", ""),
    (PLANE, "{}@x", "{}@x", ""),
    (PLANE, "{}@x", "{}@x", "{U:y}"),
    (PLANE, "{}", "{}@y", "{U:x}"),
    (LINE, "{}@x", "{}", "{U:x}"),
)


def total(y: Any, m: Any) -> Any:
    """The sum of the sines of all results."""
    return sum(m.sum(m.sin(leaf)) for leaf in jax.tree.leaves(y))


def check(seed: int, *, compiled: bool) -> None:
    """Compares a random program with one device."""
    r = random.Random(seed)
    mesh, first, second, states = r.choice(LAYOUTS)
    even, policy, decorated = r.choice([8, 16, 24]), r.choice(["partial", "jax"]), r.random() < 0.5
    rank = r.choice([1, 1, 2])
    dim = r.randrange(rank)
    shape = [even if d == dim else 3 for d in range(rank)]
    f = program(seed, dim, even)
    numbers = np.random.default_rng(seed)
    plain = [numbers.uniform(0.5, 2, s).astype(np.float32) for s in (shape, shape, ())]
    expected = jax.jit(lambda *args: (f(*args), jax.grad(lambda *a: total(f(*a), jnp), (0, 1, 2))(*args)))(*plain)
    narrow = "bf16" in str(jax.make_jaxpr(f)(*plain))
    rounding = 8 * eps(jnp.bfloat16) if narrow else 4 * SERIES * eps(np.float32)
    if not all(np.isfinite(v).all() for v in jax.tree.leaves(expected)):
        return
    typed = functools.partial(_typed, sh.lift(f), decorated)
    sh.set_mesh(sh.make_mesh(mesh))
    with sh.policy(policy):
        dims = [",".join(t.format(even) if d == dim else "3" for d in range(rank)) for t in (first, second)]
        args = [sh.array(v, t) for v, t in zip(plain, [f"[{dims[0]}]", f"[{dims[1]}]{states}", "[]"], strict=True)]
        if compiled:
            assert_compiled_as_said(typed, *args, jits=[jax.jit])
        found = jax.block_until_ready(jax.jit(typed)(*args))
        (values, gradients), (plain_values, plain_gradients) = found, expected
        pairs = [*zip(values, plain_values, strict=True), *zip(gradients[:2], plain_gradients[:2], strict=True)]
        for a, b in pairs:
            assert_within(host(a), np.asarray(b), rounding, f"seed {seed}")
        # The number's gradient is a sum in which terms of the size of the others' may cancel.
        a, b = (np.concatenate([np.ravel(x) for x in map(host, every)]) for every in (gradients, plain_gradients))
        assert_within(a, b, rounding, f"seed {seed}, the number's gradient")


def _typed(lifted: Callable[..., Any], decorated: bool, *args: Any) -> Any:
    f = sh.implicit_comm(lifted) if decorated else lifted
    with sh.implicit_comm():
        return f(*args), sh.grad(lambda *a: total(f(*a), sh), (0, 1, 2))(*args)


@pytest.mark.one_in(241)
@pytest.mark.parametrize("seed", range(59, 299))
def test_a_random_program_is_that_of_one_device(seed: int) -> None:
    check(seed, compiled=seed % 3 == 0)
