"""What a listing is made from: the values of a traced program, its equations, and the bodies that hold them.

A body that runs in several places (a jitted helper called twice) has values of its own in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shtypes._compat import UserFrame
from shtypes.analysis.equations import Equation
from shtypes.analysis.explain.names import Unique
from shtypes.operation import applied_by


class Value:
    """A variable of the program.

    Attributes:
        type: Its type, typed or JAX's own.
        name: Its name; empty until it has one.
        gradient: Whether it is a cotangent, or a part of one.
        of: The value that it is the cotangent of, where that is known.
        made: The equation that makes it; None for what a body is given.
        uses: The equations that take it.
        kept: Of a value that is computed again, whether the backward pass took it before that; else None.
        returned: Whether its body returns it.
        inner: For a result of a loop or a conditional, what it is in each of its bodies.
    """

    __slots__ = ("gradient", "inner", "kept", "made", "name", "of", "returned", "type", "uses")

    def __init__(self, type: Any, name: str = "", made: Record | None = None, *, gradient: bool = False) -> None:
        self.type, self.name, self.made, self.gradient = type, name, made, gradient
        self.of: Value | None = None
        self.kept: bool | None = None
        self.returned = False
        self.uses: list[Record] = []
        self.inner: dict[int, Value] = {}


#: A value, or the text of a literal.
Operand = Value | str


class Record:
    """An equation where it runs.

    Attributes:
        found: The equation, its line, direction and times.
        frames: The user's frames, innermost first.
        op: What it does, as the jaxpr prints it.
        operands: What it takes.
        values: The operands that are no literals.
        outs: What it makes.
        link: The forward equation that causes it.
        bodies: The bodies of a loop or of a conditional.
        position: Its place among the equations of its body.
        instance: How many equations of its body come from the same expressions before it.
        answered: Whether a backward equation comes from it.
    """

    __slots__ = (
        "answered",
        "bodies",
        "found",
        "frames",
        "instance",
        "key",
        "link",
        "op",
        "operands",
        "outs",
        "position",
        "values",
    )

    def __init__(self, found: Equation, frames: tuple[UserFrame, ...], operands: list[Operand], position: int) -> None:
        self.found, self.frames, self.operands, self.position = found, frames, operands, position
        self.values = [v for v in operands if isinstance(v, Value)]
        self.key = key_of(frames)
        self.op = str(applied_by(found.eqn))
        self.outs: list[Value] = []
        self.link: Record | None = None
        self.bodies: list[Scope] = []
        self.instance = 0
        self.answered = False

    @property
    def backward(self) -> bool:
        """Whether it runs in the backward pass, and not to compute a forward value again."""
        return self.found.direction == "backward"

    @property
    def sums(self) -> bool:
        """Whether it adds two cotangents of one value: what JAX does where several lines send one."""
        return (
            self.backward
            and self.op in ("add", "add_any")
            and len(self.values) == 2
            and all(v.gradient for v in self.values)
        )


def key_of(frames: Sequence[UserFrame]) -> tuple[int, ...]:
    """What equations share that come from the same expressions; frames are one object for each place."""
    return tuple(map(id, frames))


class Scope:
    """A body that runs: of the program, of a loop, or a branch.

    Attributes:
        label: What it is of its equation; empty for the one body of a loop.
        outer: The body that it is inside of.
        given: What it is given.
        results: What it returns.
        records: Its equations, those of calls inside it among them.
        forward: The forward equations, by the expressions that they come from.
        calls: The forward equations, by the expressions of the calls that they are inside of.
        unique: Makes names.
    """

    def __init__(self, label: str = "", unique: Unique | None = None, outer: Scope | None = None) -> None:
        self.label, self.outer = label, outer
        self.given: list[Value] = []
        self.results: list[Operand] = []
        self.records: list[Record] = []
        self.forward: dict[tuple[int, ...], list[Record]] = {}
        self.calls: dict[tuple[int, ...], list[Record]] = {}
        self.unique = unique or Unique()

    @property
    def around(self) -> list[Scope]:
        """The body and those that it is inside of, innermost first."""
        return [self, *(self.outer.around if self.outer is not None else ())]
