"""Reads `layouts.toml`: a name to a mesh, the axes of dim names, and the axes of masters."""

from __future__ import annotations

import contextlib
import math
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

import shtypes as sh

FILE = Path(__file__).with_name("layouts.toml")

#: The dims that a strategy may shard, and those that masters may; the others are of no use where they are.
DIMS = ("batch", "seq", "stream", "keys", "heads", "key_heads", "inner", "vocab", "expert", "layer")
MASTERS = ("hidden", "features", "head", "heads", "key_heads", "inner", "vocab", "expert")
PLAIN = ("zero", "schedule", "microbatches")


@dataclass(frozen=True)
class Layout:
    """Where the values of a model lie.

    Attributes:
        name: Its name in the file.
        mesh: The size of each mesh axis, major to minor.
        dims: The axes of each dim, of values and of weights where they are used.
        masters: The axes of the dims of masters that differ.
        zero: The stage of ZeRO: 0 is none; from 1 on the state of the optimizer is sharded as ``masters`` says, from 2
            on gradients, at 3 weights.
        schedule: Of a pipeline, the order of its microbatches; else empty.
        microbatches: How many a pipeline has.
    """

    name: str
    mesh: dict[str, int]
    dims: dict[str, tuple[str, ...]]
    masters: dict[str, tuple[str, ...]] = field(default_factory=dict)
    zero: int = 0
    schedule: str = ""
    microbatches: int = 0

    def __post_init__(self) -> None:
        """Refuses names that say nothing, and a pipeline or a stage of ZeRO of which half is said."""
        here = f"layout `{self.name}`:"
        if wrong := {axis: size for axis, size in self.mesh.items() if type(size) is not int or size < 1}:
            raise sh.ShardingTypeError(f"{here} the sizes of mesh axes are numbers from 1 on, not {wrong}")
        for what, table, dims in (("dim", self.dims, DIMS), ("dim of masters", self.masters, MASTERS)):
            _known(f"{here} the {what}", table, dims)
            for dim, axes in table.items():
                _known(f"{here} the mesh axis of `{dim}`,", axes, self.mesh)
        if self.zero not in range(4) or bool(self.zero) != bool(self.masters):
            said = ", ".join(self.masters) or "nothing"
            raise sh.ShardingTypeError(
                f"{here} `zero` is {self.zero}, and `masters` shards {said}",
                why="stages 1, 2 and 3 of ZeRO shard what `masters` says; without a stage it says nothing",
            )
        pipeline = {"layer": bool(self.dims.get("layer")), "schedule": bool(self.schedule)}
        if len({*pipeline.values(), self.microbatches > 0}) > 1:
            raise sh.ShardingTypeError(
                f"{here} the schedule is `{self.schedule}`, of {self.microbatches} microbatches, and `layer` is "
                f"{'' if pipeline['layer'] else 'not '}sharded",
                why="a pipeline has all three, and what is none has none of them",
            )

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        return math.prod(self.mesh.values())

    @property
    def stages(self) -> int:
        """How many stages a pipeline has: one for each device along the axes of ``layer``."""
        return math.prod(self.mesh[axis] for axis in self.dims.get("layer", ()))

    @contextlib.contextmanager
    def use(self, abstract: bool = False) -> Iterator[Any]:
        """The mesh and the axes of dim names, in context; an abstract mesh needs no devices."""
        sizes = self.mesh or {"one": 1}
        mesh: Any = sh.abstract_mesh(sizes) if abstract else sh.make_mesh(sizes, devices=jax.devices()[: self.devices])
        with sh.use_mesh(mesh), sh.dim_axes(self.dims):
            yield mesh

    def as_masters(self) -> Any:
        """A scope in which dims of weights have the axes of the state of the optimizer."""
        return sh.dim_axes(self.masters)

    def as_weights(self) -> Any:
        """A scope in which dims of weights have the axes of the weights that are trained."""
        return sh.dim_axes(self.masters if self.zero > 1 else {})

    def for_tokens(self) -> Any:
        """A scope for tokens one at a time: their position is whole, and keys that are kept lie as positions did."""
        return sh.dim_axes({"seq": (), "stream": (), "keys": self.dims.get("seq", ())})


def _axes(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _known(what: str, found: Iterable[str], known: Iterable[str]) -> None:
    """Refuses a name that is not known."""
    for name in found:
        if name not in known:
            raise sh.ShardingTypeError(f"{what} `{name}` is not one of {', '.join(known) or 'none'}")


def read(file: Path = FILE) -> dict[str, Layout]:
    """All layouts of a file, by name.

    Raises:
        ShardingTypeError: a layout has a name that says nothing, or half of what it needs.
    """
    text: dict[str, Any] = tomllib.loads(file.read_text())
    _known("the table", text, ("strategies", "layouts"))
    found, strategies = {}, text.get("strategies", {})
    for name, row in text.get("layouts", {}).items():
        dims: dict[str, tuple[str, ...]] = {}
        _known(f"layout `{name}`: the key", row, ("mesh", "uses", "masters", *PLAIN))
        _known(f"layout `{name}`: the strategy", row.get("uses", ()), strategies)
        for strategy in row.get("uses", ()):
            for dim, axes in strategies[strategy].items():
                dims[dim] = dims.get(dim, ()) + _axes(axes)
        masters = {dim: _axes(axes) for dim, axes in row.get("masters", {}).items()}
        rest = {key: row[key] for key in PLAIN if key in row}
        found[name] = Layout(name, row.get("mesh", {}), dims, masters, **rest)
    return found


def layout(name: str) -> Layout:
    """The layout of that name."""
    return read()[name]
