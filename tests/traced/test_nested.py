"""The ledger of programs nested in one another, and of random ones, equals what is compiled."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

import shtypes as sh
from tests.traced.compiled import compiled_text, sent_by_compiled, sent_by_ledger
from tests.traced.nested_programs import AROUND, BODIES, nested, values
from tests.traced.random_programs import AXES, random_program


@pytest.fixture(autouse=True)
def on_a_mesh() -> None:
    sh.set_mesh(sh.make_mesh(AXES))


def assert_compiled_as_said(f: Any, *args: Any, hoists: bool = False) -> sh.Ledger:
    """Compares a program's ledger with what is compiled; ``hoists`` is whether XLA may take something out of a loop."""
    said = sh.ledger(f, *args)
    assert not said.not_covered
    compiled = sent_by_compiled(compiled_text(sh.jit(f), *args))
    assert compiled == sent_by_ledger(said) or (hoists and compiled == sent_by_ledger(hoisted(said)))
    return said


def hoisted(said: sh.Ledger) -> sh.Ledger:
    """The ledger where what is recomputed alike in each step of a loop, which forward is sent once, is sent once."""
    once = {(e.kind, e.axes, e.src, e.dst) for e in said if e.direction == "forward" and e.times == 1}
    found = [
        e._replace(times=1) if e.direction == "recomputed" and (e.kind, e.axes, e.src, e.dst) in once else e
        for e in said
    ]
    assert found != list(said), "nothing in it is sent once forward, and again in each step"
    return sh.Ledger(found)


#: Each body and each thing around it at least once, inside another.
QUICK = [
    ("scan", "scan over weights", "sequence", "partial"),
    ("checkpoint", "scan", "mapped", "jax"),
    ("scan", "checkpoint names", "mlp", "partial"),
    ("fori_loop", "cond", "custom", "jax"),
    ("checkpoint dots", "vmap", "of shards", "partial"),
    ("jit", "checkpoint everything", "permuted", "jax"),
    ("cond", "checkpoint nothing", "custom", "partial"),
    ("step", "scan", "mlp", "partial"),
    ("scan", "checkpoint in a loop", "sequence", "jax"),
    ("checkpoint", "vmap", "narrow", "partial"),
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


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("outer", "inner", "body", "policy"), QUICK)
def test_a_nested_program_compiles_to_what_its_ledger_says(outer: str, inner: str, body: str, policy: str) -> None:
    with sh.policy(policy):
        assert assert_compiled_as_said(nested((outer, inner), body), *values())


@pytest.mark.nightly
@pytest.mark.parametrize(("outer", "inner", "body", "policy"), ALL[:400])
def test_many_nested_programs_compile_to_what_their_ledgers_say(outer: str, inner: str, body: str, policy: str) -> None:
    with sh.policy(policy):
        assert_compiled_as_said(
            nested((outer, inner), body), *values(), hoists="checkpoint in a loop" in (outer, inner)
        )


def test_what_xla_may_take_out_of_a_loop_is_in_the_ledger_for_each_step() -> None:
    with sh.policy("jax"):
        said = assert_compiled_as_said(nested(("scan", "checkpoint in a loop"), "custom"), *values(), hoists=True)
    assert hoisted(said).bytes == said.bytes - 2 * 48


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

    said = sh.ledger(f, x)
    assert not said.known
    once = sh.Ledger([e._replace(times=1) for e in said])
    assert sent_by_compiled(compiled_text(sh.jit(f), x), unknown=1) == sent_by_ledger(once)
