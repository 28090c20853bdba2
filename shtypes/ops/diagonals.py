"""Triangles and diagonals: which elements stay is asked of their global index. Nothing here communicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from shtypes.types import ShType


@dataclass(frozen=True)
class OwnIndices:
    """Which indices of a global dim a device holds: ``size`` of them, as ``axes`` share them out."""

    axes: tuple[str, ...]
    size: int

    def indices(self) -> Any:
        """The global indices."""
        own = jnp.arange(self.size)
        return own + lax.axis_index(self.axes) * self.size if self.axes else own


def span(t: ShType, dim: int) -> OwnIndices:
    """The indices of one dim that each device holds."""
    return OwnIndices(t.dims[dim].axes, t.local_shape[dim])
