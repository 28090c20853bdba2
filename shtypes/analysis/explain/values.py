"""What a listing is made from: the values of a traced program, its equations, and the bodies that hold them.

A body that runs in several places (a jitted helper called twice) has values of its own in each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shtypes._compat.eqn_frames import UserFrame
from shtypes.analysis.explain.source import Unique
from shtypes.core.operation import applied_by
from shtypes.traced.equations import Equation


@dataclass(eq=False, slots=True)
class Value:
    """A variable of the program."""

    type: Any  # typed, or JAX's own
    name: str = ""  # empty until it has one
    made: Occurrence | None = None  # the equation that makes it; None for what a body is given
    gradient: bool = field(default=False, kw_only=True)  # whether it is a cotangent, or a part of one
    of: Value | None = None  # the value that it is the cotangent of, where that is known
    #: Of a value that is computed again, whether the backward pass took it before that; else None.
    kept: bool | None = None
    returned: bool = False  # whether its body returns it
    uses: list[Occurrence] = field(default_factory=list)  # the equations that take it
    inner: dict[int, Value] = field(default_factory=dict)  # a result of a loop or conditional, in each of its bodies


#: A value, or the text of a literal.
Operand = Value | str


@dataclass(eq=False, slots=True)
class Occurrence:
    """An equation where it runs."""

    found: Equation
    frames: tuple[UserFrame, ...]  # the user's, innermost first
    operands: list[Operand]
    position: int  # among the equations of its body
    values: list[Value] = field(init=False)  # the operands that are no literals
    key: tuple[int, ...] = field(init=False)  # the same for equations that come from the same expressions
    op: str = field(init=False)  # what it does, as the jaxpr prints it
    outs: list[Value] = field(default_factory=list)
    link: Occurrence | None = None  # the forward equation that causes it
    bodies: list[BodyRun] = field(default_factory=list)  # of a loop or of a conditional
    instance: int = 0  # how many equations of its body come from the same expressions before it
    answered: bool = False  # whether a backward equation comes from it

    def __post_init__(self) -> None:
        self.values = [v for v in self.operands if isinstance(v, Value)]
        self.key = tuple(map(id, self.frames))  # frames are one object for each place
        self.op = str(applied_by(self.found.eqn))

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


@dataclass(eq=False)
class BodyRun:
    """A body that runs: of the program, of a loop, or a branch."""

    label: str = ""  # what it is of its equation; empty for the one body of a loop
    unique: Unique = field(default_factory=Unique)
    outer: BodyRun | None = None
    given: list[Value] = field(default_factory=list)
    results: list[Operand] = field(default_factory=list)
    records: list[Occurrence] = field(default_factory=list)  # those of calls inside it among them
    #: The forward equations, by the expressions that they come from, and by those of the calls that they are inside of.
    forward: dict[tuple[int, ...], list[Occurrence]] = field(default_factory=dict)
    calls: dict[tuple[int, ...], list[Occurrence]] = field(default_factory=dict)

    @property
    def around(self) -> list[BodyRun]:
        """The body and those that it is inside of, innermost first."""
        return [self, *(self.outer.around if self.outer is not None else ())]
