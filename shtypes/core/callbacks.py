"""Python callbacks from typed programs, called by each device with its shards; and their errors."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes._compat import HiPrimitive, debug_effects
from shtypes._compat.derivative_rules import run_again_in_checkpoints
from shtypes.context.scope import attribute_set
from shtypes.core.array import Array
from shtypes.core.elementwise_fns import NamedFn
from shtypes.core.jax_type import HiShType
from shtypes.core.local import local
from shtypes.core.meshes import concrete_mesh, manual_mesh
from shtypes.core.physical import physical_spec, to_shard, with_key_data
from shtypes.core.shard_fn import Linear, ShardFn
from shtypes.types import REPLICATED, dtypes

T = TypeVar("T")

_lock: Final = threading.Lock()
#: Errors by the position of the device on its mesh.
_errors: Final[dict[int, BaseException]] = {}


class _Thread(threading.local):
    recording_errors = False


_thread: Final = _Thread()


def recording_errors() -> contextlib.AbstractContextManager[bool]:
    """Context manager in which traced host functions record their errors, for `raise_after`."""
    return attribute_set(_thread, "recording_errors", True)


def records_errors() -> bool:
    """Whether errors of host functions traced here are raised at the end of the program."""
    return _thread.recording_errors


def call_recorded(position: Any, run: Callable[[], T], default: Callable[[], T]) -> T:
    """Calls ``run`` on a device, or else ``default``, also after the device's first error."""
    at = int(np.asarray(position).flat[0])
    with _lock:
        if at in _errors:
            return default()
    try:
        return run()
    except Exception as error:
        with _lock:
            _errors[at] = error
        return default()


def _raise(position: Any, done: Any) -> None:
    del done
    with _lock:
        error = _errors.pop(int(position), None)
    if error is not None:
        raise error


def position_of(axes: Sequence[str]) -> Any:
    """The position of the device along the axes of its mesh, which must be manual."""
    return lax.axis_index(tuple(axes))


def raise_after(axes: Sequence[str], results: Sequence[Any]) -> None:
    """Raises the errors that a device's callbacks recorded, after the program's results are computed."""
    # XLA drops barriers, but computes the operands of a callback first
    jax.debug.callback(_raise, position_of(axes), sum(map(_depends_on, results), start=jnp.float32(0)))


