"""Calls of Python from typed programs: each device calls with its shards; and how errors of the calls are raised."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes._compat import HiPrimitive, debug_effects
from shtypes.core.array import Array
from shtypes.core.elementwise_fns import NamedFn
from shtypes.core.jax_type import HiShType
from shtypes.core.local import local
from shtypes.core.meshes import concrete_mesh, manual_mesh
from shtypes.core.physical import physical_spec, to_shard, without_keys
from shtypes.core.shard_fn import Linear, ShardFn
from shtypes.types import REPLICATED, dtypes

T = TypeVar("T")

_lock: Final = threading.Lock()
#: By the position of the device on its mesh.
_errors: Final[dict[int, BaseException]] = {}


class _Thread(threading.local):
    keeping = False


_thread: Final = _Thread()


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """A scope in which functions of the host are traced whose errors `raise_after` raises."""
    outer, _thread.keeping = _thread.keeping, True
    try:
        yield
    finally:
        _thread.keeping = outer


def records_errors() -> bool:
    """Whether errors of what is traced here are raised at the end of the program."""
    return _thread.keeping


def called(position: Any, run: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """The result of ``run`` on a device; that of ``otherwise`` from the device's first error on."""
    at = int(np.asarray(position).flat[0])
    with _lock:
        if at in _errors:
            return otherwise()
    try:
        return run()
    except Exception as error:
        with _lock:
            _errors[at] = error
        return otherwise()


def _raise(position: Any, done: Any) -> None:
    del done
    with _lock:
        error = _errors.pop(int(position), None)
    if error is not None:
        raise error


def position_of(axes: Sequence[str]) -> Any:
    """The position of the device along the axes of its mesh; where these are manual."""
    return lax.axis_index(tuple(axes))


def raise_after(axes: Sequence[str], results: Sequence[Any]) -> None:
    """Raises on a device the errors that its calls recorded, once the results of the program are computed."""
    # XLA drops barriers: only a callback's operands are computed before it is called.
    jax.debug.callback(_raise, position_of(axes), sum(map(_some, results), start=jnp.float32(0)))


