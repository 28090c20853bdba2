"""Converts strings, types and ``jax.P`` to types (``jax.P`` by its attributes: JAX is not imported)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from shtypes.errors import ShardingTypeError
from shtypes.types.mesh import Mesh, NamedAxes
from shtypes.types.notation.printing import show_dim
from shtypes.types.notation.reading import ValueInfo, common_mesh, describe
from shtypes.types.shtype import ShType

parse = ShType.parse


def target_text(t: ShType) -> str:
    """A type as the target of a reshard: without the dtype, which a reshard keeps."""
    return str(t).removeprefix(t.dtype_name)


@runtime_checkable
class Spec(Protocol):
    """The interface of a ``jax.P``."""

    @property
    def partitions(self) -> tuple[Any, ...]:
        """None, an axis or a tuple of axes for each dim."""

    @property
    def unreduced(self) -> Iterable[str]:
        """The axes with pending sums."""

    @property
    def reduced(self) -> Iterable[str]:
        """The replicated axes whose gradients are pending sums."""


#: A string, a type or a ``jax.P``.
Target: TypeAlias = "str | ShType | Spec"


def from_spec(
    spec: Spec,
    mesh: Mesh | NamedAxes | None = None,
    *,
    like: ShType | None = None,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    policy: str | None = None,
) -> ShType:
    """The type of a ``jax.P``: that of the text with the same axes; missing dims are unsharded.

    Its ``unreduced`` and ``reduced`` axes get these states. The other arguments are as for `ShType.parse`; ``like``, or
    ``shape`` and ``dtype``, are required.
    """
    value = describe(like, shape, dtype)
    if value.dims is None or value.dtype is None:
        raise ShardingTypeError(
            "a `jax.P` does not make a type by itself",
            where=str(spec),
            why="it says where the axes go, but neither the shape nor the dtype",
            hints=["pass like= (a type), or shape= and dtype="],
        )
    kind = getattr(getattr(spec, "unreduced_kind", None), "name", "sum")
    if kind != "sum":
        raise ShardingTypeError(f"an unreduced array is a pending sum, not a pending {kind}", where=str(spec))
    rest = len(value.dims) - len(spec.partitions)
    if rest < 0:
        what = f"the `jax.P` has {len(spec.partitions)} entries, and {value.what} has {len(value.dims)} dims"
        raise ShardingTypeError(what, where=str(spec))
    dims = [show_dim("_", _entry_axes(entry, spec)) for entry in spec.partitions] + ["_"] * rest
    states = [f"{s}:({','.join(sorted(axes))})" for s, axes in (("U", spec.unreduced), ("R", spec.reduced)) if axes]
    text = f"[{', '.join(dims)}]" + (f"{{{', '.join(states)}}}" if states else "")
    return ShType.parse(text, mesh, like=like, shape=shape, dtype=dtype, policy=policy)


def _entry_axes(entry: object, spec: Spec) -> tuple[str, ...]:
    axes = (entry,) if isinstance(entry, str) else () if entry is None else entry
    if isinstance(axes, tuple) and all(isinstance(a, str) for a in axes):
        return axes
    hints = ["name the axes of the dim, or None for none"]
    why = "every type says where each mesh axis is; none is left to the compiler"
    if "unconstrained" not in type(entry).__name__.lower():
        why = "an entry is None, an axis name or a tuple of axis names"
    raise ShardingTypeError(f"a `jax.P` entry cannot be `{entry!r}`", where=str(spec), why=why, hints=hints)


def as_type(
    target: Target,
    mesh: Mesh | NamedAxes | None = None,
    *,
    like: ShType | None = None,
    dims: Mapping[str, int] | None = None,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    policy: str | None = None,
) -> ShType:
    """The type that a string, a type or a ``jax.P`` names; arguments as for `ShType.parse`."""
    if isinstance(target, str):
        return ShType.parse(target, mesh, like=like, dims=dims, shape=shape, dtype=dtype, policy=policy)
    if isinstance(target, ShType):
        return _fitting(target, common_mesh(mesh, like), describe(like, shape, dtype))
    if isinstance(target, Spec):
        return from_spec(target, mesh, like=like, shape=shape, dtype=dtype, policy=policy)
    raise ShardingTypeError(
        f"`{target!r}` does not name a type",
        hints=['a text: "f32[8@x,4]{U:y}"', "an sh.ShType", 'a jax.P: jax.P("x", None, unreduced={"y"})'],
    )


def _fitting(t: ShType, mesh: Mesh | None, value: ValueInfo) -> ShType:
    if mesh not in (None, t.mesh):
        raise ShardingTypeError(f"the type {t} is over the mesh {t.mesh}, not over {mesh}")
    if value.dims is not None and value.shape != t.shape:
        raise ShardingTypeError(f"the type {t} has shape {t.shape}, and {value.what} has {value.shape}")
    if value.dtype not in (None, t.dtype_name):
        raise ShardingTypeError(
            f"the type {t} has dtype `{t.dtype_name}`, and {value.what} has dtype `{value.dtype}`",
            why="giving a value a type never casts it",
        )
    return t
