"""Meshes and sizes, as they are written on the command line and in configuration."""

from __future__ import annotations

import re
from typing import Final

import click

from shtypes.errors import ShardingTypeError, short
from shtypes.types.mesh import Mesh
from shtypes.types.notation.dim_sizes import sorted_sizes

#: A size: more digits than that are of no array.
_SIZE: Final = re.compile(r"[0-9]{1,18}")


def read_sizes(text: str) -> dict[str, int]:
    """Names and sizes: ``dp=2,tp=4``."""
    found: dict[str, int] = {}
    for part in text.replace(",", " ").split():
        name, equals, size = part.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"`{short(part)}` is not like `{(name and short(name)) or 'dp'}=2`")
        if not _SIZE.fullmatch(size):
            raise click.BadParameter(
                f"the size of `{short(name)}` is a whole number, as in `{short(name)}=2`, not `{short(size)}`"
            )
        if name in found:
            raise click.BadParameter(f"`{short(name)}` is given twice")
        found[name] = int(size)
    return found


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
