"""The examples that train: what they communicate by formula, ledger and compiled program, and what they compute."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from examples import (
    jep_14273,
    jep_17111,
    microbatch,
    pallas_attention,
    replicate_forwards,
    shard_map_tutorial,
    sharding_and_communication,
)
from examples.hlo import collectives_run, compiled_text
from examples.silent_bugs import __main__ as bugs
from tests.local_mode.test_examples import NETWORKS, PROGRAMS, batch, made, network
from tests.local_mode.test_transposition import EXAMPLES, factors, operand
from tests.tolerance import assert_close
from tests.traced.compiled import assert_compiled_as_said
from tests.traced.random_programs import filled


def on_devices(n: int, axis: str) -> None:
    jax.set_mesh(None)
    sh.set_mesh(sh.make_mesh({axis: n}, devices=jax.devices()[:n]) if n < 8 else sh.make_mesh({axis: n}))


def run(module: Any) -> list[Any]:
    return [np.asarray(x) for x in jax.tree.leaves(sh.jit(module.step)(*module.arguments()))]


def compared(module: Any) -> sh.Ledger:
    """The ledger of an example's step, found equal to the compiled program by two readers."""
    args = module.arguments()
    said = assert_compiled_as_said(module.step, *args)
    text = compiled_text(jax.jit(module.step), *args)
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


@pytest.mark.one_in(5)
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


# the others: each prints or trains something; here are the programs in them


def rows(n: int, m: int, text: str, seed: int = 0) -> Any:
    return sh.array(np.random.default_rng(seed).uniform(-1, 1, (n, m)).astype(np.float32), text)


def a_product(f: Any, types: Any) -> tuple[Any, Any]:
    """A matrix product of the post on sharding and communication, with its gradient."""
    return sh.value_and_grad(lambda *args: sh.sum(sh.sin(f(*args))), argnums=(0, 1)), [
        rows(8, 8, text, i) for i, text in enumerate(types)
    ]


def a_block(run: Any) -> tuple[Any, Any]:
    shapes = ((8, 4, 16), (16, 32), (16, 32), (32, 16))
    texts = (replicate_forwards.X, *replicate_forwards.WEIGHTS)
    values = [np.random.default_rng(i).uniform(-1, 1, shape).astype(np.float32) for i, shape in enumerate(shapes)]
    step = sh.value_and_grad(lambda *args: sh.sum(sh.sin(run(*args))), argnums=(0, 1, 2, 3))
    return step, [sh.array(value, text) for value, text in zip(values, texts, strict=True)]


def an_attention(run: Any) -> tuple[Any, Any]:
    made = np.random.default_rng(0)
    x = sh.array(made.normal(size=(2, 8, 16)).astype(np.float32), "f32[batch@dp, seq, embed]")
    each = [made.normal(size=(16, 4, 8)).astype(np.float32) / 4 for _ in "qkv"]
    w_out = sh.array(made.normal(size=(4, 8, 16)).astype(np.float32), "f32[heads@tp, features, embed]")
    args = x, [sh.array(w, "f32[embed, heads@tp, features]") for w in each], w_out
    return sh.grad(lambda *args: pallas_attention.loss(run, *args), argnums=(0, 1, 2)), args


SQUARE, CUBE, EIGHT = {"x": 2, "y": 2}, {"dp": 2, "tp": 4}, {"dp": 2, "tp": 2}
#: By name, the mesh, and what makes a program and its arguments there.
OTHERS: dict[str, tuple[Mapping[str, int], Any]] = {
    **{
        f"{f.__name__} of matrices": (SQUARE, lambda f=f, types=types: a_product(f, types))
        for f, *types in sharding_and_communication.CASES
    },
    "a block": (CUBE, lambda: a_block(replicate_forwards.block)),
    "an overlapped block": (CUBE, lambda: a_block(replicate_forwards.overlapped)),
    "attention by a kernel": (EIGHT, lambda: an_attention(pallas_attention.attention)),
    "attention": (EIGHT, lambda: an_attention(pallas_attention.reference)),
    **{f"without the bug {name}": (bugs.bug_named(name).mesh, lambda name=name: of_bug(name)) for name in bugs.NAMES},
}


def of_bug(name: str) -> tuple[Any, Any]:
    bug = bugs.bug_named(name)
    return bug.fixed, bug.operands()[1]


@pytest.mark.one_in(69)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("name", OTHERS)
def test_another_example_compiles_to_what_its_ledger_says(name: str, policy: str) -> None:
    mesh, make = OTHERS[name]
    n = math.prod(mesh.values())
    sh.set_mesh(sh.make_mesh(mesh, devices=jax.devices()[:n]))
    with sh.policy(policy), sh.dims(**(replicate_forwards.SIZES if "block" in name else {})):
        f, args = make()
        assert_compiled_as_said(f, *args)
