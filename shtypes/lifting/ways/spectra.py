"""Fourier transforms along sharded dims: an all-to-all unshards the dim and shards another meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.lifting.ways.choice import way
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import Axes, all_to_all, as_sharded, axis_index, axis_size, in_parts, of_device, part, type_of


@of_device("pad")
def _padded(x: Any, low: int, high: int, dim: int) -> Any:
    """Pads a dim with zeros."""
    return lax.pad(x, jnp.zeros((), x.dtype), [(low, high, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)])


@of_device("fft")
def _along(x: Any, kind: int, size: int, dim: int) -> Any:
    """Transforms one dim."""
    return jnp.moveaxis(lax.fft(jnp.moveaxis(x, dim, -1), lax.FftType(kind), (size,)), -1, dim)


_FFT, _IFFT, _RFFT, _IRFFT = (int(k) for k in (lax.FftType.FFT, lax.FftType.IFFT, lax.FftType.RFFT, lax.FftType.IRFFT))


def _stages(kind: int, dims: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Splits a transform into those of one dim each: the kind, the dim, the size."""
    inner = _FFT if kind in (_FFT, _RFFT) else _IFFT
    others = [(inner, d, n) for d, n in zip(dims[:-1], sizes[:-1], strict=True)]
    last = (kind, dims[-1], sizes[-1])
    return [*others, last] if kind == _IRFFT else [last, *others]


class _Pencils:
    """A varying value and the axes that shard its dims, which all-to-alls change.

    Args:
        x (...): The value.
        homes: The axes of each sharded dim at first.
        dims: The dims of the transform: others are preferred to be sharded.
    """

    def __init__(self, x: Any, homes: dict[int, Axes], dims: Sequence[int]) -> None:
        self.x, self.homes, self.dims = x, homes, dims
        #: The axes of each dim, major first: only the last may move.
        self.axes = {d: [homes[d]] if d in homes else [] for d in range(type_of(x).ndim)}
        self.cut: dict[int, int] = {}  # the sizes of padded dims before the padding

    def move(self, dim: int, to: int) -> None:
        """Moves axes from a dim to another by an all-to-all, and cuts the padding of the first."""
        axes = self.axes[dim].pop()
        self.axes[to].append(axes)
        self.x = all_to_all(self.x, axes, to, dim)
        if dim in self.cut and not self.axes[dim]:
            self.x = part(self.x, 0, self.cut.pop(dim), dim)

    def complete(self, dim: int) -> bool:
        """Unshards a dim; returns whether other dims could take its axes."""
        while self.axes[dim]:
            shape, n = type_of(self.x).shape, axis_size(self.x, self.axes[dim][-1])
            others = sorted((d for d in self.axes if d not in (dim, *self.cut)), key=lambda d: d in self.dims)
            free = [d for d in others if not self.axes[d]]
            to = next((d for d in (*free, *others) if shape[d] % n == 0), next(iter(free), None))
            if to is None:
                return False
            if shape[to] % n:
                self.cut[to] = shape[to]
                self.x = _padded(self.x, 0, -shape[to] % n, to)
            self.move(dim, to)
        return True

    def home(self) -> None:
        """Moves axes back to the dims that they sharded at first, where these divide."""
        for home, axes in (*self.homes.items(), *self.homes.items()):  # a second time: moves free dims
            dim = next(d for d, stack in self.axes.items() if axes in stack)
            if (
                self.axes[dim][-1] == axes
                and not self.axes[home]
                and not type_of(self.x).shape[home] % axis_size(self.x, axes)
            ):
                self.move(dim, home)


@way("fft")
def by_pencils(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends two all-to-alls of the shard for each sharded dim; holds two shards.

    Where all dims are sharded, one has the axes of two meanwhile. Where the size of a dim is not divided afterwards, as
    that of half a spectrum, the dim stays unsharded and the other one sharded.
    """
    return _pencils(eqn, operands, home=True)


@way("fft", elsewhere=True)
def by_pencils_that_stay(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends one all-to-all of the shard for each sharded dim, and leaves another dim sharded."""
    return _pencils(eqn, operands, home=False)


def _pencils(eqn: Any, operands: Sequence[Any], *, home: bool) -> Sequence[Any] | None:
    (x,), p = operands, eqn.params
    t, sizes, kind = type_of(x), tuple(map(int, p["fft_lengths"])), int(p["fft_type"])
    dims = range(t.ndim - len(sizes), t.ndim)
    homes = {d: dim.axes for d, dim in enumerate(t.dims) if dim.axes}
    if homes.keys().isdisjoint(dims) or not t.size:
        return None
    pencils = _Pencils(as_varying(x, tuple(a for axes in homes.values() for a in axes)), homes, dims)
    for stage, dim, size in _stages(kind, dims, sizes):
        if not pencils.complete(dim):
            return None
        pencils.x = _along(pencils.x, stage, size, dim)
    if home or pencils.cut:
        pencils.home()
    if pencils.cut:
        return None
    y = pencils.x
    for dim, stack in pencils.axes.items():
        y = as_sharded(y, dim, tuple(a for axes in stack for a in axes)) if stack else y
    return [y]


@of_device("twiddle")
def _first_step(x: Any, device: Any, kind: int, count: int) -> Any:
    """Transforms ``count`` of ``[..., count, columns]``, and multiplies by the twiddle factors."""
    columns, inverse = x.shape[-1], kind == _IFFT
    y = jnp.fft.ifft(x, axis=-2) if inverse else jnp.fft.fft(x, axis=-2)
    real = np.dtype(y.dtype).type(0).real.dtype
    column = (jnp.arange(columns) + device * columns).astype(real)
    angle = jnp.arange(count).astype(real)[:, None] * column * (2 * np.pi / (count * count * columns))
    return y * lax.complex(jnp.cos(angle), jnp.sin(angle) if inverse else -jnp.sin(angle)).astype(y.dtype)


@of_device("fft")
def _second_step(x: Any, kind: int) -> Any:
    """Transforms the last two dims as one."""
    y = x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
    return lax.fft(y, lax.FftType(kind), y.shape[-1:]).reshape(x.shape)


@of_device("flatten")
def _flat(x: Any) -> Any:
    """Reshapes ``[..., a, b]`` to ``[..., b a]``."""
    y = jnp.swapaxes(x, -1, -2)
    return y.reshape(*y.shape[:-2], y.shape[-2] * y.shape[-1])


@way("fft")
def of_one_dim(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends three all-to-alls of the shard, where the devices divide it: the transform in two steps."""
    (x,), p = operands, eqn.params
    t, kind = type_of(x), int(p["fft_type"])
    axes = t.dims[-1].axes
    n = t.mesh.product(axes)
    if len(p["fft_lengths"]) != 1 or kind not in (_FFT, _IFFT) or not axes or t.local_shape[-1] % n or not t.size:
        return None
    d = t.ndim - 1
    device = axis_index(x, axes)
    x = in_parts(as_varying(x, axes), n, d)  # split for the all-to-all, for which XLA copies least
    x = _first_step(all_to_all(x, axes, d, d), device, kind, n)  # all rows of some columns
    x = _second_step(all_to_all(x, axes, d, d), kind)  # one row of all columns
    return [as_sharded(_flat(all_to_all(x, axes, d, d)), d, axes)]
