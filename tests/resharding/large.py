"""Small arrays that are planned as if their shards were large."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from shtypes.resharding import planner, step_shapes


@contextlib.contextmanager
def large_shards() -> Iterator[None]:
    """In here shards of any size are worth another launch."""
    planner._plan.cache_clear()
    with mock.patch.object(step_shapes, "LARGE", 1):
        yield
    planner._plan.cache_clear()
