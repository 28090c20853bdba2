"""Fourier transforms along dims that every device holds whole, with the names of `jax.numpy.fft`. All are linear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from shtypes.core.array import Array
from shtypes.lowering.replay import published
from shtypes.ops.dispatch import lift
from shtypes.ops.ranges import fftfreq, rfftfreq
from shtypes.ops.reduce import normalize_dims
from shtypes.ops.whole import apply_whole, function, one_dim

_LAW = """
    Per axis: every state is kept, unreduced too; the dims must be whole.

    Args:
        a (...): A value.
        {size}: The {sizes} to cut or fill the {dims} to.
        {axis}: The {dims}.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Raises:
        ShardingTypeError: a dim is sharded.

    Transpose: by JAX. Communicates: nothing.
    """


def _one(name: str) -> Callable[..., Array]:
    native = getattr(jnp.fft, name)

    def op(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
        ((x,), _) = lift([a])
        dim = one_dim(name, x, axis)
        return apply_whole(name, function(name, native, linear=True, n=n, axis=dim, norm=norm), x, [dim])

    law = _LAW.format(size="n", axis="axis", sizes="size", dims="dim")
    return published(op, name, f"`jax.numpy.fft.{name}`: a transform along one dim.\n{law}")


def _several(name: str, default: tuple[int, int] | None) -> Callable[..., Array]:
    native = getattr(jnp.fft, name)

    def op(
        a: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = default, norm: str | None = None
    ) -> Array:
        ((x,), _) = lift([a])
        ndim = jax.typeof(x).ndim
        sizes = None if s is None else tuple(map(int, s))
        # The last of the dims is the one that real transforms halve: their order counts.
        given = tuple(axes) if axes is not None else tuple(range(ndim - len(sizes or range(ndim)), ndim))
        along = normalize_dims(given, ndim, name)
        dims = tuple(d % ndim for d in given)
        return apply_whole(name, function(name, native, linear=True, s=sizes, axes=dims, norm=norm), x, along)

    law = _LAW.format(size="s", axis="axes", sizes="sizes", dims="dims")
    return published(
        op, name, f"`jax.numpy.fft.{name}`: a transform along {'two' if default else 'several'} dims.\n{law}"
    )


fft, ifft, rfft, irfft, hfft, ihfft = map(_one, ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"))
fft2, ifft2, rfft2, irfft2 = (_several(name, (-2, -1)) for name in ("fft2", "ifft2", "rfft2", "irfft2"))
fftn, ifftn, rfftn, irfftn = (_several(name, None) for name in ("fftn", "ifftn", "rfftn", "irfftn"))


def _shift(name: str) -> Callable[..., Array]:
    native = getattr(jnp.fft, name)

    def op(x: Any, axes: int | Sequence[int] | None = None) -> Array:
        ((x,), _) = lift([x])
        dims = normalize_dims(axes, jax.typeof(x).ndim, name)
        return apply_whole(name, function(name, native, linear=True, axes=dims), x, dims)

    return published(
        op, name, f"`jax.numpy.fft.{name}`: rolls dims, all by default; typed as `roll`. Communicates: nothing."
    )


fftshift, ifftshift = map(_shift, ("fftshift", "ifftshift"))

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
