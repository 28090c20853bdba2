"""Programs of invariant values stay invariant, as in JAX's explicit mode, and communicate in no direction."""

from __future__ import annotations

import pytest

import shtypes as sh
from tests.meaning import Layout
from tests.peers.compare import answer
from tests.peers.programs import Program, programs

#: What is made of integers or booleans is replicated as the policy says; under "partial" that is reduced.
MADE_OF_NO_FLOATS = ("m.astype(n", "m.astype(p", "* m.astype(p", "m.mean(n", "m.one_hot(", "m.arange(8.0)")


def _invariant(program: Program) -> tuple[Layout, ...]:
    return tuple(Layout((2,), v.shape, ((),) * len(v.shape), "I") for v in program.operands)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_what_is_invariant_stays_invariant_and_free(policy: str) -> None:
    changed = []
    with sh.policy(policy), sh.no_comm():
        for program in programs()[:: 3 if policy == "jax" else 2]:
            got = answer(program, _invariant(program))
            kept = got.result is not None and (not got.result.differentiable or got.result.axes(sh.State.INVARIANT))
            if not kept and (policy == "jax" or not any(text in program.text for text in MADE_OF_NO_FLOATS)):
                changed.append(f"{program}: {got.result or got.refusal or got.crash}")
    assert changed == []


@pytest.mark.parametrize(
    "text",
    [
        "m.average(a, 1, weights=ROW8)",
        "m.diff(a, prepend=1.0)",
        "m.sum(a, 1, initial=5.0)",
        "m.mean(a, where=MASK8)",
    ],
)
def test_a_constant_beside_an_invariant_value_is_invariant(text: str) -> None:
    (program,) = (p for p in programs() if p.text == text)
    with sh.no_comm():
        assert answer(program, _invariant(program)).result.axes(sh.State.INVARIANT) == ("x",)


def test_a_comparison_has_nothing_to_sum_backward() -> None:
    (program,) = (p for p in programs() if p.text == "a == b")
    given = Layout((2,), (4, 8), ((0,), ()), "S"), Layout((2,), (4, 8), ((), ()), "I")
    with sh.no_comm():
        assert str(answer(program, given).result) == "bool[4@x,8]"
