"""Random programs, and programs made to break the types, mean what they mean on one device.

Of each: every value and gradient, the types of gradients, equal values on replicated axes, no collective that the
ledger does not list, and the same refusals when traced and when run. `tests.random_checks` prints the smallest program.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.core.array import wrap
from shtypes.core.jax_type import as_jax_type
from tests.end_to_end import some
from tests.random_attacks import ATTACKS
from tests.random_attacks.making import FOUR, X, floats
from tests.random_checks import check, denoted, verify, verify_together
from tests.random_programs import MESHES, POLICIES, Program, Step, generate_program

# generated

MODES = ("region", "region", "region", "region", "per op")
#: Seeds whose programs run one op at a time as well, which compiles each op by itself.
EAGER = some((14,), (3, 14))
PLACES = [(mesh, policy) for mesh in MESHES for policy in POLICIES]


@pytest.mark.one_in(43)
@pytest.mark.parametrize("place", range(len(PLACES)), ids=lambda i: f"{PLACES[i][0]}-{PLACES[i][1]}")
def test_short_random_programs_mean_what_one_device_computes(place: int) -> None:
    mesh, policy = PLACES[place]
    programs = [generate_program(13 * place + i, steps=(5, 8), mesh=mesh, policy=policy) for i in range(some(2, 13))]
    verify_together(programs, MODES[place % 5])


@pytest.mark.parametrize("seed", EAGER)
def test_random_programs_mean_the_same_one_op_at_a_time(seed: int) -> None:
    verify(generate_program(seed, steps=(3, 5)), "eager")


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(10_000, 12_000, 140))
def test_long_random_programs_mean_what_one_device_computes(start: int) -> None:
    mesh, policy = PLACES[start // 20 % len(PLACES)]
    programs = [generate_program(seed, mesh=mesh, policy=policy) for seed in range(start, start + 20)]
    for i in range(0, 20, 5):
        verify_together(programs[i : i + 5], MODES[start // 20 % 5])
    if start % 100 == 0:
        verify(programs[0], "eager")


def test_the_generator_takes_and_refuses_and_uses_every_state() -> None:
    programs = [generate_program(seed, steps=(3, 8)) for seed in range(some(10, 20))]
    steps = [s for p in programs for s in p.steps]
    assert 0.1 < sum(s.refused for s in steps) / len(steps) < 0.6
    assert {p.policy for p in programs} == {"partial", "jax"}
    text = " ".join(t for p in programs for _, t in p.inputs.values())
    assert all(found in text for found in ("U:", "R:", "I:", "@(x)", "@(x,y)")), text


# made to break


@pytest.mark.one_in(71)
@pytest.mark.parametrize("program", ATTACKS)
def test_programs_made_to_break_the_types_mean_what_one_device_computes(program: Program) -> None:
    check(program)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["per op", "eager"])
@pytest.mark.parametrize("program", ATTACKS)
def test_programs_made_to_break_the_types_mean_the_same_in_every_mode(program: Program, mode: str) -> None:
    check(program, mode)


def test_a_policy_that_changes_between_trace_and_call_traces_again() -> None:
    with sh.use_mesh(sh.make_mesh(X)):
        x = sh.array(floats(4, 4), "[4, 4@x]")
        total = sh.jit(lambda x: sh.all_reduce(sh.sum(x, axis=1)))
        with sh.policy("partial"):
            assert total(x).type.state("x") is sh.State.REDUCED
        with sh.policy("jax"):
            assert total(x).type.state("x") is sh.State.INVARIANT
        with sh.policy("partial"):
            assert total(x).type.state("x") is sh.State.REDUCED


def test_a_donated_value_is_not_read_again() -> None:
    with sh.use_mesh(sh.make_mesh(X)):
        x = sh.array(FOUR, "[4@x]")
        y = sh.jit(lambda x: x * 2, donate_argnums=0)(x)
        np.testing.assert_array_equal(denoted(y), 2 * FOUR)
        if x.is_deleted():
            with pytest.raises(RuntimeError, match="deleted"):
                jax.block_until_ready(x + 1)


@pytest.mark.parametrize(
    "call",
    [
        sh.cond,
        lambda p, f, g, *xs: sh.switch(int(p), [f, g, f], *xs),
        jax.lax.cond,
        lambda p, f, g, *xs: jax.lax.switch(int(p), [f, g, f], *xs),
    ],
    ids=["cond", "switch", "jax's cond", "jax's switch"],
)
@pytest.mark.parametrize("traced", [True, False], ids=["traced", "eager"])
def test_branches_may_all_pass_a_value_on(call: Any, traced: bool) -> None:
    with sh.use_mesh(sh.make_mesh(X)):
        x, outer = sh.array(FOUR, "[4@x]"), sh.array(FOUR, "[4]{U:x}")

        def passed(x: Any) -> Any:
            given = call(True, lambda a, b: a, lambda a, b: a, x, x)
            closed = call(True, lambda: (x, outer), lambda: (x, outer))
            return given, *closed

        found = (sh.jit(passed) if traced else passed)(x)
        assert [str(v.type) for v in found] == ["f32[4@x]", "f32[4@x]", "f32[4]{U:x}"]
        for value in found:
            np.testing.assert_array_equal(denoted(value), FOUR)


@pytest.mark.parametrize("jvp", [sh.jvp, jax.jvp], ids=["sh.jvp", "jax.jvp"])
@pytest.mark.parametrize(
    "fun",
    [sh.sin, lambda a: a * 3, lambda a: sh.reshard(a, "[_@x]"), lambda a: a.to_jax()],
    ids=["nonlinear", "linear", "reshard", "to_jax"],
)
@pytest.mark.parametrize("other", ["[4@x]", "[4]{U:x}", "[4]{I:x}", "f32[4, 1]", None])
def test_a_tangent_of_another_type_than_its_value_is_refused(fun: Any, other: str | None, jvp: Any) -> None:
    with sh.use_mesh(sh.make_mesh(X)):
        x = sh.array(FOUR, "[4]{R:x}")
        tangent = FOUR if other is None else sh.zeros(other, dtype="f32")
        with pytest.raises(sh.ShardingTypeError, match="a tangent has the type of its value"):
            jvp(fun, (x,), (tangent,))
        value, moved = jvp(fun, (x,), (x,))
        assert jax.typeof(moved) == jax.typeof(value)


def test_the_linear_part_refuses_a_tangent_of_another_type() -> None:
    with sh.use_mesh(sh.make_mesh(X)):
        x = sh.array(FOUR, "[4]{R:x}")
        _, push = sh.linearize(sh.sin, x)
        assert push(x).type == x.type
        with pytest.raises(sh.ShardingTypeError, match="a tangent has the type of its value"):
            push(sh.zeros("f32[4]{U:x}"))


# the checks can fail


@pytest.mark.nightly
def test_a_wrong_value_is_found_and_its_program_is_made_small() -> None:
    wrong = "x0 * (1.5 if hasattr(m, 'ShType') else 1)"
    steps = (Step("v0", "m.sin(x0)"), Step("v1", wrong), Step("v2", "m.sum(v0)"), Step("v3", "v1 + v0"))
    program = Program(X, "partial", {"x0": (FOUR, "[4@x]"), "x1": (FOUR, "[4]")}, steps)
    with pytest.raises(AssertionError, match=r"off by 0\.5") as caught:
        verify(program)
    text = str(caught.value)
    assert f"v1 = {wrong}" in text
    assert not any(gone in text for gone in ("v0", "v2", "v3", "x1"))


def test_a_refusal_that_does_not_come_again_is_found() -> None:
    program = Program(X, "partial", {"x0": (FOUR, "[4]")}, (Step("v0", "x0 + 1"), Step("v1", "x0 * 2", refused=True)))
    with pytest.raises(AssertionError, match="was refused"):
        check(program)


def test_a_false_claim_of_replication_is_found() -> None:
    with sh.use_mesh(sh.make_mesh(X)):
        x = sh.array(FOUR, "[4]")
        parts = [jax.device_put(FOUR + i, d) for i, d in enumerate(x.data.sharding.mesh.devices.flat)]
        broken = wrap(as_jax_type(x.type), jax.make_array_from_single_device_arrays((4,), x.data.sharding, parts))
        np.testing.assert_array_equal(denoted(x), FOUR)
        with pytest.raises(AssertionError, match="the devices of a replicated axis hold"):
            denoted(broken)
