"""Every rule against the meaning oracle, over every combination of the operands' states."""

from __future__ import annotations

import pytest

from shtypes.rules.elementwise import additive, multilinear
from shtypes.types.policy import policy
from tests.meaning import Layout, Op, grade, sound_results
from tests.rules import derived
from tests.rules.cases import (
    Case,
    all_cases,
    combinations,
    einsum_case,
    elementwise_cases,
    problems,
    reduce_cases,
    reshape_case,
    shape_cases,
    typed,
)

_ON_TWO_AXES = (
    *("add [(4, 2), (4, 2)] set()", "add [(4, 2), (2,)] {1}", "mul [(4, 2), (4, 2)] set()", "where ((2,), (2,), ()"),
    *("silu", "neg"),
)


def _two_axes() -> list[Case]:
    return [
        einsum_case("i,j->ij", (4,), (4,)),
        einsum_case("i,i->i", (4,), (4,)),
        einsum_case("ij,jk->ik", (4, 4), (4, 2)),
        *(c for c in elementwise_cases(2) if c.op.name.startswith(_ON_TWO_AXES)),
        *reduce_cases(2),
        *shape_cases(2),
        *(
            reshape_case(old, new)
            for old, new in (
                ((4,), (2, 2)),
                ((2, 2), (4,)),
                ((8,), (4, 2)),
                ((8,), (2, 4)),
                ((2, 4), (8,)),
                ((2, 2, 2), (8,)),
                ((2, 2, 2), (4, 2)),
                ((12,), (2, 6)),
                ((4, 3), (2, 6)),
                ((4, 2), (2, 1, 4)),
            )
        ),
    ]


@pytest.mark.one_in(13)
@pytest.mark.parametrize("case", all_cases(2), ids=lambda case: case.op.name)
def test_every_rule_is_what_the_meanings_say_on_two_devices(case: Case) -> None:
    assert problems(case, (2,)) == []


@pytest.mark.one_in(13)
@pytest.mark.parametrize("case", all_cases(3), ids=lambda case: case.op.name)
def test_every_rule_is_what_the_meanings_say_on_three_devices(case: Case) -> None:
    assert problems(case, (3,)) == []


@pytest.mark.one_in(125)
@pytest.mark.parametrize("case", _two_axes(), ids=lambda case: case.op.name)
def test_every_rule_is_what_the_meanings_say_on_two_by_two_devices(case: Case) -> None:
    assert problems(case, (2, 2)) == []


@pytest.mark.one_in(7)
@pytest.mark.parametrize("case", all_cases(2), ids=lambda case: case.op.name)
def test_rules_are_right_under_the_other_policy_too(case: Case) -> None:
    with policy("jax"):
        assert problems(case, (2,)) == []


@pytest.mark.parametrize(
    ("op", "given", "cast", "moves"),
    [
        (derived.ADD, "SU", "UU", ["SU"]),  # n times the memory, and a later reduction n times larger
        (derived.ADD, "RI", "II", ["RI"]),  # a reduced weight keeps its type
        (derived.MULTIPLY, "RI", "II", ["RI"]),
        (derived.ADD, "RI", "UU", ["RU", "IU"]),  # a pending sum without a reason
        (derived.MULTIPLY, "RI", "RU", ["IU"]),
    ],
)
def test_typings_that_are_left_out_on_purpose_would_be_right_and_free(
    op: Op, given: str, cast: str, moves: list[str]
) -> None:
    assert all(grade(*move) == "free" for move in moves)
    lhs, rhs = (Layout((2,), (4,), ((),), letter) for letter in cast)
    (result,) = sound_results(op, (lhs, rhs))
    took = typed(_case_of(op), tuple(Layout((2,), (4,), ((0,) if c == "S" else (),), c) for c in given))
    assert took is None or took.result != result


def _case_of(op: Op) -> Case:
    rule = {derived.ADD: additive, derived.MULTIPLY: multilinear}[op]
    return Case(op, lambda types: rule("op", types, "f32"), ("f32", "f32"), ("SRIUV", "SRIUV"))


def test_the_cases_type_some_combinations_and_refuse_others() -> None:
    told = [typed(case, given) is None for case in all_cases(2) for given in combinations(case, (2,))]
    assert 500 < sum(told) < len(told) - 500


@pytest.mark.parametrize("name", derived.TABLES)
def test_every_table_is_the_one_that_the_meanings_give(name: str) -> None:
    assert derived.table_problems(name) == []
