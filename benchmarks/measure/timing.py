"""Paired, interleaved timing: variants take turns in every round, so that what slows the machine slows all of them."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

#: Seconds of each round.
Samples = list[float]


@contextmanager
def without_gc() -> Iterator[None]:
    """A block that no garbage collection interrupts."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes to return, and what it returns."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def calls(function: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Medians over some calls: until the call returns, and until its results are there.

    Each call is waited for: XLA's CPU collectives deadlock when many programs are in flight.
    """
    returned, done = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        returned.append(time.perf_counter() - start)
        jax.block_until_ready(result)
        done.append(time.perf_counter() - start)
    return statistics.median(returned), statistics.median(done)


def ratio(ours: Samples, theirs: Samples) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(samples: Samples) -> dict[str, float]:
    """The median and the least of some seconds, in milliseconds."""
    return {"median_ms": statistics.median(samples) * 1e3, "min_ms": min(samples) * 1e3}
