"""Debug checks: compares copies of values across devices, and finds terms of pending sums that became NaN.

Types are proved, except for host functions in `local_map` and for hardware faults. When disabled, nothing runs: the
setting is part of cache keys, so that no program is compiled with another's checks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import source_info_util

from shtypes._compat import trace_notes, trace_of
from shtypes.caches import COMPILED
from shtypes.context import settings
from shtypes.context.scope import Scope, simple
from shtypes.context.settings import current_settings
from shtypes.context.user_line import user_line
from shtypes.core.array import Array
from shtypes.core.meshes import concrete_mesh, manual_mesh
from shtypes.core.physical import physical_spec, to_shard, with_key_data
from shtypes.errors import ShardingTypeError, quoted
from shtypes.types import REPLICATED, ShType, State


def checks_are_on() -> bool:
    """Whether debug checks are enabled here."""
    return current_settings().checks


def debug_checks(on: bool = True) -> Scope:
    """A scope in which each result of a shard function is compared across the devices that should have copies of it.

    So are inputs: `shtypes.from_jax` of a `jax.Array`, and the arguments of a program. If a function of a pending sum
    returns NaN on some devices only, for operands without NaN, that is an error too: the zero terms met an infinite
    factor (docs: reshard).

    A wrong eager operation raises at its line. Compiled programs compare while they run; their first wrong result
    raises when a call of an `sh.jit` function returns, at the next eager operation, or at the end of the scope.

    Args:
        on: Whether to check; False disables the checks in a part of the code.

    Raises:
        ShardingTypeError: a result with a reduced or invariant axis differs along it; names the operation, its line,
            and the difference. A term of a pending sum became NaN.

    Communicates: two all-reduces for each such value of a compiled program; eager values are compared on the host. Two
    for each function of a pending sum.

    Examples:
        >>> import shtypes as sh
        >>> import jax, numpy as np
        >>> rng = np.random.default_rng()
        >>> noise = lambda x: x + jax.pure_callback(lambda: np.float32(rng.normal()), jax.typeof(np.float32(0)))
        >>> noisy = sh.local_map(noise, out="[_]", name="noisy")
        >>> with sh.use_mesh(sh.make_mesh({"x": 2})), sh.debug_checks():
        ...     noisy(sh.array([1.0, 2.0], "f32[2]"))
        Traceback (most recent call last):
        shtypes.errors.ShardingTypeError: `noisy` made a value that is not the same along mesh axis `x`
        ...
    """
    return simple(lambda: _checked(on))


@contextlib.contextmanager
def _checked(on: bool) -> Iterator[None]:
    with settings.scope(current_settings()._replace(checks=on)):
        try:
            yield
        except BaseException:
            _pop_failures()  # the exception takes precedence
            raise
        raise_failures()


def set_debug_checks(on: bool) -> None:
    """Enables or disables the checks of `debug_checks` for all threads, outside any scope."""
    settings.set_base(settings.outermost()._replace(checks=on))
    if not on:
        raise_failures()


# failures

_failures: list[ShardingTypeError] = []
_lock: Final = threading.Lock()


def raise_failures() -> None:
    """Waits for the checks of running programs, and raises the first failure."""
    jax.effects_barrier()
    for failure in _pop_failures():
        raise failure


def _pop_failures() -> list[ShardingTypeError]:
    """Removes and returns the recorded failures."""
    with _lock:
        failures = list(_failures)
        _failures.clear()
    return failures


_OF_RESULTS: Final = (
    "a result that differs from device to device is sharded, unreduced or varying: claim that",
    "a function of shards whose result is made whole by a collective belongs in sh.shard_map",
)
_OF_OPERANDS: Final = (
    "sh.array(x, type) sends each device its part of one host array",
    "a jax.Array of other parts than its sharding says, as jax.make_array_from_single_device_arrays makes it, is wrong",
)


def _failure(name: str, t: ShType, axis: str, line: str, difference: Any, inputs: bool) -> ShardingTypeError:
    most = "" if difference is None else f"; elements differ by up to {float(difference):.3g}"
    call = f"{name}({t})" if inputs else f"{name} -> {t}"
    error = ShardingTypeError(
        f"`{name}` {'was given' if inputs else 'made'} a value that is not the same along mesh axis `{axis}`",
        where=f"{line}: {call}" if line else call,
        why=f"its type says that each device along `{axis}` has the same value{most}",
        hints=_OF_OPERANDS if inputs else _OF_RESULTS,
    )
    error.placed = bool(line)
    return error


def _record(same: Any, difference: Any, *, name: str, t: ShType, axis: str, line: str, inputs: bool) -> None:
    """Records a failure; raising on one device would leave the others waiting in their next collective."""
    if not bool(same):
        with _lock:
            _failures.append(_failure(name, t, axis, line, difference if np.isfinite(difference) else None, inputs))


def _replicated(t: ShType) -> tuple[str, ...]:
    """The axes along which a value has copies."""
    if not t.size or t.dtype_name == "float0":
        return ()
    return tuple(a for a in t.axes(*REPLICATED) if t.mesh.shape[a] > 1)


def _traced_line() -> str:
    """The user's line of the equation being lowered."""
    summary = source_info_util.summarize(source_info_util.current())
    match = re.match(r"(?P<file>.*?):(?P<line>\d+)(:\d+)?(-\d+(:\d+)?)? \((?P<function>.*)\)\Z", summary)
    if match is None:
        return user_line()
    place = f"{os.path.basename(match['file'])}:{match['line']}"
    return place if match["function"].endswith("<module>") else f"{place} in {match['function']}"


