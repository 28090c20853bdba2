"""Typed values from the parts of several processes."""

from __future__ import annotations

import functools
import itertools
import zlib
from typing import Any, Final

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh as JaxMesh

from shtypes._compat import no_trace_is_running
from shtypes.caches import CACHE_SIZE
from shtypes.context.settings import current_settings
from shtypes.context.user_line import public
from shtypes.core.array import Array, wrap
from shtypes.core.device_put import type_of
from shtypes.core.host import canonical, check_width, converted, host_array, refuse_hidden
from shtypes.core.jax_type import as_jax_type
from shtypes.core.meshes import concrete_mesh, to_mesh
from shtypes.core.physical import physical_sharding
from shtypes.errors import ShardingTypeError, quoted
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh, current_mesh
from shtypes.types.notation.dim_names import current_dims, in_scope
from shtypes.types.notation.syntax import expand_ellipsis

#: The start and stop of each dim of a block of an array.
Block = tuple[tuple[int, int], ...]
Slices = tuple[slice, ...]
#: In errors, what a value with pending sums or varying values cannot.
_USE: Final = "be made from the parts of processes"


@public
def addressable_slices(type: Any, *, mesh: Any = None) -> Slices:
    """The part of a value on devices of this process, to be loaded for `array_from_process`.

    Args:
        type: The value's type, with all sizes: a `ShType`, or a string such as ``"f32[batch=64@dp, seq=128]"``.
        mesh: The mesh of a string; by default the one in context.

    Returns:
        A slice of each dim, with start and stop. In a single process they cover each dim.

    Raises:
        ShardingTypeError: the type is unreduced or varying; the blocks on this process's devices are not a slice of
            each dim; no device of the mesh belongs to this process.

    Communicates: nothing.

    Examples:
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.make_mesh({"dp": 4})):
        ...     sh.addressable_slices("f32[batch=64@dp, seq=128]")
        (slice(0, 64, None), slice(0, 128, None))
    """
    t = type_of(type, mesh)
    refuse_hidden(t, _USE)
    return _slices(t)


@public
def array_from_process(x: Any, type: Any, *, mesh: Any = None, check: bool = True) -> Array:
    """A typed value from the parts of all processes.

    All processes call it with the same type. `addressable_slices` returns the part of a process. In a single process
    the part is the full value, so that a program is the same for one process and many.

    Args:
        x (...): The part of this process: a host array, which is copied.
        type: The type of the global value, as for `array`. Missing sizes are inferred from the part.
        mesh: The mesh of a string; by default the one in context.
        check: Whether to compare the parts of processes that hold the same part, as they do if an axis between them
            does not shard the value. Otherwise nothing is compared.

    Returns:
        (...): The global value with that type.

    Raises:
        ShardingTypeError: the part does not have the shape that the type implies for this process; processes that hold
            the same part pass different ones; the type is unreduced or varying.

    Communicates: nothing; four bytes of each process if processes hold the same part, unless ``check`` is off.
    Source: `jax.make_array_from_process_local_data`.

    Examples:
        >>> import numpy as np
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.make_mesh({"dp": 4})):
        ...     sh.array_from_process(np.zeros((8, 3)), "f32[batch@dp, 3]").type
        f32[batch@dp, 3]
    """
    if isinstance(x, Array):
        raise ShardingTypeError(f"the value has a type already, {x.type}", hints=["sh.reshard(x, type)"])
    if not (no_trace_is_running() and getattr(x, "is_fully_addressable", True)):
        traced = not no_trace_is_running()
        raise ShardingTypeError(
            "`array_from_process` makes a value of what is on the host"
            + (", and here a program is traced" if traced else ", and this is on devices of several processes"),
            hints=["make it outside, and give it as an argument"] if traced else ["sh.from_jax(x, type)"],
        )
    local = host_array(x)
    t = as_jax_type(_global_type(local, type, mesh))
    local = converted(local, dtypes.from_numpy(local.dtype), t)
    check_width(t)
    if current_settings().only_types:
        return wrap(t, None)
    process_slices = _slices(t)
    shape = tuple(s.stop - s.start for s in process_slices)
    if local.shape != shape:
        slices = ", ".join(f"{s.start}:{s.stop}" for s in process_slices)
        raise ShardingTypeError(
            f"process {jax.process_index()} of {jax.process_count()} holds [{slices}] of {t}, of shape {shape}, "
            f"and gives an array of shape {local.shape}",
            why="each process gives the part that its own devices hold",
            hints=["x[sh.addressable_slices(type)]", "sh.array(x, type) where each process has the whole value"],
        )
    if check:
        _compare(local, t)
    return wrap(
        t, jax.make_array_from_callback(t.shape, physical_sharding(t), functools.partial(_part, local, process_slices))
    )


