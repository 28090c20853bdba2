"""The option that predicts times: ``--link h100-nvlink --link dp=infiniband-ndr``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from shtypes.errors import ShardingTypeError
from shtypes.resharding.costs import LINKS, CostModel, cost_model

link_option = click.option(
    "--link",
    "links",
    multiple=True,
    metavar="[AXIS=]LINK",
    help=f"Predict times: what connects the devices, along an axis or by default. One of {', '.join(LINKS)}.",
)


def read_links(given: Sequence[str]) -> CostModel | None:
    """A cost model from the options; None if there are none."""
    if not given:
        return None
    axes = dict(part.split("=", 1) for part in given if "=" in part)
    default = [part for part in given if "=" not in part]
    if len(default) > 1:
        raise click.BadParameter(
            f"one link is the default, not {' and '.join(default)}: write axis=link for the others"
        )
    try:
        return cost_model(default[0] if default else next(iter(axes.values())), **axes)
    except ShardingTypeError as error:
        raise click.BadParameter(str(error)) from None
