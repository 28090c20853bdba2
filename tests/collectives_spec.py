"""What each collective of local mode does, on lists with one numpy array per device; knows nothing of shtypes.

``pairing`` is how a value and a cotangent on the devices multiply to one number, by the meaning of their states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Device = np.ndarray[Any, Any]
Devices = list[Device]


def psum(xs: Devices) -> Devices:
    return [sum(xs[1:], xs[0])] * len(xs)


def pmean(xs: Devices) -> Devices:
    return [x / len(xs) for x in psum(xs)]


def pmax(xs: Devices) -> Devices:
    return [np.max(xs, 0)] * len(xs)


def pmin(xs: Devices) -> Devices:
    return [np.min(xs, 0)] * len(xs)


def pvary(xs: Devices) -> Devices:
    return xs


def all_gather(xs: Devices, axis: int = 0, tiled: bool = False) -> Devices:
    return [np.concatenate(xs, axis) if tiled else np.stack(xs, axis)] * len(xs)


def _parts(x: Device, n: int, axis: int, tiled: bool) -> Devices:
    if tiled:
        return np.split(x, n, axis)
    return [np.take(x, i, axis) for i in range(n)]


def psum_scatter(xs: Devices, axis: int = 0, tiled: bool = False) -> Devices:
    return _parts(psum(xs)[0], len(xs), axis, tiled)


def pscatter(xs: Devices, axis: int = 0, tiled: bool = False) -> Devices:
    return _parts(xs[0], len(xs), axis, tiled)


def all_to_all(xs: Devices, split: int, concat: int, tiled: bool = False) -> Devices:
    parts = [_parts(x, len(xs), split, tiled) for x in xs]
    received = [[parts[sender][i] for sender in range(len(xs))] for i in range(len(xs))]
    return [np.concatenate(r, concat) if tiled else np.stack(r, concat) for r in received]


def ppermute(xs: Devices, perm: Sequence[tuple[int, int]]) -> Devices:
    out = [np.zeros_like(x) for x in xs]
    for source, destination in perm:
        out[destination] = xs[source]
    return out


def pshuffle(xs: Devices, perm: Sequence[int]) -> Devices:
    return [xs[i] for i in perm]


def pbroadcast_from(xs: Devices, source: int) -> Devices:
    return [xs[source]] * len(xs)


def pairing(state: str, xs: Devices, cts: Devices) -> float:
    """A value in a state times a cotangent in the state that belongs to it.

    V: each device's with its own. I: the one with the one. R: the value with the sum of its pending gradient. U: the
    sum of the pending value with the gradient.
    """
    match state:
        case "V":
            return float(sum((x * c).sum() for x, c in zip(xs, cts, strict=True)))
        case "I":
            return float((xs[0] * cts[0]).sum())
        case "R":
            return float((xs[0] * sum(cts)).sum())
        case "U":
            return float((sum(xs) * cts[0]).sum())
    raise ValueError(state)
