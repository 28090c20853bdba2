"""``[tool.shtypes]`` in ``pyproject.toml``: the targets that a repository checks, with their meshes and policies."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from shtypes.context.settings import check_policy
from shtypes.editor import config as plugin
from shtypes.errors import ShardingTypeError
from shtypes.types.mesh import Mesh
from shtypes.types.notation.dim_names import read_sizes, sorted_sizes

#: The keys of the table and of its targets.
KEYS: Final = (*plugin.Config._fields, *plugin.ONLY_FOR_CHECK)
TARGET_KEYS: Final = ("target", "name", "types", "arguments", "mesh", "policy", "dims", "grad", "lift")
#: The default file of a repository's pinned communication.
GOLDEN: Final = "communication.json"


@dataclass(frozen=True)
class TargetConfig:
    """One target."""

    name: str  # the name in reports; by default the target
    target: str  # ``module:function`` or ``path/to/file.py:function``
    types: tuple[str, ...] = ()  # the types of its arguments; by default from its annotations
    arguments: str | None = None  # a function in its module that returns its arguments, instead of types
    mesh: Mesh | None = None
    policy: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)  # the sizes of dim names
    grad: bool = False  # whether the backward pass is checked too
    lift: bool = False  # whether it is a plain JAX function, to be typed by `lift`


@dataclass(frozen=True)
class Config:
    """The configuration of a repository."""

    root: Path  # the folder of its ``pyproject.toml``; without one, the current folder
    mesh: Mesh | None = None  # the default mesh of targets
    policy: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)  # the sizes of dim names for all targets
    golden: str = GOLDEN  # the file of pinned communication
    targets: tuple[TargetConfig, ...] = ()

    def named(self, name: str) -> TargetConfig | None:
        """The target with a name or target string, or None."""
        return next((t for t in self.targets if name in (t.name, t.target)), None)


def config(start: Path | None = None) -> Config:
    """The nearest ``[tool.shtypes]``, here or in a parent folder; an empty one if there is none."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            try:
                table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("shtypes")
            except (OSError, ValueError) as error:  # unreadable, not text, or not TOML
                raise click.UsageError(f"`{path}` cannot be read: {error}") from None
            if table is not None:
                return _config(folder, table)
    return Config(folder)


def _config(root: Path, table: Any) -> Config:
    _check_keys(table, KEYS, "[tool.shtypes]")
    common = {key: table[key] for key in ("mesh", "policy", "dims", "grad", "lift") if key in table}
    targets = table.get("targets", [])
    if not isinstance(targets, list):
        raise click.UsageError("`targets` in [tool.shtypes] is a list of targets")
    read = tuple(_target(common, {"target": t} if isinstance(t, str) else t) for t in targets)
    repeated = [t.name for i, t in enumerate(read) if t.name in {u.name for u in read[:i]}]
    if repeated:
        raise click.UsageError(f"two targets in [tool.shtypes] are called `{repeated[0]}`: give one a `name`")
    shared = _target(common, {"target": ""})
    golden = table.get("golden", GOLDEN)
    if not isinstance(golden, str):
        raise click.UsageError(f"`golden` in [tool.shtypes] is the name of a file, not {golden!r}")
    return Config(root, shared.mesh, shared.policy, shared.dims, golden, read)


def _target(common: Mapping[str, Any], entry: Any) -> TargetConfig:
    _check_keys(entry, TARGET_KEYS, "a target in [tool.shtypes]")
    if not isinstance(entry.get("target"), str):
        raise click.UsageError('a target in [tool.shtypes] needs `target = "module:function"`')
    name = str(entry.get("name", entry["target"]))
    where = f"`{name}` in [tool.shtypes]" if name else "[tool.shtypes]"  # the keys that all targets share
    if not all(isinstance(table.get("dims", {}), Mapping) for table in (common, entry)):
        raise click.UsageError(f"`dims` of {where} is a table, such as {{ batch = 8 }}")
    merged = {**common, **entry, "dims": {**common.get("dims", {}), **entry.get("dims", {})}}
    types, flags = merged.get("types", []), [merged.get(key, False) for key in ("grad", "lift")]
    if not isinstance(types, list) or not all(isinstance(t, str) for t in types):
        raise click.UsageError(f"`types` of {where} is a list of texts")
    for key, flag in zip(("grad", "lift"), flags, strict=True):
        if not isinstance(flag, bool):
            raise click.UsageError(f"`{key}` of {where} is true or false")
    try:
        mesh = None if "mesh" not in merged else _mesh(merged["mesh"])
        policy = None if "policy" not in merged else check_policy(str(merged["policy"]))
        dims = dict(sorted_sizes(merged["dims"]))
    except ShardingTypeError as error:
        raise click.UsageError(f"{where}: {error}") from None
    maker = merged.get("arguments")
    if maker is not None and (types or not isinstance(maker, str)):
        raise click.UsageError(f"`arguments` of {where} names a function, in the place of `types`")
    return TargetConfig(name, entry["target"], tuple(types), maker, mesh, policy, dims, *flags)


def _mesh(value: Any) -> Mesh:
    return Mesh(value if isinstance(value, Mapping) else read_sizes(str(value)))


def _check_keys(table: Any, keys: tuple[str, ...], what: str) -> None:
    if not isinstance(table, Mapping):
        raise click.UsageError(f"{what} is a table, not {table!r:.60}")
    for key in table:
        if key not in keys:
            similar = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
            advice = f"; did you mean `{similar[0]}`?" if similar else f"; it has {', '.join(keys)}"
            raise click.UsageError(f"{what} has no key `{key}`{advice}")


def read_dims(text: str) -> dict[str, int]:
    """Parses dim sizes: ``seq=4,batch=8``."""
    try:
        return dict(sorted_sizes(read_sizes(text)))
    except ShardingTypeError as error:
        raise click.BadParameter(str(error)) from None


def read_mesh(text: str) -> Mesh:
    """Parses a mesh, major to minor: ``dp=2,tp=4``."""
    try:
        return Mesh(read_sizes(text))
    except ShardingTypeError as error:
        raise click.BadParameter(str(error)) from None
