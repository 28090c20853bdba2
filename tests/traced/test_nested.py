"""The ledger of programs nested in one another, and of random ones, equals what is compiled."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

import shtypes as sh
from tests.traced.compiled import (
    JITS,
    UNMERGED,
    assert_compiled_as_said,
    compiled_text,
    sent_by_compiled,
)
from tests.traced.nested_programs import AROUND, BODIES, nested, values
from tests.traced.random_programs import AXES, random_program

pytestmark = pytest.mark.mesh(AXES)


#: Each body and each thing around it at least once, inside another.
QUICK = [
    *(("scan", "scan over weights", "sequence", "partial"), ("checkpoint", "scan", "mapped", "jax")),
    *(("scan", "checkpoint names", "mlp", "partial"), ("fori_loop", "cond", "custom", "jax")),
    *(("checkpoint dots", "vmap", "of shards", "partial"), ("jit", "checkpoint everything", "permuted", "jax")),
    *(("cond", "checkpoint nothing", "custom", "partial"), ("step", "scan", "mlp", "partial")),
    *(("scan", "checkpoint in a loop", "sequence", "jax"), ("checkpoint", "vmap", "narrow", "partial")),
    ("cond", "scan", "narrow", "jax"),
]

#: All pairs, in an order of chance.
ALL = [
    (*pair, body, policy)
    for pair in itertools.product(AROUND, AROUND)
    for body in BODIES
    for policy in ("partial", "jax")
]
random.Random(0).shuffle(ALL)


@pytest.mark.one_in(23)
@pytest.mark.parametrize(("outer", "inner", "body", "policy"), QUICK)
def test_a_nested_program_compiles_to_what_its_ledger_says(outer: str, inner: str, body: str, policy: str) -> None:
    with sh.policy(policy):
        assert assert_compiled_as_said(nested((outer, inner), body), *values())


@pytest.mark.nightly
@pytest.mark.parametrize(("outer", "inner", "body", "policy"), ALL[:400])
def test_many_nested_programs_compile_to_what_their_ledgers_say(outer: str, inner: str, body: str, policy: str) -> None:
    with sh.policy(policy):
        assert_compiled_as_said(nested((outer, inner), body), *values())


@pytest.mark.parametrize("jit", JITS, ids=["jax", "sh"])
def test_what_xla_takes_out_of_a_loop_is_in_the_ledger_for_each_step(jit: Any) -> None:
    def layers(x: Any, w: Any) -> Any:
        return sh.scan(lambda x, _: (sh.tanh(x @ sh.all_gather(w, "dp")), None), x, None, 3)[0]

    args = sh.ones("f32[8@dp,8]"), sh.ones("f32[8@dp,8]")
    (entry,) = assert_compiled_as_said(layers, *args, jits=[jit])
    assert entry.times == 3
    passes = UNMERGED | {"xla_disable_hlo_passes": "cse"}
    assert sum(sent_by_compiled(compiled_text(jit(layers), *args, options=passes)).arrays.values()) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(200))
def test_two_hundred_random_programs_compile_to_what_their_ledgers_say(seed: int) -> None:
    with sh.policy("jax" if seed % 2 else "partial"):
        program = random_program(seed)
        assert_compiled_as_said(program.gradients, program.values(), program.cotangents())


def test_a_while_loop_counts_once_in_both() -> None:
    x = sh.ones("f32[8@dp,8]")

    def f(x: Any) -> Any:
        return sh.while_loop(
            lambda s: sh.all_reduce(sh.sum(s)) > 1,
            lambda s: sh.all_to_all(sh.sin(sh.all_to_all(s * 0.5, "dp", 1)), "dp", 0),
            x,
        )

    assert not assert_compiled_as_said(f, x, unknown=1).known
