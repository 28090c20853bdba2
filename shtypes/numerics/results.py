"""What functions of matrices return that return several arrays, as type checkers see JAX's classes of these names."""

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
    """Of `shtypes.linalg.lstsq`, of which JAX returns a tuple without names."""

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