def _some(x: Any) -> Any:
    """A scalar that depends on an array: available only when the array is."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return jnp.float32(0) if not x.size else jnp.real(x.ravel()[0]).astype(jnp.float32)


#: The indices of a device along the mesh axes on which parts differ.
AxisIndices = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class HostCall:
    """A host function, with how it is called."""

    name: str  # what the user called
    #: The function, of the place of the device and the parts that it holds.
    run: Callable[[AxisIndices, Sequence[np.ndarray[Any, Any]]], None]
    ordered: bool = False  # whether it must come after the calls before it; on one device only

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


class Callback(HiPrimitive):
    """A call on each device; it has an effect and no results."""

    multiple_results = True

    def is_effectful(self, params: Any) -> bool:  # type: ignore[override]  # JAX's annotation differs from its calls
        return True

    def abstract_eval(self, *operands: Any, call: HostCall) -> tuple[list[HiShType], set[Any]]:
        return [], {debug_effects[call.ordered]}

    def to_lojax(self, *operands: Any, call: HostCall) -> list[Array]:
        call_with(call, operands)
        return []

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, call: HostCall) -> tuple[list[Any], list[Any]]:
        return list(self.bind(*primals, call=call)), []

    def batch(
        self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, call: HostCall
    ) -> tuple[list[Any], list[Any]]:
        for i in range(axis_data.size):  # one call after the other, as JAX does
            parts = [x if d is None else _step(x, d, i, axis_data.size) for x, d in zip(operands, dims, strict=True)]
            self.bind(*parts, call=call)
        return [], []


def _step(x: Any, dim: int, index: int, size: int) -> Any:
    """One element of the mapped dim."""
    params = (("index", index), ("axis", dim), ("keepdims", False))
    fn = NamedFn("slice", lax.index_in_dim, params, Linear.JOINTLY)
    return local(fn, x, out=jax.typeof(x).dec_rank(size, dim))


callback_p = Callback("debug_callback")


def call(what: HostCall, operands: Sequence[Any]) -> None:
    """Calls, or notes in the program that is traced, a function of typed values of one mesh."""
    callback_p.bind(*operands, call=what)


def call_with(what: HostCall, operands: Sequence[Array]) -> None:
    """A call with values: at once, or when the program runs that is lowered op by op."""
    if any(x.data is None for x in operands):
        return  # of types alone there is nothing to show
    types = tuple(x.type for x in operands)
    if any(isinstance(x.data, jax.core.Tracer) for x in operands):
        over, options = manual_mesh(types[0].mesh)
        specs = tuple(map(physical_spec, types))

        def body(*physical_arrays: Any) -> None:
            call_on_shards(what, types, list(map(to_shard, types, physical_arrays)))

        run = jax.shard_map(body, mesh=over, in_specs=specs, out_specs=None, check_vma=False, **options)
        run(*[x.data for x in operands])
    else:
        _at_once(what, types, operands)


def _at_once(what: HostCall, types: tuple[HiShType, ...], operands: Sequence[Array]) -> None:
    """A call with concrete values, device by device in the order of the mesh."""
    mesh = types[0].mesh
    devices = concrete_mesh(mesh).devices
    by_device = [{s.device: s.data for s in without_keys(x.type, x.data).addressable_shards} for x in operands]
    for index in itertools.product(*map(range, mesh.axis_sizes)):
        shards = [of.get(devices[index]) for of in by_device]
        if all(s is not None for s in shards):
            _arrived(what, types, index, *shards)


def call_on_shards(what: HostCall, types: tuple[HiShType, ...], shards: Sequence[Any]) -> None:
    """A call on one device, where the axes of the mesh are manual."""
    arrays, axes = map(without_keys, types, shards), types[0].mesh.axis_names
    index, position = tuple(lax.axis_index(axis) for axis in axes), position_of(axes)
    arrived = functools.partial(_arrived_recording if records_errors() else _arrived, what, types)
    jax.debug.callback(arrived, index, *([position] if records_errors() else []), *arrays, ordered=what.ordered)


def _arrived_recording(
    what: HostCall, types: tuple[HiShType, ...], index: Sequence[Any], position: Any, *parts: Any
) -> None:
    called(position, lambda: _arrived(what, types, index, *parts), lambda: None)


@dataclass(frozen=True)
class HostFunction(ShardFn):
    """A function of the host that gives arrays; each device calls it."""

    name: str
    fn: Callable[..., Any]  # on shards, of JAX: what it is where errors need not wait
    callback: Callable[..., Sequence[Any]]  # from arrays to arrays, both flat
    results: tuple[tuple[tuple[int, ...], str], ...]
    axes: tuple[str, ...]  # those of the mesh
    vmap_method: str | None
    calls_host = True

    def __str__(self) -> str:
        return self.name

    def __call__(self, *shards: Any) -> Any:
        if not records_errors():
            return self.fn(*shards)
        structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in self.results]

        def run(position: Any, *parts: Any) -> Sequence[Any]:
            lead = np.shape(position)  # of a dim that `jax.vmap` hands on
            return called(
                position,
                lambda: [np.asarray(x) for x in self.callback(*parts)],
                lambda: [np.zeros((*lead, *s.shape), s.dtype) for s in structs],
            )

        return tuple(jax.pure_callback(run, structs, position_of(self.axes), *shards, vmap_method=self.vmap_method))


def _arrived(what: HostCall, types: tuple[HiShType, ...], index: Sequence[Any], *parts: Any) -> None:
    """Calls, on the host, if no other device has the same parts and calls for them."""
    at = {axis: int(i) for axis, i in zip(types[0].mesh.axis_names, index, strict=True)}
    differing = {axis: i for axis, i in at.items() if any(t.state(axis) not in REPLICATED for t in types)}
    if all(i == 0 for axis, i in at.items() if axis not in differing):
        # Parts of a physical array have hidden dims, and keys have their words.
        shapes = [(*t.local_shape, -1) if dtypes.is_key(t.dtype_name) else t.local_shape for t in types]
        what.run(differing, [np.asarray(p).reshape(shape) for p, shape in zip(parts, shapes, strict=True)])
