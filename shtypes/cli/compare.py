"""``shtypes compare``: one target under both policies."""

from __future__ import annotations

import click

from shtypes.cli.costs import link_option, read_links
from shtypes.cli.guard import tracing
from shtypes.cli.options import dims_option, mesh_option, target_arguments
from shtypes.cli.output import emit, output_options
from shtypes.cli.target import program
from shtypes.mesh import Mesh


@click.command("compare")
@target_arguments
@mesh_option
@dims_option
@click.option("--no-grad", is_flag=True, help="Only the forward pass.")
@link_option
@output_options
def command(
    target: str,
    types: tuple[str, ...],
    arguments: str | None,
    mesh: Mesh | None,
    dims: dict[str, int],
    no_grad: bool,
    links: tuple[str, ...],
    form: str,
    output: str | None,
) -> None:
    """Types one function under the policies "jax" and "partial", and shows what differs.

    The backward pass is in it, unless --no-grad is given or the function takes gradients itself. TARGET and TYPE are as
    for `shtypes check`; a type means, under each policy, what its text means there.
    """
    model = read_links(links)
    one = program(target, types, mesh=mesh, dims=dims, maker=arguments)
    with tracing(target):
        from shtypes.analysis.compare.compare import compare

        with one.scope():
            found = compare(one.function, *one.args, grad=not no_grad, model=model)
    emit(found, form, output)
