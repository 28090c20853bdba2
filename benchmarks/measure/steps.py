"""A training step in each variant: how long it takes to build and to run, what it compiles to, what it computes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import numpy as np

import shtypes as sh
from benchmarks.measure import hlo, timing
from benchmarks.models.common import Program

STAGES: Final = ("trace", "lower", "compile")
#: What sums in another order may change: the largest error relative to a result's largest element.
TOLERANCE: Final = 1e-4


class Variant(NamedTuple):
    """One way to write and to jit a step.

    Attributes:
        name: What the tables call it.
        policy: The schedule of its sums; compare variants of one policy.
        jit: What compiles it.
        build: Makes the step and its arguments.
    """

    name: str
    policy: str
    jit: Callable[..., Any]
    build: Callable[[Any, Any], Program]


def variants(model: Any) -> list[Variant]:
    """The variants of a model: ours, JAX's explicit mode and a hand-written shard_map, under both policies."""
    found = []
    for policy in ("partial", "jax"):
        native = model.pending if policy == "partial" else model.explicit

        def by_hand(config: Any, mesh: Any, policy: str = policy) -> Program:
            written: Program = model.by_hand(config, mesh, policy)
            return written

        found += [
            Variant("shtypes", policy, sh.jit, model.typed),
            Variant("shard_map", policy, jax.jit, by_hand),
            Variant("explicit", policy, jax.jit, native),
            Variant("per op", policy, jax.jit, model.typed),
        ]
    return found


def measure(model: Any, config: Any, mesh: Any, *, rounds: int, repeats: int) -> dict[str, Any]:
    """Builds and runs every variant.

    Args:
        model: A module of `benchmarks.models`.
        config: Its sizes.
        mesh: Axes `dp` and `tp`.
        rounds: How often each variant is built, and how often a batch of runs is timed; one more build warms up.
        repeats: Runs in a batch.

    Returns:
        Per policy and variant: milliseconds of each stage and of a run, what the program contains, and its largest
        relative error against a single device; or why JAX cannot run it.
    """
    alone = model.single_device(config)
    expected = host(jax.jit(alone.step)(*alone.args))
    results: dict[str, dict[str, Any]] = {"partial": {}, "jax": {}}
    able: list[tuple[Variant, Any, tuple[Any, ...]]] = []
    for variant in variants(model):
        entry = results[variant.policy][variant.name] = {}
        try:
            able.append((variant, *_first(variant, config, mesh, expected, entry)))
        except (NotImplementedError, TypeError, ValueError) as error:
            if variant.name != "explicit":
                raise
            entry["unsupported"] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    built: dict[tuple[str, str, str], timing.Samples] = {}
    ran: dict[tuple[str, str], timing.Samples] = {}
    for _ in range(rounds):
        for variant, _, _ in able:
            for stage, cost in build(variant, config, mesh)[0].items():
                built.setdefault((variant.policy, variant.name, stage), []).append(cost)
    for _ in range(rounds):
        for variant, jitted, args in able:
            with sh.policy(variant.policy), timing.without_gc():
                cost = timing.until_done(functools.partial(jitted, *args), repeats)
            ran.setdefault((variant.policy, variant.name), []).append(cost)
    for (policy, name), samples in ran.items():
        entry, hand = results[policy][name], ran[policy, "shard_map"]
        entry["run"] = {**timing.summary(samples), "of_shard_map": timing.ratio(samples, hand)}
        entry["build"] = {s: timing.summary(built[policy, name, s]) for s in STAGES}
        total = {n: _total(built, policy, n) for n in (name, "shard_map", "explicit") if (policy, n) in ran}
        entry["build"]["total"] = timing.summary(total[name])
        for baseline in ("shard_map", "explicit"):
            if baseline in total:
                entry["build"][f"of_{baseline}"] = timing.ratio(total[name], total[baseline])
    return results


def _total(built: dict[tuple[str, str, str], timing.Samples], policy: str, name: str) -> timing.Samples:
    return [timing.total(stages) for stages in zip(*(built[policy, name, s] for s in STAGES), strict=True)]


def _first(variant: Variant, config: Any, mesh: Any, expected: Any, entry: dict[str, Any]) -> tuple[Any, Any]:
    """Warms up, and takes down what does not change from round to round."""
    _, lowered, compiled = build(variant, config, mesh)
    entry.update(hlo.facts(lowered, compiled))
    with sh.policy(variant.policy):
        program = variant.build(config, mesh)
        jitted = variant.jit(program.step)
        entry["error"] = largest_error(host(jitted(*program.args)), expected)
        if not entry["error"] < TOLERANCE:  # also when it is not a number
            raise AssertionError(f"{variant.name} under {variant.policy} is off by {entry['error']}")
    return jitted, program.args


def build(variant: Variant, config: Any, mesh: Any) -> tuple[dict[str, timing.Spent], Any, Any]:
    """What each stage costs for a step that nothing has seen before, and the results of the last two."""
    with sh.policy(variant.policy):
        program = variant.build(config, mesh)
        jitted = variant.jit(program.step)
        with timing.without_gc():
            trace, traced = timing.spent(lambda: jitted.trace(*program.args))
            lower, lowered = timing.spent(traced.lower)
            compile_, compiled = timing.spent(lowered.compile)
    return {"trace": trace, "lower": lower, "compile": compile_}, lowered, compiled


def host(tree: Any) -> Any:
    return jax.tree.map(np.asarray, jax.block_until_ready(tree))


def largest_error(found: Any, expected: Any) -> float:
    """The largest difference of any result, relative to its largest element."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