def _depends_on(x: Any) -> Any:
    """A scalar that depends on an array, and so is available only after it."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return jnp.float32(0) if not x.size else jnp.real(x.ravel()[0]).astype(jnp.float32)


#: The indices of a device along the mesh axes along which its shards differ.
AxisIndices = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class HostCall:
    """A host function, and how to call it."""

    name: str  # the user's function
    #: ``run(axis_indices, shards)``.
    run: Callable[[AxisIndices, Sequence[np.ndarray[Any, Any]]], None]
    ordered: bool = False  # whether it runs after earlier ordered calls; on one device only

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


class Callback(HiPrimitive):
    """A call on each device, with an effect and no results."""

    multiple_results = True

    def abstract_eval(self, *operands: Any, call: HostCall) -> tuple[list[HiShType], set[Any]]:
        return [], {debug_effects[call.ordered]}

    def to_lojax(self, *operands: Any, call: HostCall) -> list[Array]:
        call_with(call, operands)
        return []

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, call: HostCall) -> tuple[list[Any], list[Any]]:
        return list(self.bind(*primals, call=call)), []

    def transpose(self, cts: Sequence[Any], *operands: Any, call: HostCall) -> list[Any]:
        return [None] * len(operands)  # a rule's call on a tangent does not run in the backward pass, as in JAX

    def batch(
        self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, call: HostCall
    ) -> tuple[list[Any], list[Any]]:
        for i in range(axis_data.size):  # in sequence, as in JAX
            parts = [x if d is None else _slice(x, d, i, axis_data.size) for x, d in zip(operands, dims, strict=True)]
            self.bind(*parts, call=call)
        return [], []


def _slice(x: Any, dim: int, index: int, size: int) -> Any:
    """One element of the mapped dim."""
    params = (("index", index), ("axis", dim), ("keepdims", False))
    return local(NamedFn("slice", lax.index_in_dim, params, Linear.JOINTLY), x, out=jax.typeof(x).dec_rank(size, dim))


callback_p = Callback("debug_callback")
run_again_in_checkpoints(callback_p)


def call(what: HostCall, operands: Sequence[Any]) -> None:
    """Binds a call of a host function on typed values of one mesh."""
    callback_p.bind(*operands, call=what)


def call_with(what: HostCall, operands: Sequence[Array]) -> None:
    """Calls a host function with values: eagerly, or when the program being lowered runs."""
    if any(x.data is None for x in operands):
        return  # abstract values have no data
    types = tuple(x.type for x in operands)
    if any(isinstance(x.data, jax.core.Tracer) for x in operands):
        over, options = manual_mesh(types[0].mesh)
        specs = tuple(map(physical_spec, types))

        def body(*physical_arrays: Any) -> None:
            call_on_shards(what, types, list(map(to_shard, types, physical_arrays)))

        run = jax.shard_map(body, mesh=over, in_specs=specs, out_specs=None, check_vma=False, **options)
        run(*[x.data for x in operands])
    else:
        _call_eagerly(what, types, operands)


def _call_eagerly(what: HostCall, types: tuple[HiShType, ...], operands: Sequence[Array]) -> None:
    """Calls a host function with concrete values, device by device in mesh order."""
    mesh = types[0].mesh
    devices = concrete_mesh(mesh).devices
    by_device = [{s.device: s.data for s in with_key_data(x.type, x.data).addressable_shards} for x in operands]
    for index in itertools.product(*map(range, mesh.axis_sizes)):
        shards = [shard_of.get(devices[index]) for shard_of in by_device]
        if all(s is not None for s in shards):
            _run_on_host(what, types, index, *shards)


def call_on_shards(what: HostCall, types: tuple[HiShType, ...], shards: Sequence[Any]) -> None:
    """Calls a host function on one device, within a `shard_map`."""
    arrays, axes = map(with_key_data, types, shards), types[0].mesh.axis_names
    index = tuple(lax.axis_index(axis) for axis in axes)
    run = functools.partial(_run_on_host, what, types)
    if not records_errors():
        jax.debug.callback(run, index, *arrays, ordered=what.ordered)
        return

    def run_recording(index: Sequence[Any], position: Any, *parts: Any) -> None:
        call_recorded(position, lambda: run(index, *parts), lambda: None)

    jax.debug.callback(run_recording, index, position_of(axes), *arrays, ordered=what.ordered)


@dataclass(frozen=True)
class HostFunction(ShardFn):
    """A host function that returns arrays; each device calls it."""

    name: str
    fn: Callable[..., Any]  # the JAX function of shards, for programs in which errors are not recorded
    callback: Callable[..., Sequence[Any]]  # maps arrays to arrays, both flat
    results: tuple[tuple[tuple[int, ...], str], ...]
    axes: tuple[str, ...]  # of the mesh
    vmap_method: str | None
    calls_host = True

    def __str__(self) -> str:
        return self.name

    def __call__(self, *shards: Any) -> Any:
        if not records_errors():
            return self.fn(*shards)
        structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in self.results]

        def run(position: Any, *parts: Any) -> Sequence[Any]:
            batch_shape = np.shape(position)  # the batch dims of `jax.vmap`
            return call_recorded(
                position,
                lambda: [np.asarray(x) for x in self.callback(*parts)],
                lambda: [np.zeros((*batch_shape, *s.shape), s.dtype) for s in structs],
            )

        return tuple(jax.pure_callback(run, structs, position_of(self.axes), *shards, vmap_method=self.vmap_method))


def _run_on_host(what: HostCall, types: tuple[HiShType, ...], index: Sequence[Any], *parts: Any) -> None:
    """Calls a host function, unless another device calls it with the same shards."""
    at = {axis: int(i) for axis, i in zip(types[0].mesh.axis_names, index, strict=True)}
    differing = {axis: i for axis, i in at.items() if any(t.state(axis) not in REPLICATED for t in types)}
    if all(i == 0 for axis, i in at.items() if axis not in differing):
        # shards of a physical array have hidden dims, and keys have words
        shapes = [(*t.local_shape, -1) if dtypes.is_key(t.dtype_name) else t.local_shape for t in types]
        what.run(differing, [np.asarray(p).reshape(shape) for p, shape in zip(parts, shapes, strict=True)])
