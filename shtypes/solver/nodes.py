"""The decision variables of a program, and the uses of values between which they decide."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from shtypes.solver.items import Branches, Loop, Op, Operand, Value
from shtypes.solver.option import Option


@dataclass(eq=False)
class Node:
    """A decision variable, whose values are one option for each mesh axis."""

    id: int
    #: ``argument``, ``op``, ``carry``, ``slice``, ``stack``, ``join``: what branches return, ``result``, ``barrier``:
    #: an operand of an op that returns its operands, or ``shared``: a resharded copy of a value for some uses.
    kind: str
    options: tuple[tuple[Option, ...], ...]  # for each mesh axis
    operands: list[Operand]
    results: list[Value]
    times: float  # how often it runs
    item: Op | Loop | Branches | None = None  # its op, loop or branches
    operand_times: list[float] = field(default_factory=list)  # how often each operand is resharded for it
    reruns: int = 0  # how often the backward pass recomputes it
    index: int = 0  # among the operands of the barrier, carries, slices, stacks or results
    #: The node that decides for it: itself, or its counterpart in the first of repeated layers.
    leader: Node = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.leader = self
        self.operand_times = self.operand_times or [self.times] * len(self.operands)

    @property
    def checkpointed(self) -> bool:
        """Whether a checkpoint recomputes its op or loop."""
        return self.item is not None and self.item.checkpointed

    @property
    def op(self) -> Op | None:
        """Its op, if it is one."""
        return self.item if isinstance(self.item, Op) and self.kind == "op" else None

    def place(self, i: int) -> str:
        """The key of an operand in `Decisions.casts`."""
        if self.item is None:
            return f"second.{self.operands[i].id}" if self.kind == "shared" else f"result.{self.index}"
        if isinstance(self.item, Op):
            return f"{self.item.id}.{self.index + i}"
        return f"{self.item.id}.{self.kind}.{self.index}.{i}"


class Use(NamedTuple):
    """An operand of a node."""

    node: Node
    operand: int
    value: Value
    times: float

    @property
    def place(self) -> str:
        """Its key in `Decisions.casts`."""
        return self.node.place(self.operand)

    @property
    def loop(self) -> Loop | None:
        """The loop of whose body it is an output: its next carry, or what it stacks."""
        node = self.node
        return node.item if isinstance(node.item, Loop) and (node.kind == "stack" or self.operand == 1) else None

    @property
    def final(self) -> Value | None:
        """The final carry of a loop of one step, of whose next carry it alone is made; else None."""
        once = self.node.kind == "carry" and self.loop is not None and self.loop.runs_once
        return self.loop.results[self.node.index] if once and self.loop else None
