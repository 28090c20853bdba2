"""Meshes and sizes, as they are written on the command line and in configuration."""

from __future__ import annotations

import click

from shtypes.errors import ShardingTypeError
from shtypes.types.mesh import Mesh
from shtypes.types.notation.dim_sizes import read_sizes, sorted_sizes


def read_dims(text: str) -> dict[str, int]:
    """Dim names and sizes: ``seq=4,batch=8``."""
    try:
        return dict(sorted_sizes(read_sizes(text)))
    except ShardingTypeError as error:
        raise click.BadParameter(str(error)) from None


def read_mesh(text: str) -> Mesh:
    """A mesh, major to minor: ``dp=2,tp=4``."""
    try:
        return Mesh(read_sizes(text))
    except ShardingTypeError as error:
        raise click.BadParameter(str(error)) from None
