"""The result classes of functions of matrices that return several arrays, as in JAX, for type checkers."""

from __future__ import annotations

from typing import NamedTuple

from shtypes.core.array import Array

class EigResult(NamedTuple):
    """Of `shtypes.linalg.eig`."""

    eigenvalues: Array
    eigenvectors: Array

class EighResult(NamedTuple):
    """Of `shtypes.linalg.eigh`."""

    eigenvalues: Array
    eigenvectors: Array

class LstsqResult(NamedTuple):
    """Of `shtypes.linalg.lstsq`, for which JAX returns a plain tuple."""

    x: Array
    residuals: Array
    rank: Array
    s: Array

class QRResult(NamedTuple):
    """Of `shtypes.linalg.qr`."""

    Q: Array
    R: Array

class SlogdetResult(NamedTuple):
    """Of `shtypes.linalg.slogdet`."""

    sign: Array
    logabsdet: Array

class SVDResult(NamedTuple):
    """Of `shtypes.linalg.svd`."""

    U: Array
    S: Array
    Vh: Array

class UniqueAllResult(NamedTuple):
    """Of `shtypes.unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array

class UniqueCountsResult(NamedTuple):
    """Of `shtypes.unique_counts`."""

    values: Array
    counts: Array

class UniqueInverseResult(NamedTuple):
    """Of `shtypes.unique_inverse`."""

    values: Array
    inverse_indices: Array
