"""The examples that train: what they communicate by formula, ledger and compiled program, and what they compute."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from examples import jep_14273, jep_17111, microbatch, shard_map_tutorial
from examples.hlo import collectives_run, compiled_text
from tests.local_mode.test_examples import NETWORKS, PROGRAMS, batch, made, network
from tests.local_mode.test_transposition import EXAMPLES, factors, operand
from tests.tolerance import assert_close
from tests.traced import compiled
from tests.traced.compiled import sent_by_compiled, sent_by_ledger
from tests.traced.random_programs import filled


def on_devices(n: int, axis: str) -> None:
    jax.set_mesh(None)
    sh.set_mesh(sh.make_mesh({axis: n}, devices=jax.devices()[:n]) if n < 8 else sh.make_mesh({axis: n}))


def run(module: Any) -> list[Any]:
    return [np.asarray(x) for x in jax.tree.leaves(sh.jit(module.step)(*module.arguments()))]


def compared(module: Any) -> sh.Ledger:
    """The ledger of an example's step, found equal to the compiled program by two readers."""
    args = module.arguments()
    said = sh.ledger(module.step, *args)
    text = compiled_text(sh.jit(module.step), *args)
    assert not said.not_covered
    assert sent_by_compiled(text) == sent_by_ledger(said)
    assert dict(collectives_run(text)) == {kind: t.launches for kind, t in said.by_kind().items()}
    return said


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_microbatches_compute_what_one_device_computes(policy: str) -> None:
    with sh.policy(policy):
        on_devices(8, "dp")
        many = run(microbatch)
        on_devices(1, "dp")
        for a, b in zip(many, run(microbatch), strict=True):
            assert_close(a, b)


def test_microbatches_reduce_once_or_for_each_layer_and_microbatch() -> None:
    on_devices(8, "dp")
    with sh.policy("partial"):
        found = compared(microbatch)
    one = microbatch.LAYERS * microbatch.FEATURES**2 * 4 * 2 * 7 // 8
    assert found.by_kind() == {"all-reduce": (one, 1)}
    with sh.policy("jax"):
        found = compared(microbatch)
    times = microbatch.LAYERS * microbatch.MICROBATCHES
    assert found.by_kind() == {"all-reduce": (microbatch.MICROBATCHES * one, times)}


QUICK = ("matmul_basic", "sum_over_j", "exchanged", "matmul_psumscatter", "collective_matmul")
LOCAL = [pytest.param(*p[:4], id=p[1], marks=() if p[1] in QUICK else pytest.mark.nightly) for p in PROGRAMS]


@pytest.mark.parametrize(("module", "name", "mesh", "texts"), LOCAL)
def test_a_local_mode_example_compiles_to_what_its_ledger_says(
    module: Any, name: str, mesh: dict[str, int], texts: tuple[str, ...]
) -> None:
    assert module in (jep_14273, shard_map_tutorial)
    sh.set_mesh(sh.make_mesh(mesh))
    args = [made(text, i) for i, text in enumerate(texts)]
    f = getattr(module, name)
    ct = filled(sh.typeof(sh.jit(f).eval_shape(*args)).cotangent(), 9)

    def step(ct: Any, *args: Any) -> Any:
        out, pull = sh.vjp(f, *args)
        return out, pull(ct)

    assert_compiled_as_said(step, ct, *args)


def assert_compiled_as_said(step: Any, *args: Any) -> None:
    said = sh.ledger(step, *args)
    assert not said.not_covered
    assert sent_by_compiled(compiled.compiled_text(sh.jit(step), *args)) == sent_by_ledger(said)


@pytest.mark.parametrize("name", [e[0] for e in EXAMPLES])
def test_an_example_of_efficient_transposition_compiles_to_what_its_ledger_says(name: str) -> None:
    sh.set_mesh(sh.make_mesh({"i": 4}))
    with sh.policy("jax"):
        f, x, others = getattr(jep_17111, name), operand(name), factors(name)
        ct = filled(sh.typeof(sh.jit(f).eval_shape(x, *others)).cotangent(), 9)

        def step(x: Any, ct: Any) -> Any:
            y, pull = sh.vjp(lambda x: f(x, *others), x)
            return y, pull(ct)

        assert_compiled_as_said(step, x, ct)


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("case", NETWORKS, ids=[c[0] for c in NETWORKS])
def test_a_network_of_the_tutorial_compiles_to_what_its_ledger_says(case: tuple[Any, ...], policy: str) -> None:
    name, mesh, weights, bias, inputs, targets, *_ = case
    sh.set_mesh(sh.make_mesh(mesh))
    with sh.policy(policy):
        step = sh.value_and_grad(getattr(shard_map_tutorial, name))
        assert_compiled_as_said(step, network(weights, bias), batch(inputs, targets))
