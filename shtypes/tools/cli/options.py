"""Arguments and options that commands share: TARGET, TYPES, mesh, policy, dim names; and their completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from shtypes.errors import ShardingTypeError
from shtypes.resharding.costs import LINKS, CostModel, as_cost_model, cost_model
from shtypes.tools.cli.config import config, read_dims, read_mesh
from shtypes.tools.cli.target import functions_of
from shtypes.types.policy import REPLICATED_STATE

F = TypeVar("F", bound=Callable[..., Any])


mesh_option = click.option(
    "--mesh",
    callback=lambda ctx, param, text: text and read_mesh(text),
    metavar="AXIS=SIZE,...",
    help="The mesh, major to minor: dp=2,tp=4. Needs no devices.",
)
policy_option = click.option(
    "--policy", "policy_name", type=click.Choice(list(REPLICATED_STATE)), help="What an unmentioned axis means."
)
dims_option = click.option(
    "--dims",
    callback=lambda ctx, param, text: read_dims(text),
    default="",
    metavar="DIM=SIZE,...",
    help="Sizes of dim names: seq=4,batch=8.",
)
arguments_option = click.option(
    "--arguments",
    "maker",
    metavar="FUNCTION",
    help="A function beside the target that returns the arguments: types, texts of types, or trees of these.",
)
grad_option = click.option("--grad", is_flag=True, help="Also the backward pass, to every argument with a gradient.")
link_option = click.option(
    "--link",
    "--links",
    "links",
    multiple=True,
    metavar="[AXIS=]LINK",
    help=f"Predict times: what connects the devices, along an axis or by default. One of {', '.join(LINKS)}; "
    "or a .toml file of links.",
)
lift_option = click.option("--lift", is_flag=True, help="The target is a plain JAX function: type it by `sh.lift`.")


def read_links(links: Sequence[str]) -> CostModel | None:
    """The cost model of the ``--link`` options; None without any."""
    if not links:
        return None
    axes = dict(part.split("=", 1) for part in links if "=" in part)
    default = [part for part in links if "=" not in part]
    if len(default) > 1:
        raise click.BadParameter(
            f"one link is the default, not {' and '.join(default)}: write axis=link for the others"
        )
    try:
        base = as_cost_model(default[0] if default else next(iter(axes.values())), "--link takes")
        return CostModel(base.default, {**base.axes, **cost_model(base.default, **axes).axes})
    except ShardingTypeError as error:
        raise click.BadParameter(str(error)) from None


def target_options(f: F, *, required: bool = True) -> F:
    """Adds TARGET and TYPES, ``--arguments``, ``--mesh``, ``--policy``, ``--dims``, ``--grad`` and ``--lift``."""
    return target_arguments(mesh_option(policy_option(dims_option(grad_option(lift_option(f))))), required=required)


def target_arguments(f: F, *, required: bool = True) -> F:
    """Adds TARGET, optional unless ``required``, TYPES and ``--arguments``."""
    types = click.argument("types", nargs=-1, metavar="[TYPE]...", shell_complete=complete_split)
    command = click.argument("target", metavar="TARGET", required=required, shell_complete=complete)(types(f))
    return arguments_option(command)


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Completes a target: a file, and after a colon a function of the file, which is parsed and not run."""
    place, colon, name = incomplete.rpartition(":")
    if not colon:
        return [CompletionItem(incomplete, type="file"), *(CompletionItem(n) for n in _configured(incomplete))]
    return [CompletionItem(f"{place}:{f}") for f in _functions(place) if f.startswith(name)]


def complete_split(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Completes the function where the shell splits words at colons, as bash does."""
    before = (ctx.params.get("target"), *(ctx.params.get("types") or ()), *([":"] if incomplete == ":" else []))
    if len(before) != 2 or before[1] != ":" or not before[0]:
        return []
    return [CompletionItem(f) for f in _functions(before[0]) if incomplete == ":" or f.startswith(incomplete)]


def _functions(place: str) -> list[str]:
    """The functions of a file or module, which is parsed and not run."""
    return functions_of(Path(place if place.endswith(".py") else f"{place.replace('.', '/')}.py"))


def _configured(incomplete: str) -> list[str]:
    try:
        return [t.name for t in config().targets if t.name.startswith(incomplete)]
    except click.ClickException:
        return []
