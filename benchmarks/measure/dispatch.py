"""What a call costs before anything is computed: jitted calls with many arguments, and eager operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import shtypes as sh
from benchmarks.measure import timing
from benchmarks.models.common import put

#: Per case: two calls, ours and JAX's, that do the same.
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def many_arguments(mesh: Any, *, count: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Jitted calls with ``count`` small arrays, against `jax.jit` of a `jax.shard_map` on plain ones.

    Returns:
        Milliseconds until a call returns.
    """
    values = [np.full((8, 8), i, np.float32) for i in range(count)]
    plain = put(mesh, [P("dp", None)] * count, values)
    typed = [sh.array(v, "f32[8@dp, 8]", mesh=mesh) for v in values]
    found = {}
    cases: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "one result": (_first_and_last, list),
        "as many results": (_doubled, list),
        "a tree, as many results": (_doubled, _layers),
    }
    for name, (function, arranged) in cases.items():
        by_hand = jax.shard_map(function, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))
        calls = {
            "shtypes": _call(sh.jit(function, keep_unused=True), arranged(typed)),
            "shard_map": _call(jax.jit(by_hand, keep_unused=True), arranged(plain)),
            "per op": _call(jax.jit(function, keep_unused=True), arranged(typed)),
        }
        samples = _interleaved(calls, rounds, repeats, timing.until_returned)
        found[name] = {
            kind: {**timing.summary(spent), "of_shard_map": timing.ratio(spent, samples["shard_map"])}
            for kind, spent in samples.items()
        }
    return found


def _layers(values: list[Any]) -> dict[str, Any]:
    """Weights of layers, ten to each, as a model has them."""
    found: dict[str, Any] = {}
    for i, value in enumerate(values):
        layer = found.setdefault(f"layer{i // 10}", {"attention": {}, "mlp": {}})
        layer["attention" if i % 10 < 5 else "mlp"][f"w{i % 5}"] = value
    return found


def _first_and_last(xs: list[Any]) -> Any:
    return xs[0] + xs[-1]


def _doubled(tree: Any) -> Any:
    return jax.tree.map(lambda x: x * 2.0, tree)


def _call(function: Callable[..., Any], args: Any) -> Callable[[], Any]:
    return lambda: function(args)


def _interleaved(
    calls: dict[str, Callable[[], Any]],
    rounds: int,
    repeats: int,
    measure: Callable[[Callable[[], Any], int], timing.Spent],
) -> dict[str, timing.Samples]:
    samples: dict[str, timing.Samples] = {name: [] for name in calls}
    for call in calls.values():
        jax.block_until_ready(call())
    for _ in range(rounds):
        for name, call in calls.items():
            with timing.without_gc():
                samples[name].append(measure(call, repeats))
    return samples


def eager_cases(mesh: Any, rows: int = 64, columns: int = 256) -> dict[str, Pair]:
    """Operations on values of one layout, ours and those of JAX's explicit mode."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((rows, columns)).astype("float32") for _ in range(2)]
    weight = rng.standard_normal((columns, columns)).astype("float32")
    x, y = (sh.array(v, "f32[rows@dp, columns]{I:tp}", mesh=mesh) for v in values)
    w = sh.array(weight, "f32[columns, columns@tp]{R:dp}", mesh=mesh)
    a, b = put(mesh, [P("dp", None)] * 2, values)
    c = put(mesh, P(None, "tp"), weight)
    h, k = sh.einsum("bh,hi->bi", x, w), jnp.einsum("bh,hi->bi", a, c)
    u = sh.einsum("bi,hi->bh", h, w)
    v = jnp.einsum("bi,hi->bh", k, c, out_sharding=P("dp", None, unreduced={"tp"}))
    reduced, gathered = P("dp", None, reduced={"tp"}), P("dp", None)
    split = (rows, 16, columns // 16)
    return {
        "add": (lambda: x + y, lambda: a + b),
        "mul": (lambda: x * y, lambda: a * b),
        "x * 2.0": (lambda: x * 2.0, lambda: a * 2.0),
        "maximum": (lambda: sh.maximum(x, y), lambda: jnp.maximum(a, b)),
        "silu": (lambda: sh.silu(x), lambda: jax.nn.silu(a)),
        "astype": (lambda: x.astype("bfloat16"), lambda: a.astype("bfloat16")),
        "sum": (lambda: sh.sum(x, -1), lambda: jnp.sum(a, -1)),
        "mean": (lambda: sh.mean(x, -1), lambda: jnp.mean(a, -1)),
        "transpose": (lambda: x.T, lambda: a.T),
        "reshape": (lambda: sh.reshape(x, split), lambda: jnp.reshape(a, split)),
        "einsum": (lambda: sh.einsum("bh,hi->bi", x, w), lambda: jnp.einsum("bh,hi->bi", a, c)),
        "matmul": (lambda: x @ w, lambda: a @ c),
        "reshard U->R": (lambda: sh.all_reduce(u, to="R"), lambda: jax.reshard(v, reduced)),
        "reshard S->I": (lambda: sh.all_gather(h, "tp", to="I"), lambda: jax.reshard(k, gathered)),
    }


def eager(mesh: Any, *, rounds: int, repeats: int) -> dict[str, Any]:
    """Eager operations: milliseconds until the result is there, and their ratios with a geometric mean."""
    found: dict[str, Any] = {}
    for name, (ours, theirs) in eager_cases(mesh).items():
        samples = _interleaved({"shtypes": ours, "native": theirs}, rounds, repeats, timing.until_done)
        found[name] = {
            **{side: timing.summary(spent) for side, spent in samples.items()},
            "of_native": timing.ratio(samples["shtypes"], samples["native"]),
        }
    ratios = [entry["of_native"] for entry in found.values()]
    return {"ops": found, "geometric_mean": {k: timing.geometric_mean(r[k] for r in ratios) for k in ("wall", "cpu")}}
