"""What the library answers to a program on typed operands, beside what the oracle says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import shtypes as sh
from shtypes.core.jax_type import as_jax_type
from tests.meaning import Layout, layouts
from tests.peers.oracle import free_results, is_right
from tests.peers.programs import Program
from tests.rules.cases import to_layout, to_type


class Answer(NamedTuple):
    """What the library says to a program on operands of given types.

    Attributes:
        result: The result's type; None if the program is refused.
        refusal: The error, if it is a refusal in the library's shape.
        crash: Any other error.
        plain: Whether the result is no typed value: the program uses none.
    """

    result: Any = None
    refusal: Any = None
    crash: BaseException | None = None
    plain: bool = False


def operand_type(layout: Layout, dtype: str) -> Any:
    """The type of an operand that lies so; its axes are called x, y, z."""
    return as_jax_type(to_type(layout, dtype))


def answer(program: Program, given: Sequence[Layout], call: Any = None) -> Answer:
    """Types a program; nothing runs."""
    types = [operand_type(t, v.dtype) for t, v in zip(given, program.operands, strict=True)]
    return typed(lambda *operands: program.fn(sh, *operands), [sh.abstract_array(t) for t in types])


def typed(f: Any, operands: Sequence[Any]) -> Answer:
    """The type of the result of ``f``, or how it fails."""
    found = []

    def run(*args: Any) -> None:
        result = f(*args)
        found.append(sh.typeof(result) if isinstance(result, sh.Array) else None)

    try:
        with sh.use_mesh(operands[0].type.mesh):
            jax.eval_shape(run, *operands)
        return Answer(result=found[0], plain=found[0] is None)
    except sh.ShardingTypeError as error:
        if "please report" in str(error) or not error.where:
            return Answer(crash=error)
        return Answer(refusal=error)
    except Exception as error:
        return Answer(crash=error)


def operand_layouts(program: Program, mesh: tuple[int, ...]) -> list[list[Layout]]:
    """The layouts of each operand; booleans and integer indices are never pending sums."""
    return [list(layouts(mesh, v.shape, "SRI" if v.dtype == "bool" else "SRIU")) for v in program.operands]


def combinations(program: Program, mesh: tuple[int, ...], count: int, seed: int = 0) -> Iterator[tuple[Layout, ...]]:
    """All layouts of a program's operands, or ``count`` of them at random if there are more."""
    choices = operand_layouts(program, mesh)
    total = math.prod(map(len, choices))
    if total <= count:
        yield from itertools.product(*choices)
        return
    for pick in np.random.default_rng(seed).choice(total, count, replace=False):
        places = np.unravel_index(int(pick), [len(c) for c in choices])
        yield tuple(c[int(p)] for c, p in zip(choices, places, strict=True))


def offers_free(error: Any) -> bool:
    """Whether an error prints a change that types and costs nothing in either direction."""
    return any(not fix.bytes_forward and not fix.bytes_backward for fix in error.fixes)


def verdict(program: Program, given: Sequence[Layout]) -> tuple[str, Answer]:
    """One of: sound, unsound, crash, refused, offered (left out on purpose, and printed as a fix), missed."""
    got = answer(program, given)
    if got.crash is not None:
        return "crash", got
    if got.plain:
        return "plain", got
    if got.result is not None:
        return ("sound" if is_right(program, given, to_layout(got.result)) else "unsound"), got
    if not free_results(program, given):
        return "refused", got
    return ("offered" if offers_free(got.refusal) else "missed"), got
