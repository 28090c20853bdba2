"""``shtypes reshard``: the plan from one type to another, forward and backward. Needs no JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import click

from shtypes.analysis.resharding.explain_reshard import Resharding
from shtypes.errors import ShardingTypeError
from shtypes.resharding.transport import Asked
from shtypes.tools.cli.config import config
from shtypes.tools.cli.costs import link_option, read_links
from shtypes.tools.cli.guard import for_the_shell
from shtypes.tools.cli.options import dims_option, mesh_option, policy_option
from shtypes.tools.cli.output import drawn_output_options, emit
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.policy import policy
from shtypes.types.target import parse

T = TypeVar("T")


@click.command("reshard")
@click.argument("source", metavar="FROM")
@click.argument("goal", metavar="TO")
@mesh_option
@policy_option
@dims_option
@link_option
@click.option("--comm-dtype", metavar="DTYPE", help="A narrower float to send the value in: bf16.")
@click.option("--ct-comm-dtype", metavar="DTYPE", help="The same of its cotangent.")
@click.option("--narrow-sums", is_flag=True, help="Sums may be added in the narrower dtype, too.")
@drawn_output_options
def command(
    source: str,
    goal: str,
    mesh: Mesh | None,
    policy_name: str | None,
    dims: dict[str, int],
    links: tuple[str, ...],
    comm_dtype: str | None,
    ct_comm_dtype: str | None,
    narrow_sums: bool,
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
        transport = _read("--comm-dtype", Asked(comm_dtype, ct_comm_dtype, narrow_sums).transport, "reshard", src, dst)
        emit(Resharding(src, dst, read_links(links), transport), form, output)


def _type(name: str, text: str, **options: Any) -> ShType:
    return _read(name, parse, text, **options)


def _read(name: str, read: Callable[..., T], *args: Any, **options: Any) -> T:
    try:
        return read(*args, **options)
    except ShardingTypeError as error:
        raise click.BadParameter(str(for_the_shell(error)), param_hint=name) from None
