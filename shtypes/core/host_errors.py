"""What functions of the host raise while a program runs.

Raised at once, on one device, it would leave the others waiting in their next collective. So in a region it is kept,
and what that device calls from then on is not called; it is raised there when all else of the program is done.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

T = TypeVar("T")

_lock: Final = threading.Lock()
#: By the position of the device on its mesh.
_kept: Final[dict[int, BaseException]] = {}


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


def are_kept() -> bool:
    """Whether errors of what is traced here are raised at the end of the program."""
    return _thread.keeping


def called(position: Any, run: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """What a function of the host gives for a device; what stands for it, from the first error of the device on."""
    at = int(np.asarray(position).flat[0])
    with _lock:
        if at in _kept:
            return otherwise()
    try:
        return run()
    except Exception as error:
        with _lock:
            _kept[at] = error
        return otherwise()


def _raise(position: Any, done: Any) -> None:
    del done
    with _lock:
        error = _kept.pop(int(position), None)
    if error is not None:
        raise error


def position_of(axes: Sequence[str]) -> Any:
    """The position of the device along the axes of its mesh; where these are manual."""
    return lax.axis_index(tuple(axes))


def raise_after(axes: Sequence[str], results: Sequence[Any]) -> None:
    """Raises on a device what was kept there, when it has the results of a program."""
    # XLA drops barriers: only what the host is given comes before it is called.
    jax.debug.callback(_raise, position_of(axes), sum(map(_some, results), start=jnp.float32(0)))


def _some(x: Any) -> Any:
    """A number that is known when an array is."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return jnp.float32(0) if not x.size else jnp.real(x.ravel()[0]).astype(jnp.float32)
