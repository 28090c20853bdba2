"""Typed values in orbax checkpoints. Orbax uses the sharding of a value, and that of a target for a restored value.

The sharding that orbax gets carries the type. The array handler that orbax calls converts an array restored with such a
sharding to a typed value; others are unchanged.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

import jax
from jax.sharding import NamedSharding

from shtypes._compat.typed import type_of
from shtypes.caches import Bounded
from shtypes.context.user_line import placed
from shtypes.core.host import without_data
from shtypes.core.interop_errors import IN_CHECKPOINTS, sharding_of_value
from shtypes.core.jax_type import HiShType
from shtypes.core.meshes import concrete_mesh
from shtypes.core.physical import physical_sharding
from shtypes.errors import ShardingTypeError
from shtypes.types import dtypes

_LOCK: Final = threading.Lock()


class TypedSharding(NamedSharding):
    """The sharding of a typed value, with the type.

    The handler below extracts the type. Another handler, which would silently restore a plain array, calls
    `shard_shape`, and is refused; saving may call it.
    """

    type: HiShType
    mesh: jax.sharding.Mesh

    def plain(self) -> NamedSharding:
        """The sharding without the type."""
        return NamedSharding(self.mesh, self.spec)

    def shard_shape(self, global_shape: Any) -> Any:
        if "deserialize" not in sys._getframe(1).f_code.co_name:
            return super().shard_shape(global_shape)
        error = ShardingTypeError(
            f"this function of orbax restores plain arrays only, and {self.type} is asked of it",
            hints=[
                "StandardCheckpointer and StandardRestore of orbax.checkpoint restore typed values",
                "restore plain arrays, then sh.tree.from_jax(restored, like=target)",
            ],
        )
        raise placed(error, f"restore({self.type})")


#: Key data that orbax read, by id, with the type of the keys, since orbax then uses its sharding.
_KEY_DATA: Final[Bounded[tuple[Any, HiShType]]] = Bounded()


def note_key_data(data: Any, keys: HiShType) -> None:
    """Records key data that orbax reads, with the type of the keys, because orbax saves and restores that."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        frame = None if frame is None else frame.f_back
        if frame is not None and str(frame.f_globals.get("__name__", "")).startswith("orbax."):
            _KEY_DATA.put(id(data), (data, keys))
            return


#: The maximum number of frames between orbax and here in a call of JAX's `key_data`.
_MAX_FRAMES: Final = 12


def sharding_for_orbax(x: Any) -> TypedSharding:
    """The sharding of a typed value for orbax; refused if its mesh has no devices here."""
    noted = _KEY_DATA.get(id(x))
    sharding = sharding_of_value(x, IN_CHECKPOINTS)
    devices = sharding.mesh if isinstance(sharding.mesh, jax.sharding.Mesh) else concrete_mesh(x.type.mesh)
    typed = TypedSharding(devices, sharding.spec)
    typed.type = x.type if noted is None else noted[1]
    _prepare()
    return typed


def _prepare() -> None:
    """Replaces orbax's array handler by one for typed values, if necessary.

    Called at each use, since a program may register another handler.
    """
    handlers: Any = getattr(sys.modules.get("orbax.checkpoint"), "type_handlers", None)
    with _LOCK:
        current = handlers.get_type_handler(jax.Array) if handlers else None
        if current is None or hasattr(current, "knows_types"):
            return
        log = logging.getLogger("absl")
        log.addFilter(_drop_record)  # orbax warns about replaced handlers
        try:
            handlers.register_type_handler(jax.Array, _for_typed_values(current), override=True)
        finally:
            log.removeFilter(_drop_record)


def _drop_record(_: logging.LogRecord) -> bool:
    return False


def _for_typed_values(handler: Any) -> Any:
    """An array handler that extends ``handler`` to typed values."""
    base: Any = type(handler)

    class Handler(base):  # type: ignore[misc]  # of whatever class the handler is
        knows_types = True

        async def serialize(self, values: Sequence[Any], infos: Any, args: Any = None) -> Any:
            return await super().serialize([_array_to_save(x) for x in values], infos, args)

        async def deserialize(self, infos: Any, args: Any = None) -> Any:
            restored = await super().deserialize(infos, args and [_plain(arg) for arg in args])
            return [_typed(x, getattr(arg, "sharding", None)) for x, arg in zip(restored, args, strict=True)]

    wrapped: Any = object.__new__(Handler)
    wrapped.__dict__ = handler.__dict__
    return wrapped


def _array_to_save(x: Any) -> Any:
    """The array to save for a value."""
    if type_of(x) is None:
        return x
    sharding_of_value(x, IN_CHECKPOINTS)
    if x.data is None:
        raise placed(without_data(x.type), f"save({x.type})")
    return x.data


def _plain(arg: Any) -> Any:
    """The restore arguments for the physical array of a value."""
    sharding = getattr(arg, "sharding", None)
    return dataclasses.replace(arg, sharding=sharding.plain()) if isinstance(sharding, TypedSharding) else arg


def _typed(x: Any, sharding: Any) -> Any:
    """The restored array, as a typed value if requested."""
    if not isinstance(sharding, TypedSharding):
        return x
    t, restored = sharding.type, dtypes.from_numpy(x.dtype)
    if dtypes.is_key(restored) and not dtypes.is_key(t.dtype_name):  # orbax restores keys as keys
        x = jax.random.key_data(x)
        restored = dtypes.from_numpy(x.dtype)
    if restored != t.dtype_name or x.shape != t.shape:
        error = ShardingTypeError(
            f"{t} cannot be restored from a checkpoint that holds `{restored}` of shape {x.shape} for it",
            hints=["restore what was saved, then x.astype(dtype) or sh.reshape(x, shape)"],
        )
        raise placed(error, f"restore({t})")
    return t.raise_val(jax.device_put(x, physical_sharding(t, sharding.mesh)))