# eager values, and values of a program lowered op by op


#: Concrete physical arrays whose copies were compared, by id.
_compared: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()


def _is_new(data: Any) -> bool:
    """Whether the copies of a physical array have not been compared yet; marks them as compared."""
    notes: Any = trace_notes(trace_of(data)) if isinstance(data, jax.core.Tracer) else _compared
    if notes is None:
        return True
    key: Any = ("compared", id(data)) if isinstance(data, jax.core.Tracer) else id(data)
    if notes.get(key) is data:
        return False
    notes[key] = data  # keeps the tracer alive, so that its id is not reused
    return True


def check_values(name: str, values: Sequence[Array], *, inputs: bool = False) -> None:
    """Compares the copies of each result of an operation: eagerly, or when the traced program runs.

    If ``inputs``, the values are its operands, and those that an operation computed are skipped.
    """
    if values and not any(isinstance(x.data, jax.core.Tracer) for x in values):
        raise_failures()  # failures of earlier programs
    for x in values:
        if x.data is None or not _replicated(x.type) or not _is_new(x.data):
            continue
        if isinstance(x.data, jax.core.Tracer):
            _checker(name, x.type, _traced_line(), inputs)(x.data)
        else:
            _compare_copies(name, x, inputs)


def _compare_copies(name: str, x: Array, inputs: bool) -> None:
    """Compares the copies of a value on the host, axis by axis."""
    copies = {s.device: np.asarray(s.data) for s in with_key_data(x.type, x.data).addressable_shards}
    devices = concrete_mesh(x.type.mesh).devices
    for axis in _replicated(x.type):
        along = x.type.mesh.index(axis)
        first, *others = np.moveaxis(devices, along, 0).reshape(devices.shape[along], -1)
        for one, other in ((one, other) for row in others for one, other in zip(first, row, strict=True)):
            if one in copies and other in copies and copies[one].tobytes() != copies[other].tobytes():
                del _compared[id(x.data)]  # fails at each use
                raise _failure(name, x.type, axis, user_line(), _largest_difference(copies[one], copies[other]), inputs)


