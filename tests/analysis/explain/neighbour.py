"""A second file, for listings that go through several."""

from __future__ import annotations

from typing import Any


def halve(value: Any) -> Any:
    """Half of it."""
    half = value * 0.5
    return half  # noqa: RET504  # the name is what listings print
