"""Where a typed value lies, for those who ask an array: its sharding, and what its carrier says of its parts."""

from __future__ import annotations

import sys
from typing import Any, Final, NoReturn

import jax
from jax.sharding import NamedSharding

from shtypes.caches import Bounded
from shtypes.context.user_line import placed
from shtypes.core.carrier import carrier_spec
from shtypes.core.foreign import NotAnArrayError, plain_hints
from shtypes.core.host import refuse_hidden, without_data
from shtypes.core.meshes import AnyMesh, concrete_mesh, without_devices
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType

#: What the carrier of a whole value answers for it. JAX is refused: it asks what it takes for a plain array.
OF_CARRIERS: Final = (
    *("addressable_data", "addressable_shards", "committed", "devices", "global_shards"),
    "on_device_size_in_bytes",
)


#: What orbax asks for, in the words of a refusal.
IN_CHECKPOINTS: Final = "be in a checkpoint"


def asking() -> str:
    """The package of the code that reads a property: of the caller's caller."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).partition(".")[0]


def is_jax(package: str) -> bool:
    """Whether a package takes what has a sharding for a plain array: JAX, and our own code where it looks for one."""
    return package in ("jax", "shtypes")


def sharding_of(t: ShType, what: str = "have a `sharding`", mesh: AnyMesh | None = None) -> NamedSharding:
    """How values of a type lie on the devices.

    Args:
        t: The type: sharded, reduced or invariant on each axis.
        what: What needs it, for the refusal.
        mesh: The devices, where a value has some; by default those of the context, or the last ones seen for the mesh.

    Returns:
        A sharding on devices; on an abstract mesh where none are known.

    Raises:
        ShardingTypeError: the type is unreduced or varying: no sharding says what the devices hold.
    """
    try:
        refuse_hidden(t, what)
    except ShardingTypeError as error:
        raise placed(error, "sharding") from None
    try:
        found: Any = mesh or concrete_mesh(t.mesh)
    except ShardingTypeError:
        found = without_devices(t.mesh)
    return NamedSharding(found, carrier_spec(t))


def sharding_of_value(x: Any, what: str = "have a `sharding`") -> NamedSharding:
    """How a typed value lies on the devices, on those that it is on; see `sharding_of`."""
    carrier = None if x.data is None else x.data.sharding
    return sharding_of(x.type, what, carrier.mesh if isinstance(carrier, NamedSharding) else None)


def attribute(name: str) -> property:
    """What the carrier of a whole value answers for it."""

    def answer(x: Any) -> Any:
        package = asking()
        if is_jax(package):
            refuse_attribute(x, name)
        try:
            if x.data is None:
                raise without_data(x.type)
            refuse_hidden(x.type, IN_CHECKPOINTS if package == "orbax" else f"have `{name}`")
        except ShardingTypeError as error:
            raise placed(error, name) from None
        return getattr(x.data, name)

    return property(answer)


def refused_attribute(name: str) -> property:
    """An attribute of arrays that a typed value does not have."""
    return property(lambda x: refuse_attribute(x, name))


def refuse_attribute(x: Any, name: str) -> NoReturn:
    """Says that a typed value does not have an attribute of arrays."""
    t = jax.typeof(x)
    what, hints = _refusals.get((t.exact, name)) or _refusals.put((t.exact, name), _refusal(t, name))
    raise NotAnArrayError(what, why="its type says how it lies on the devices", hints=hints)


#: What was said of types: JAX asks each argument of a jitted function for what it has not, more than once.
_refusals: Final[Bounded[tuple[str, list[str]]]] = Bounded()


def _refusal(t: ShType, name: str) -> tuple[str, list[str]]:
    hints = [h.replace(" gives a plain jax.Array", f".{name}") for h in plain_hints(t)]
    return f"a typed value, {t}, has no `{name}`", ["x.type", *hints]


__all__ = [
    "IN_CHECKPOINTS",
    "OF_CARRIERS",
    "asking",
    "attribute",
    "is_jax",
    "refuse_attribute",
    "refused_attribute",
    "sharding_of",
    "sharding_of_value",
]
