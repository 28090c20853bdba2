"""Decisions of a plan that was saved as JSON, read for the program that they were made for."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from shtypes.errors import ShardingTypeError
from shtypes.solver.apply import Decisions, PlannedCast
from shtypes.solver.program import Program
from shtypes.types import ShType
from shtypes.types.mesh import Mesh

#: The version of what `Plan.to_json` writes.
SCHEMA: Final = 2


def fingerprint(program: Program) -> str:
    """A hash of the ops of a program and their shapes."""
    ops = [(op.id, op.name, [v.shape for v in op.results]) for op in program.ops]
    return hashlib.sha1(repr(ops).encode()).hexdigest()[:16]


@contextlib.contextmanager
def reading(plan: Any) -> Iterator[None]:
    """Raises what is wrong with the file of a plan, or with what stands for one, in words."""
    try:
        yield
    except ShardingTypeError:
        raise
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise ShardingTypeError(
            f"{f'the file {str(plan)!r}' if isinstance(plan, str | Path) else repr(plan)[:60]} holds no plan",
            why=f"{type(error).__name__}: {error}",
            hints=["sh.suggest(f, *args, mesh=mesh).to_json() is what such a file holds"],
        ) from None


def decisions_of(saved: Mapping[str, Any], program: Program) -> Decisions:
    """Reads the decisions that `Plan.to_json` wrote; raises if they are for another program."""
    if saved.get("schema") != SCHEMA or saved.get("program") != fingerprint(program):
        raise ShardingTypeError(
            f"the plan is not of `{program.name}` as it is now",
            why="it was made for other operations, shapes or another release of JAX",
            hints=["sh.suggest(f, *args, mesh=mesh, fixed={...}) with its rules as they are fixed"],
        )
    mesh = Mesh(saved["mesh"])
    casts = {
        place: PlannedCast(c["to"] and ShType.parse(c["to"], mesh), c["second"])
        for place, c in saved["reshards"].items()
    }
    types = tuple(ShType.parse(saved["arguments"][v.name], mesh) for v in program.inputs)
    return Decisions(mesh, types, casts, {int(op): way for op, way in saved["joined"].items()})
