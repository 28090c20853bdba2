"""The ops that random programs are made of, by family. Importing a file registers its ops."""

from tests.random_ops import (
    arithmetic,
    arranging,
    asked,
    control,
    functions,
    local,
    lookups,
    networks,
    numbers,
    positions,
    whole,
    windows,
)

__all__ = [
    "arithmetic",
    "arranging",
    "asked",
    "control",
    "functions",
    "local",
    "lookups",
    "networks",
    "numbers",
    "positions",
    "whole",
    "windows",
]
