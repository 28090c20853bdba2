"""Listings of random programs: every cotangent is linked, has the type of its value's cotangent, and a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import shtypes as sh
from shtypes.analysis.explain.explanation import explained, trace
from shtypes.analysis.explain.values import BodyRun, Occurrence, cotangent_type
from shtypes.analysis.explain.walk import Walker
from shtypes.analysis.target import target_of
from shtypes.traced.program import with_gradient
from tests.traced.nested_programs import nested, values
from tests.traced.random_programs import AXES, random_program
from tests.traced.test_nested import ALL, QUICK


def assert_explained(
    f: Any, args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, *, grad: bool, doubts: int
) -> None:
    scopes: list[BodyRun] = []
    program = Walker.program

    def watched(self: Walker, *given: Any) -> BodyRun:
        scopes.append(program(self, *given))
        return scopes[-1]

    monkeypatch.setattr(Walker, "program", watched)
    traced = trace(target_of(f, args, {}), grad=grad)
    found = explained("program", traced, grad=grad)
    wanted = sh.ledger(with_gradient(f) if grad else f, *args)
    assert [entry._replace(branches=()) for entry in found.ledger] == [e._replace(branches=()) for e in wanted]
    assert found.ledger.total == wanted.total
    unknown = [
        v for r in records(scopes[0]) if r.backward and r.values for v in r.outs if v.gradient and v.primal is None
    ]
    assert len(unknown) <= doubts
    for record in records(scopes[0]):
        for value in record.outs:
            assert value.name or not value.uses
            if value.gradient and value.primal is not None:
                assert cotangent_type(value.primal.type) == value.type
    assert not grad or [line.name for line in found.gradients] == [f"g_{a.name}" for a in found.arguments]
    assert str(found)
    assert found.to_html()


def records(scope: BodyRun) -> Iterator[Occurrence]:
    for record in scope.records:
        yield record
        for body in record.bodies:
            yield from records(body)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(6))
def test_a_random_program_is_explained(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with sh.use_mesh(sh.abstract_mesh(AXES)):
        program = random_program(seed)
        assert_explained(program, program.arguments, monkeypatch, grad=True, doubts=1)  # its ops are all on one line


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6, 200))
def test_many_random_programs_are_explained(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with sh.use_mesh(sh.abstract_mesh(AXES)):
        program = random_program(seed)
        assert_explained(program, program.arguments, monkeypatch, grad=True, doubts=1)  # its ops are all on one line


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("outer", "inner", "body", "policy"), QUICK)
def test_a_nested_program_is_explained(
    outer: str, inner: str, body: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sh.policy(policy), sh.use_mesh(sh.make_mesh(AXES)):
        assert_explained(
            nested((outer, inner), body), values(), monkeypatch, grad=False, doubts=8 if outer == "step" else 4
        )  # second derivatives


@pytest.mark.nightly
@pytest.mark.parametrize(("outer", "inner", "body", "policy"), ALL[:200])
def test_many_nested_programs_are_explained(
    outer: str, inner: str, body: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sh.policy(policy), sh.use_mesh(sh.make_mesh(AXES)):
        assert_explained(
            nested((outer, inner), body), values(), monkeypatch, grad=False, doubts=80
        )  # JAX splits conditionals in loops in two
