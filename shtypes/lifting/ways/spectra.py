"""Fourier transforms along sharded dims: an all-to-all makes the dim complete and shards another meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.lifting.ways.choice import way
from shtypes.ops.shards import Axes, count, index, of_device, padded, part, placed, shards, turned, type_of


@of_device("fft")
def _along(x: Any, kind: int, size: int, dim: int) -> Any:
    """A transform along one dim."""
    return jnp.moveaxis(lax.fft(jnp.moveaxis(x, dim, -1), lax.FftType(kind), (size,)), -1, dim)


_FFT, _IFFT, _RFFT, _IRFFT = (int(k) for k in (lax.FftType.FFT, lax.FftType.IFFT, lax.FftType.RFFT, lax.FftType.IRFFT))


def _stages(kind: int, dims: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """The transforms of one dim each that together are one of all: the kind, the dim, the size."""
    inner = _FFT if kind in (_FFT, _RFFT) else _IFFT
    others = [(inner, d, n) for d, n in zip(dims[:-1], sizes[:-1], strict=True)]
    last = (kind, dims[-1], sizes[-1])
    return [*others, last] if kind == _IRFFT else [last, *others]


class _Pencils:
    """A varying value whose shards are of one dim, and then of another.

    Args:
        x (...): The value.
        lies: By axes, the dim that they shard.
        dims: The dims of the transform: others are sharded first.
    """

    def __init__(self, x: Any, lies: dict[Axes, int], dims: Sequence[int]) -> None:
        self.x, self.lies, self.dims = x, lies, dims
        self.cut: dict[int, int] = {}  # the sizes of dims that are padded

    def move(self, axes: Axes, to: int) -> None:
        """Shards another dim; the one before is complete, and as large as it was."""
        before = self.lies[axes]
        self.x, self.lies[axes] = turned(self.x, axes, to, before), to
        if before in self.cut:
            self.x = part(self.x, 0, self.cut.pop(before), before)

    def complete(self, dim: int) -> bool:
        """Shards other dims than this one; whether there are some."""
        for axes in [a for a, d in self.lies.items() if d == dim]:
            shape, n = type_of(self.x).shape, count(self.x, axes)
            # Of several axes on one dim an order would count. The last dims come first, and those without a transform.
            free = sorted((d for d in range(len(shape)) if d not in self.lies.values()), key=lambda d: d in self.dims)
            to = next((d for d in free if shape[d] % n == 0), next(iter(free), None))
            if to is None:
                return False
            if shape[to] % n:
                self.cut[to] = shape[to]
                self.x = padded(self.x, 0, -shape[to] % n, to)
            self.move(axes, to)
        return True

    def home(self, homes: dict[Axes, int]) -> None:
        """Shards the dims of before, as far as their sizes are divided."""
        for _ in homes:  # a dim is free again after another went home
            for axes, dim in homes.items():
                if dim not in self.lies.values() and type_of(self.x).shape[dim] % count(self.x, axes) == 0:
                    self.move(axes, dim)


@way("fft")
def by_pencils(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends the shard twice, less the part that stays, for each sharded dim; holds two shards.

    Where no axis divides the size of a dim afterwards, as that of half a spectrum, the dim stays complete and the other
    one sharded.
    """
    return _pencils(eqn, operands, home=True)


@way("fft", elsewhere=True)
def by_pencils_that_stay(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends the shard once, less the part that stays, for each sharded dim, and leaves another one sharded."""
    return _pencils(eqn, operands, home=False)


def _pencils(eqn: Any, operands: Sequence[Any], *, home: bool) -> Sequence[Any] | None:
    (x,), p = operands, eqn.params
    t, sizes, kind = type_of(x), tuple(map(int, p["fft_lengths"])), int(p["fft_type"])
    dims = range(t.ndim - len(sizes), t.ndim)
    homes = {t.dims[d].axes: d for d in dims if t.dims[d].axes}
    if not homes or not t.size:
        return None
    pencils = _Pencils(shards(x, tuple(a for axes in homes for a in axes)), dict(homes), dims)
    for stage, dim, size in _stages(kind, dims, sizes):
        if not pencils.complete(dim):
            return None
        pencils.x = _along(pencils.x, stage, size, dim)
    if home or pencils.cut:
        pencils.home(homes)
    if pencils.cut:
        return None
    y = pencils.x
    for axes, dim in pencils.lies.items():
        y = placed(y, dim, axes)
    return [y]


@of_device("twiddle")
def _first_step(x: Any, me: Any, kind: int, count: int) -> Any:
    """Of ``[..., count, columns]``, the transform over ``count``, turned by the angle of each element."""
    columns, inverse = x.shape[-1], kind == _IFFT
    y = jnp.fft.ifft(x, axis=-2) if inverse else jnp.fft.fft(x, axis=-2)
    real = np.dtype(y.dtype).type(0).real.dtype
    column = (jnp.arange(columns) + me * columns).astype(real)
    angle = jnp.arange(count).astype(real)[:, None] * column * (2 * np.pi / (count * count * columns))
    return y * lax.complex(jnp.cos(angle), jnp.sin(angle) if inverse else -jnp.sin(angle)).astype(y.dtype)


@of_device("split")
def _split(x: Any, count: int) -> Any:
    return x.reshape(*x.shape[:-1], count, x.shape[-1] // count)


@of_device("flatten")
def _flat(x: Any) -> Any:
    """``[..., a, b]`` as ``[..., b a]``."""
    y = jnp.swapaxes(x, -1, -2)
    return y.reshape(*y.shape[:-2], y.shape[-2] * y.shape[-1])


@way("fft")
def of_one_dim(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends the shard three times, less the part that stays, where it has a part for each device."""
    (x,), p = operands, eqn.params
    t, kind = type_of(x), int(p["fft_type"])
    axes = t.dims[-1].axes
    n = t.mesh.product(axes)
    if len(p["fft_lengths"]) != 1 or kind not in (_FFT, _IFFT) or not axes or t.local_shape[-1] % n or not t.size:
        return None
    d = t.ndim - 1
    me = index(x, axes)
    x = _split(shards(x, axes), 1)  # [..., 1, columns]
    x = _first_step(turned(x, axes, d + 1, d), me, kind, n)  # all rows of a part of the columns
    x = _along(turned(x, axes, d, d + 1), kind, t.local_shape[-1], d + 1)  # one row of all columns
    return [placed(_flat(turned(x, axes, d + 1, d)), d, axes)]
