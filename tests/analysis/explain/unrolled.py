"""Models whose layers Python unrolls; listings of them are kept, with their lines."""

from __future__ import annotations

from typing import Any

import shtypes as sh


def layer(x: Any, w_in: Any, w_out: Any) -> Any:
    hidden = sh.silu(x @ w_in)
    return x + sh.all_reduce(hidden @ w_out, "tp")


def model(layers: Any, x: Any) -> Any:
    """Layers that Python unrolls, between a first line and a last one."""
    x = sh.sin(x)
    for w in layers:
        x = layer(x, w["in"], w["out"])
    return sh.sum(x * x)


def scaled(layers: Any, x: Any) -> Any:
    """The same, where the fourth layer multiplies by another number."""
    for i, w in enumerate(layers):
        x = layer(x, w["in"], w["out"]) * (3.0 if i == 3 else 2.0)
    return x


def experts(layers: Any, x: Any) -> Any:
    """Layers that have experts, which are unrolled too."""
    for _ in range(6):
        parts = []
        for w in layers:
            expert = sh.silu(x @ w["in"])
            parts.append(expert @ w["out"])
        x = x + sh.all_reduce(sum(parts), "tp")
    return x


def backwards(layers: Any, x: Any) -> Any:
    """Layers of which each takes what the layer before the last one made."""
    before = x
    for w in layers:
        before, x = x, layer(x, w["in"], w["out"]) + before
    return x


def stacked(layers: Any, x: Any) -> Any:
    """Layers that take their weights out of one array each."""
    for i in range(12):
        x = layer(x, layers["in"][i], layers["out"][i])
    return sh.sum(x)
