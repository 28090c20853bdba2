"""``shtypes compare``: one target under both policies."""

from __future__ import annotations

from typing import Any

import click

from shtypes.tools.cli.costs import link_option, read_links
from shtypes.tools.cli.guard import tracing
from shtypes.tools.cli.options import dims_option, mesh_option, target_arguments
from shtypes.tools.cli.output import emit, output_options
from shtypes.tools.cli.target import program


@click.command("compare")
@target_arguments
@mesh_option
@dims_option
@click.option("--no-grad", is_flag=True, help="Only the forward pass.")
@link_option
@output_options
def command(no_grad: bool, links: tuple[str, ...], form: str, output: str | None, **given: Any) -> None:
    """Types one function under the policies "jax" and "partial", and shows what differs.

    The backward pass is in it, unless --no-grad is given or the function takes gradients itself. TARGET and TYPE are as
    for `shtypes check`; a type means, under each policy, what its text means there.
    """
    model = read_links(links)
    one = program(**given)
    with tracing(one.name):
        from shtypes.analysis.compare.compare import compare

        with one.scope():
            found = compare(one.function, *one.args, grad=not no_grad, model=model)
    emit(found, form, output)
