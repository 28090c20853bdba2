"""The configuration of a project, ``[tool.shtypes]`` of its ``pyproject.toml``. Imports no JAX, to load quickly."""

from __future__ import annotations

import functools
import hashlib
import tomllib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from shtypes.errors import ShardingTypeError

#: The entries of the table that only `shtypes check` reads.
ONLY_FOR_CHECK: Final = ("golden", "grad", "lift", "targets")


class Config(NamedTuple):
    """``[tool.shtypes]`` of a project."""

    policy: str = "partial"
    #: mesh axes and sizes, major to minor; empty if not configured
    mesh: Mapping[str, int] = {}  # never changed
    dims: Mapping[str, int] = {}  # sizes of dim names


def read_config(config_file: str | None) -> Config:
    """The configuration in the folder of mypy's ``config_file``, or else the current folder."""
    places = [Path(config_file)] if config_file else []
    places = [p if p.name == "pyproject.toml" else p.parent / "pyproject.toml" for p in places]
    for place in (*places, Path("pyproject.toml")):
        if place.is_file():
            return checked(tomllib.loads(place.read_text(encoding="utf-8")).get("tool", {}).get("shtypes", {}))
    return Config()


def checked(entries: dict[str, Any]) -> Config:
    """The checked configuration in the entries of ``[tool.shtypes]``."""
    unknown = sorted(set(entries) - {*Config._fields, *ONLY_FOR_CHECK})
    if unknown:
        hints = [f"`{name}`" for name in Config._fields]
        raise ShardingTypeError(f"`[tool.shtypes]` has no entry `{unknown[0]}`", hints=hints)
    config = Config(**{name: value for name, value in entries.items() if name in Config._fields})
    if isinstance(entries.get("mesh"), str):  # needs the types
        read_sizes = import_module("shtypes.types.notation.dim_names").read_sizes
        config = config._replace(mesh=read_sizes(entries["mesh"]))
    if config.policy not in ("partial", "jax"):
        raise ShardingTypeError(f"`[tool.shtypes]` has a policy `{config.policy}`", hints=['"partial"', '"jax"'])
    for entry, least in (("mesh", 1), ("dims", 0)):
        sizes = getattr(config, entry)
        if not isinstance(sizes, dict) or not all(type(n) is int and n >= least for n in sizes.values()):
            raise ShardingTypeError(
                f"the `{entry}` of `[tool.shtypes]` has names and their sizes, not `{sizes!r:.60}`",
                hints=[f"{entry} = {{ a = 2, b = 4 }}"],
            )
    return config


@functools.cache
def hash_of_runtime() -> str:
    """A hash of the runtime's files, for mypy's cache."""
    digest = hashlib.sha256(version("jax").encode())
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        about = file.stat()
        digest.update(f"{file} {about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()
