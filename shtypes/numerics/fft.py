"""`sh.fft`: Fourier transforms along dims that every device holds whole; names of `jax.numpy.fft`."""

from __future__ import annotations

from shtypes.numerics.namespace import functions_of

_FUNCTIONS = functions_of("fft")
globals().update(_FUNCTIONS)
__all__ = sorted(_FUNCTIONS)  # noqa: PLE0605  # made from the rows


def __dir__() -> list[str]:
    return __all__