def _part(local: Any, process_slices: Slices, index: Slices) -> Any:
    """One device's block, from its process's part."""
    return local[
        tuple(
            slice((block.start or 0) - part.start, (part.stop if block.stop is None else block.stop) - part.start)
            for block, part in zip(index, process_slices, strict=True)
        )
    ]


# the type of the global value


def _global_type(local: Any, type: Any, mesh: Any) -> ShType:
    """The type of the global value for a part of this shape; missing sizes are inferred from the part."""
    if isinstance(type, ShType):
        t: ShType = type
    else:
        says_dtype = isinstance(type, str) and type.lstrip()[:1] not in ("[", "{", "")
        dtype = None if says_dtype else dtypes.from_numpy(canonical(local.dtype))
        mesh = current_mesh() if mesh is None else to_mesh(mesh)
        t = type_of(type, mesh, shape=_global_shape(type, mesh, local.shape, dtype), dtype=dtype)
    refuse_hidden(t, _USE)
    return t


def _global_shape(type: Any, mesh: Mesh, shape: tuple[int, ...], dtype: str | None) -> list[int]:
    """The sizes that a type says, in it or by dim names; others are those of the part times the number of parts."""
    written: list[int | None] = [None] * len(shape)
    if isinstance(type, str):
        _, syntax = in_scope(type, mesh)
        dims = expand_ellipsis(syntax.dims, len(shape)) if syntax.dims is not None else None
        named = dict(current_dims())
        written = [d.size if d.size is not None else named.get(d.head) for d in dims] if dims else written
    # any axes divide the size of the mesh: a type of that size tells how many parts there are
    t = type_of(type, mesh, shape=[mesh.size if size is None else size for size in written], dtype=dtype)
    refuse_hidden(t, _USE)
    parts = [1] * len(shape)
    if not current_settings().only_types:
        parts = [d.size // max(s.stop - s.start, 1) for d, s in zip(t.dims, _slices(t), strict=True)]
    inferred = [n * count for n, count in zip(shape, parts, strict=True)]
    return [n if size is None else size for n, size in zip(inferred, written, strict=True)]


# parts of processes


def _slices(t: ShType) -> Slices:
    """This process's part of a value, as a slice of each dim; an error if its blocks do not form one."""
    process = jax.process_index()
    blocks = _blocks(t, concrete_mesh(t.mesh)).get(process)
    if blocks is None:
        raise ShardingTypeError(
            f"no device of the mesh ({t.mesh}) is of process {process}",
            hints=["sh.make_mesh over all of jax.devices()"],
        )
    slices, count = [], 1
    for i, dim in enumerate(t.dims):
        intervals = sorted({block[i] for block in blocks})
        if any(before[1] != after[0] for before, after in itertools.pairwise(intervals)):
            parts = ", ".join(f"{start}:{stop}" for start, stop in intervals)
            raise ShardingTypeError(
                f"what process {process} holds of dim {i} of {t} is no slice: {parts}",
                why="its devices are not neighbours along " + quoted(dim.axes),
                hints=["sh.make_mesh orders devices so that those of a process are neighbours where it can"],
            )
        slices.append(slice(intervals[0][0], intervals[-1][1]))
        count *= len(intervals)
    if count != len(blocks):
        raise ShardingTypeError(
            f"what process {process} holds of {t} is no slice of each dim: of {count} blocks it has {len(blocks)}",
            why="its devices are no rectangle of the mesh",
            hints=["sh.make_mesh orders devices so that those of a process are neighbours where it can"],
        )
    return tuple(slices)


@functools.lru_cache(maxsize=CACHE_SIZE)
def _blocks(t: ShType, mesh: JaxMesh) -> dict[int, frozenset[Block]]:
    """The blocks of a value on the devices of each process."""
    by_process: dict[int, set[Block]] = {}
    indices: dict[Any, Any] = physical_sharding(t, mesh).devices_indices_map(t.shape)  # type: ignore[assignment]
    for device, index in indices.items():
        block = tuple(i.indices(n)[:2] for i, n in zip(index, t.shape, strict=True))
        by_process.setdefault(device.process_index, set()).add(block)
    return {process: frozenset(blocks) for process, blocks in by_process.items()}


def _compare(local: Any, t: ShType) -> None:
    """Checks that processes that hold the same blocks pass the same data."""
    blocks = _blocks(t, concrete_mesh(t.mesh))
    if len(set(blocks.values())) == len(blocks):
        return
    process = jax.process_index()
    sums = multihost_utils.process_allgather(np.uint32(zlib.crc32(np.ascontiguousarray(local).tobytes())))
    others = [p for p, parts in sorted(blocks.items()) if parts == blocks[process] and sums[p] != sums[process]]
    if others:
        raise ShardingTypeError(
            f"processes {process} and {others[0]} hold the same part of {t}, and give different ones",
            why="no axis between their devices shards the value, so that it would not be one value",
            hints=[
                "load the slices of sh.addressable_slices(type), which are equal on both",
                "the same seed in all processes",
            ],
        )
