"""Programs of published packages as their users call them, each with the bytes that its layouts send."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pytest

from tests.lifting.frameworks.judging import Module, judged

#: Of one array, by how many dims it has: the first over `dp`; whole.
OVER_DATA: Final = ("[]", "[_@dp]", "[_@dp, _]", "[_@dp, _, _]")
WHOLE: Final = ("[]", "[_]", "[_, _]", "[_, _, _]")


class Program(NamedTuple):
    """A program of a package, and what each device sends for its values and gradients, by layout, in bytes."""

    make: Callable[[], Module]
    sent: Mapping[str, int]


def of(f: Callable[..., Any], *inputs: Any, **types: Sequence[str]) -> Module:
    """A function of arrays, with the types of all of them under each layout."""
    return Module(lambda _, *xs: f(*xs), (), inputs, types=types)


def cases(programs: Mapping[str, Program]) -> list[Any]:
    """Each program under each of its layouts."""
    return [pytest.param(name, layout, id=f"{name}-{layout}") for name, p in programs.items() for layout in p.sent]


def check(program: Program, layout: str) -> None:
    """Compares values and gradients with those of one device, and the bytes with those that are written down."""
    sent = judged(program.make(), layout)
    assert sent == program.sent[layout], f"{sent} bytes instead of {program.sent[layout]}"
