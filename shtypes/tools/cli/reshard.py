"""``shtypes reshard``: the plan from one type to another, forward and backward. Needs no JAX."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from shtypes.analysis.resharding.report import Resharding
from shtypes.errors import ShardingTypeError
from shtypes.plans import plan
from shtypes.tools.cli.config import config
from shtypes.tools.cli.costs import link_option, read_links
from shtypes.tools.cli.guard import for_the_shell
from shtypes.tools.cli.options import dims_option, mesh_option, policy_option
from shtypes.tools.cli.output import drawn_output_options, emit
from shtypes.types import ShType
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
@drawn_output_options
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
    """The cheapest plan from one type to another: its steps in words, bytes, time and memory, and who holds what.

    Also the plan of the backward pass. FROM is a type such as "f32[8@dp, 16]"; TO may leave out what stays:
    "[8, 16@dp]", "[_, _@dp]", "{U:tp}". An SVG has pictures of what each device holds before, between and after.
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


def _type(name: str, text: str, **options: Any) -> ShType:
    try:
        return parse(text, **options)
    except ShardingTypeError as error:
        raise click.BadParameter(str(for_the_shell(error)), param_hint=name) from None