def _largest_difference(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        most = np.max(np.abs(a.astype(np.complex128) - b.astype(np.complex128)), initial=0)
    return most if np.isfinite(most) else None


@functools.lru_cache(maxsize=COMPILED)
def _checker(name: str, t: ShType, line: str, inputs: bool) -> Any:
    over, options = manual_mesh(t.mesh)

    def check(physical: Any) -> None:
        _check(name, t, line, to_shard(t, physical), inputs)

    return jax.shard_map(check, mesh=over, in_specs=physical_spec(t), out_specs=None, check_vma=False, **options)


# shards of a program lowered in one region


def check_shards(name: str, shards: Sequence[Any], types: Sequence[ShType], *, inputs: bool = False) -> None:
    """Compares the copies of each result, or input, inside a region, when the program runs."""
    for shard, t in zip(shards, types, strict=True):
        if _replicated(t):
            _check(name, t, _traced_line(), shard, inputs)


def _check(name: str, t: ShType, line: str, shard: Any, inputs: bool) -> None:
    """Compares a shard with those of the devices that should have copies."""
    bits = _bits(shard)
    for axis in _replicated(t):
        same = jnp.all(lax.pmin(bits, axis) == lax.pmax(bits, axis))
        note = functools.partial(_record, name=name, t=t, axis=axis, line=line, inputs=inputs)
        jax.debug.callback(note, same, _device_difference(shard, axis))


def _bits(x: Any) -> Any:
    """The bits of an array, as integers, so that NaN equals itself."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(x)
    if x.dtype == jnp.bool_:
        return x.astype(jnp.int32)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.stack([_bits(x.real), _bits(x.imag)])
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x
    return lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))


def _device_difference(x: Any, axis: str) -> Any:
    """The largest difference between copies."""
    if not jnp.issubdtype(x.dtype, jnp.floating) or not x.size:
        return jnp.float32(jnp.nan)
    wide = x.astype(jnp.float32)
    return jnp.max(lax.pmax(wide, axis) - lax.pmin(wide, axis))


# terms of pending sums


def check_terms(name: str, operands: Sequence[Array], results: Sequence[Array]) -> None:
    """Finds terms of pending sums in a shard function's results that became NaN on some devices only."""
    ins = tuple(x.type for x in operands)
    for y in results:
        axes = _pending_through(ins, y.type)
        if not axes or y.data is None or any(x.data is None for x in operands):
            continue
        traced = isinstance(y.data, jax.core.Tracer)
        line = _traced_line() if traced else user_line()
        became_nan = _terms_checker(name, ins, y.type, axes, line if traced else None)(
            *[x.data for x in operands], y.data
        )
        if not traced and bool(became_nan):
            raise _terms_failure(name, y.type, axes, line)


def check_terms_of_shards(
    name: str, ins: Sequence[Any], shards: Sequence[Any], results: Sequence[ShType], outs: Sequence[Any]
) -> None:
    """Like `check_terms`, inside a region, when the program runs."""
    for t, out in zip(results, outs, strict=True):
        axes = _pending_through(ins, t)
        if axes:
            note = functools.partial(_record_terms, name=name, t=t, axes=axes, line=_traced_line())
            jax.debug.callback(note, _became_nan(shards, out, axes))


def _pending_through(ins: Sequence[Any], t: ShType) -> tuple[str, ...]:
    """The axes along which both a result and an operand are pending sums."""
    if not t.size or not jnp.issubdtype(t.dtype, jnp.inexact):
        return ()
    sums = [u for u in ins if isinstance(u, ShType) and jnp.issubdtype(u.dtype, jnp.inexact)]
    pending = {a for u in sums for a in u.axes(State.UNREDUCED)}
    return tuple(a for a in t.axes(State.UNREDUCED) if a in pending and t.mesh.shape[a] > 1)


def _became_nan(shards: Sequence[Any], out: Any, axes: tuple[str, ...]) -> Any:
    """Whether an element is NaN on some but not all devices along the axes, and no operand had a NaN."""
    nan = jnp.isnan(out)
    before = [jnp.any(jnp.isnan(x)) for x in shards if jnp.issubdtype(x.dtype, jnp.inexact)]
    some = nan & ~lax.pmin(nan.astype(jnp.int32), axes).astype(bool)
    new = jnp.any(some) & ~functools.reduce(jnp.logical_or, before)
    return lax.pmax(new.astype(jnp.int32), axes)


@functools.lru_cache(maxsize=COMPILED)
def _terms_checker(name: str, ins: tuple[ShType, ...], t: ShType, axes: tuple[str, ...], line: str | None) -> Any:
    """A check of physical arrays: in a program (``line``) it records failures when it runs, else it returns a flag."""
    over, options = manual_mesh(t.mesh)
    types = (*ins, t)

    def check(*physical: Any) -> Any:
        *shards, out = [to_shard(u, c) for u, c in zip(types, physical, strict=True)]
        became_nan = _became_nan(shards, out, axes)
        if line is None:
            return lax.pmax(became_nan, t.mesh.axis_names)
        jax.debug.callback(functools.partial(_record_terms, name=name, t=t, axes=axes, line=line), became_nan)
        return None

    specs: dict[str, Any] = {
        "in_specs": tuple(map(physical_spec, types)),
        "out_specs": jax.P() if line is None else None,
    }
    return jax.jit(jax.shard_map(check, mesh=over, check_vma=False, **specs, **options), inline=True)


def _record_terms(became_nan: Any, *, name: str, t: ShType, axes: tuple[str, ...], line: str) -> None:
    if bool(became_nan):
        with _lock:
            _failures.append(_terms_failure(name, t, axes, line))


def _terms_failure(name: str, t: ShType, axes: tuple[str, ...], line: str) -> ShardingTypeError:
    call = f"{name} -> {t}"
    error = ShardingTypeError(
        f"`{name}` made terms of a sum nan that is pending over {quoted(axes)}, on some of the devices only",
        where=f"{line}: {call}" if line else call,
        why="a replicated value that becomes a pending sum is zero on all devices but one, and zero times an infinite "
        "factor is nan, where one device has the value times infinity",
        hints=(
            "keep the factor finite: sh.where(x > 0, x, 1) before a function whose derivative is infinite at 0",
            'sh.reshard(x, axis="I"): the gradient of an invariant value is no pending sum',
        ),
    )
    error.placed = bool(line)
    return error
