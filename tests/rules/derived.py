"""Each table of the library as the meaning oracle finds it, and checks of the library's own against them.

A check returns problems. ``table_problems`` compares a table's rows; ``rule_problems`` runs the rules that read it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from shtypes.resharding import moves
from shtypes.rules import tables
from shtypes.rules.tables import Role
from shtypes.types import COTANGENT, Dim, ShType, State
from shtypes.types.mesh import Mesh
from tests import meaning
from tests.meaning import LETTERS, Layout, Op, answers, layouts, sound_results
from tests.rules.cases import Case, combinations, einsum_cases, elementwise_cases, problem, reduce_cases

Row = Any


def _op(name: str, shapes: tuple[tuple[int, ...], ...], out: tuple[int, ...], f: Callable[..., Any]) -> Op:
    return Op(name, shapes, out, lambda operands, site: np.asarray(f(*operands)))


MULTIPLY = _op("derive multiply", ((4,), (4,)), (4,), np.multiply)
ADD = _op("derive add", ((4,), (4,)), (4,), np.add)
MULTIPLY_ROWS = _op("derive multiply rows", ((4, 2), (2,)), (4, 2), np.multiply)
ADD_ROWS = _op("derive add rows", ((4, 2), (2,)), (4, 2), np.add)


def _pairs(op: Op) -> list[tuple[Layout, Layout]]:
    return [(a, b) for a in layouts((2,), op.shapes[0]) for b in layouts((2,), op.shapes[1])]


@functools.cache
def joins(op: Op) -> dict[Row, State]:
    """The state of the result for each pair of states that types."""
    found: dict[Row, State] = {}
    for pair in _pairs(op):
        for answer in answers(op, pair):
            key = (State(pair[0].letters), State(pair[1].letters))
            assert found.setdefault(key, State(answer.result.letters)).value == answer.result.letters
    return found


@functools.cache
def casts(*ops: Op) -> dict[Row, State]:
    """What each operand becomes, by its state and what the result needs of it."""
    found: dict[Row, State] = {}
    for op in ops:
        for pair in _pairs(op):
            for answer in answers(op, pair):
                for before, after in zip(pair, answer.operands, strict=True):
                    need: State | Role = State(answer.result.letters)
                    if need is State.SHARDED and not _has_sharded_dim(before, answer.result):
                        need = Role.LACKS
                    key = (State(before.letters), need)
                    assert found.setdefault(key, State(after.letters)).value == after.letters
    return found


def _has_sharded_dim(operand: Layout, result: Layout) -> bool:
    """Whether an operand, aligned from the right, has the dim of the result that is sharded."""
    (d,) = (i for i, axes in enumerate(result.on) if axes)
    return d >= len(result.shape) - len(operand.shape)


@functools.cache
def unary(op: Op) -> dict[Row, State]:
    """The state of the result for each role of the operand; the op acts along dim 0."""
    found: dict[Row, State] = {}
    for layout in layouts((2,), op.shapes[0]):
        for result in sound_results(op, (layout,)):
            role = Role.ALONG if layout.on[0] else State(layout.letters)
            assert role not in found
            found[role] = State(result.letters)
    return found


def cotangents() -> dict[Row, State]:
    return {State(a): State(b) for a, b in zip(LETTERS, meaning.cotangents(), strict=True)}


_GRADES = {
    "free": moves.Grade.FREE,
    "free forward": moves.Grade.FREE_FORWARD,
    "communicating": moves.Grade.COMMUNICATING,
}


def all_moves() -> dict[Row, moves.Move]:
    found = {}
    for src in "SRIU":
        for dst in "SRIU":
            if src == dst != "S":
                continue
            grade = _GRADES[str(meaning.grade(src, dst))]
            found[State(src), State(dst)] = moves.Move(moves.Kind(_kind_and_rounds(src, dst)[0]), grade)
    return found


def _kind_and_rounds(src: str, dst: str) -> tuple[str, int]:
    kind = None if src == dst else meaning.local_move(src, dst)
    return meaning.collective(src, dst) if kind is None else (kind, 0)


def reinterpretations() -> dict[Row, moves.Grade]:
    pairs = [(a, b) for a in LETTERS for b in LETTERS if (a == "V") != (b == "V")]
    return {(State(a), State(b)): _GRADES[g] for a, b in pairs if (g := meaning.grade(a, b)) is not None}


# the library's tables beside them


class Table(NamedTuple):
    """A table to be checked.

    Attributes:
        table: The library's own.
        derive: Finds it from meanings.
        keys: Every key that a row could have.
        values: Every value that a row could have.
        cases: Ops whose rules read the table.
        dead: Whether no code would read a row with this key.
    """

    table: Mapping[Any, Any]
    derive: Callable[[], Mapping[Any, Any]]
    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    cases: Callable[[], list[Case]] = list
    dead: Callable[[Any], bool] = lambda key: False


@functools.cache
def derived(name: str) -> Mapping[Any, Any]:
    return TABLES[name].derive()


def _named(cases: list[Case], *starts: str) -> list[Case]:
    return [c for c in cases if c.op.name.startswith(starts)]


@functools.cache
def _factor_cases() -> list[Case]:
    # A predicate, an einsum and a product: every way in which factors meet.
    found = _named(
        elementwise_cases(2), "mul [(4, 2), (4, 2)] set()", "mul [(4, 2), (2,)] set()", "where ((2,), (2,), (2,)"
    )
    return [*found, *_named(einsum_cases(2), "i,i->i")]


@functools.cache
def _term_cases() -> list[Case]:
    return _named(
        elementwise_cases(2), "add [(4, 2), (4, 2)] set()", "add [(4, 2), (2,)] set()", "where ((2,), (2,), (2,)"
    )


@functools.cache
def _linear_cases() -> list[Case]:
    return [*_named(elementwise_cases(2), "neg"), *_named(reduce_cases(2), "flip")]


@functools.cache
def _nonlinear_cases() -> list[Case]:
    found = _named(elementwise_cases(2), "silu", "pow [(4, 2), (4, 2)]", "divide [(4, 2), (4, 2)]")
    return [*found, *_named(reduce_cases(2), "max", "softmax")]


@functools.cache
def _sum_cases() -> list[Case]:
    return [*_named(reduce_cases(2), "sum"), *_named(einsum_cases(2), "ij,jk->ik ((4, 4)", "bij->bj")]


STATES = tuple(State)
ROLES = (*STATES, Role.ALONG)
PAIRS = tuple((a, b) for a in STATES for b in STATES)
NEEDS = tuple((a, need) for a in STATES for need in (*STATES, Role.LACKS))

TABLES: dict[str, Table] = {
    "MULTILINEAR": Table(tables.MULTILINEAR, lambda: joins(MULTIPLY), PAIRS, STATES, _factor_cases),
    "ADDITIVE": Table(tables.ADDITIVE, lambda: joins(ADD), PAIRS, STATES, _term_cases),
    # A row that no joined state asks for is dead: the operands did not join.
    "FACTOR": Table(
        tables.FACTOR,
        lambda: casts(MULTIPLY, MULTIPLY_ROWS),
        NEEDS,
        STATES,
        _factor_cases,
        lambda key: key not in derived("FACTOR"),
    ),
    "TERM": Table(
        tables.TERM,
        lambda: casts(ADD, ADD_ROWS),
        NEEDS,
        STATES,
        _term_cases,
        lambda key: key not in derived("TERM"),
    ),
    "LINEAR_UNARY": Table(
        tables.LINEAR_UNARY,
        lambda: unary(_op("derive flip", ((4, 2),), (4, 2), lambda x: x[::-1])),
        ROLES,
        STATES,
        _linear_cases,
    ),
    "NONLINEAR": Table(
        tables.NONLINEAR,
        lambda: unary(_op("derive square along", ((4, 2),), (4, 2), lambda x: x.sum(0) * x)),
        ROLES,
        STATES,
        _nonlinear_cases,
    ),
    "SUM": Table(
        tables.SUM, lambda: unary(_op("derive sum", ((4, 2),), (2,), lambda x: x.sum(0))), ROLES, STATES, _sum_cases
    ),
    "COTANGENT": Table(COTANGENT, cotangents, STATES, STATES),
    "MOVES": Table(
        moves.MOVES,
        all_moves,
        PAIRS,
        tuple(moves.Move(k, g) for k in moves.Kind for g in moves.Grade),
    ),
    "REINTERPRETATIONS": Table(
        moves.REINTERPRETATIONS,
        reinterpretations,
        PAIRS,
        tuple(moves.Grade),
        dead=lambda key: key in derived("MOVES") or key[0] is key[1],  # asked only where there is no move
    ),
}


def table_problems(name: str) -> list[str]:
    """The rows in which a table differs from the derived one."""
    has, should = TABLES[name].table, derived(name)
    return [
        f"{name}[{key}] is {has.get(key, 'absent')}, and by meaning {should.get(key, 'absent')}"
        for key in dict.fromkeys((*has, *should))
        if has.get(key) != should.get(key)
    ]


@functools.cache
def _quick(name: str) -> list[tuple[Case, tuple[Layout, ...]]]:
    return [(case, given) for case in TABLES[name].cases() for given in combinations(case, (2,))]


def rule_problem(name: str) -> str | None:
    """The first difference between the oracle and the code that reads a table; the code may also break down."""
    try:
        if name == "COTANGENT":
            return _cotangent_problem()
        if name in ("MOVES", "REINTERPRETATIONS"):
            return _move_problem()
        return next((p for case, given in _quick(name) if (p := problem(case, given)) is not None), None)
    except (KeyError, TypeError) as error:  # a `ShardingTypeError`, which is a TypeError, names no axis here
        return f"{type(error).__name__}: {error}"


def _cotangent_problem() -> str | None:
    mesh = Mesh({"x": 2})
    for layout in layouts((2,), (4,)):
        t = ShType(mesh, "f32", [Dim(4, ("x",) * len(layout.on[0]))], (State(layout.letters),))
        right = meaning.cotangent_of(layout, meaning.cotangents()).letters
        if t.cotangent().states != (State(right),):
            return f"the gradient of {t} is {t.cotangent()}, and by meaning in state {right}"
    return None


def _move_problem() -> str | None:
    """Grades, kinds and bytes."""
    for src, dst in PAIRS:
        right = derived("MOVES").get((src, dst))
        grade = derived("REINTERPRETATIONS").get((src, dst)) if right is None else right.grade
        if src is not dst:
            move = moves.MOVES.get((src, dst))
            got = moves.REINTERPRETATIONS.get((src, dst)) if move is None else move.grade
            if got is not grade:
                return f"{src} to {dst} is graded {got}, and by meaning {grade}"
        has = moves.MOVES.get((src, dst))
        if (has is None) != (right is None):
            return f"{src} to {dst} is a move: {has}, and by meaning {right}"
        if has is None or right is None:
            continue
        rounds = _kind_and_rounds(src.value, dst.value)[1]
        if (has, has.bytes(4, 64)) != (right, rounds * 48):
            return f"{src} to {dst} is {has}, and by meaning {right}"
    return None
