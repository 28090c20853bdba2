"""The typed equations of a traced program, with what is known of each: its line, its direction, how often it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.extend import source_info_util

from shtypes._compat import inner_jaxprs, jaxpr_of
from shtypes.primitives import Local, Reshard

_PLACE = re.compile(r"(?P<file>.*?):(?P<line>\d+)(:\d+)?( \((?P<function>.*)\))?$")


class Place(NamedTuple):
    """A line of the user's code; empty where JAX made the equation itself."""

    file: str = ""
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        name = self.file.replace("\\", "/").rsplit("/", 1)[-1]
        return f"{name}:{self.line}" if self.file else ""


class TypedEquation(NamedTuple):
    """An equation on typed values.

    Attributes:
        eqn: JAX's equation; its primitive is a `Local` or a `Reshard`.
        place: The user's line.
        direction: ``"forward"``, ``"backward"`` or ``"recomputed"`` (by checkpoint, in the backward pass).
        times: How often it runs, or None where a while loop decides.
    """

    eqn: Any
    place: Place
    direction: str
    times: int | None


def place_of(eqn: Any) -> Place:
    """The user's line of an equation."""
    found = _PLACE.match(source_info_util.summarize(eqn.source_info))
    if found is None or found["file"] == "unknown":
        return Place()
    return Place(found["file"], int(found["line"]), found["function"] or "")


def direction_of(stack: str) -> str:
    """The direction that a name stack tells."""
    if "rematted_computation" in stack:
        return "recomputed"
    return "backward" if "transpose(" in stack else "forward"


def typed_equations(jaxpr: Any, stack: str = "", times: int | None = 1) -> Iterator[TypedEquation]:
    """All typed equations, inside control flow and calls too; each branch of a cond counts as if it ran."""
    for eqn in jaxpr_of(jaxpr).eqns:
        own = f"{stack}/{eqn.source_info.name_stack}"
        if isinstance(eqn.primitive, (Local, Reshard)):
            yield TypedEquation(eqn, place_of(eqn), direction_of(own), times)
        for inner, trips in inner_jaxprs(eqn):
            yield from typed_equations(inner, own, None if times is None or trips is None else times * trips)
