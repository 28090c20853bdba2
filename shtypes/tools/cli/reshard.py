"""``shtypes reshard``: the plan from one type to another, forward and backward. Needs no JAX."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import click
from rich.console import Group

from shtypes.analysis.costs import CostModel
from shtypes.errors import ShardingTypeError, how_many
from shtypes.plans import Plan, Step, backward, plan
from shtypes.tools.cli.config import config
from shtypes.tools.cli.costs import link_option, read_links
from shtypes.tools.cli.guard import for_the_shell
from shtypes.tools.cli.options import dims_option, mesh_option, policy_option
from shtypes.tools.cli.output import emit, output_options
from shtypes.traced.tables import Table, page
from shtypes.types.mesh import Mesh
from shtypes.types.policy import policy
from shtypes.types.target import parse


@click.command("reshard")
@click.argument("source", metavar="FROM")
@click.argument("goal", metavar="TO")
@mesh_option
@policy_option
@dims_option
@link_option
@output_options
def command(
    source: str,
    goal: str,
    mesh: Mesh | None,
    policy_name: str | None,
    dims: dict[str, int],
    links: tuple[str, ...],
    form: str,
    output: str | None,
) -> None:
    """The cheapest plan from one type to another: its steps, bytes, time and memory, and the plan of the backward pass.

    FROM is a type such as "f32[8@dp, 16]"; TO may leave out what stays: "[8, 16@dp]", "[_, _@dp]", "{U:tp}".
    """
    settings = config()
    mesh = mesh or settings.mesh
    if mesh is None:
        raise click.UsageError("no mesh is given: say --mesh dp=2,tp=4")
    chosen = policy_name or settings.policy
    with policy(chosen) if chosen else contextlib.nullcontext():
        src = _type("FROM", source, mesh=mesh, dims={**settings.dims, **dims})
        dst = _type("TO", goal, like=src, dims={**settings.dims, **dims})
        emit(Resharding(plan(src, dst), read_links(links)), form, output)


def _type(name: str, text: str, **options: Any) -> Any:
    try:
        return parse(text, **options)
    except ShardingTypeError as error:
        raise click.BadParameter(str(for_the_shell(error)), param_hint=name) from None


class Resharding:
    """A plan with that of its backward pass; prints, and is JSON and HTML.

    Attributes:
        forward: The plan.
        backward: The plan between the cotangent types; None where the values have no gradients.
        model: The cost model of the predicted times, if one was given.
    """

    def __init__(self, forward: Plan, model: CostModel | None = None) -> None:
        self.forward, self.model = forward, model
        self.backward = backward(forward) if forward.src.differentiable else None

    def tables(self) -> list[Table]:
        """The plans."""
        found = [self._table("forward", self.forward)]
        return found if self.backward is None else [*found, self._table("backward", self.backward)]

    def _table(self, name: str, found: Plan) -> Table:
        headings = ("step", "B/device", "time", "type after") if self.model else ("step", "B/device", "type after")
        rows = []
        for step in found.steps:
            time = (f"{self.model.seconds(step):.2e} s",) if self.model else ()
            rows.append((str(step), str(step.bytes), *time, str(step.dst)))
        note = f"{found.bytes} B/device in {how_many(found.launches, 'collective')}"
        note += f"; at most {found.peak_bytes} B/device in memory"
        if self.model:
            note += f"; {self._seconds(found):.2e} s"
        title = f"{name}: {found.src} -> {found.dst}"
        return Table(title, headings, tuple(rows), frozenset({"B/device", "time"}), note if rows else "nothing to do")

    def _seconds(self, found: Plan) -> float:
        return sum(self.model.seconds(step) for step in found.steps) if self.model else 0.0

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))

    def __rich__(self) -> Group:
        return Group(*self.tables())

    def to_html(self) -> str:
        """A page of its own."""
        return page(f"{self.forward.src} to {self.forward.dst}", [table.to_html() for table in self.tables()])

    def to_json(self, indent: int | None = None) -> str:
        """The plans as JSON, as described in the docs (command line)."""
        found = {
            "schema": 1,
            "mesh": str(self.forward.src.mesh),
            "forward": self._plan_json(self.forward),
            "backward": None if self.backward is None else self._plan_json(self.backward),
        }
        return json.dumps(found, indent=indent)

    def _plan_json(self, found: Plan) -> dict[str, Any]:
        return {
            "before": found.src.canonical(),
            "after": found.dst.canonical(),
            "bytes": found.bytes,
            "launches": found.launches,
            "peak_bytes": found.peak_bytes,
            "seconds": self._seconds(found) if self.model else None,
            "steps": [_step_json(step) for step in found.steps],
        }


def _step_json(step: Step) -> dict[str, Any]:
    return {
        "kind": step.kind.value,
        "axes": list(step.axes),
        "bytes": step.bytes,
        "launches": step.launches,
        "after": step.dst.canonical(),
    }
