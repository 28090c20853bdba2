"""Paired, interleaved timing: variants take turns in every round, so that what slows the machine slows all of them."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax


class Spent(NamedTuple):
    """Seconds by the clock, and seconds of a processor: the second hardly depends on what else the machine does."""

    wall: float
    cpu: float


#: One for each round.
Samples = list[Spent]


@contextmanager
def without_gc() -> Iterator[None]:
    """A block that no garbage collection interrupts."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def spent(function: Callable[[], Any]) -> tuple[Spent, Any]:
    """What a call costs, in all threads, and what it returns."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu), result


def until_done(function: Callable[[], Any], repeats: int) -> Spent:
    """Medians over some calls, in all threads, until the results are there."""
    return _medians([spent(lambda: jax.block_until_ready(function()))[0] for _ in range(repeats)])


def until_returned(function: Callable[[], Any], repeats: int) -> Spent:
    """Medians over some calls, in this thread, until the call returns.

    Each is waited for all the same: XLA's CPU collectives deadlock when many programs are in flight.
    """
    found = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.thread_time()
        result = function()
        found.append(Spent(time.perf_counter() - wall, time.thread_time() - cpu))
        jax.block_until_ready(result)
    return _medians(found)


def _medians(found: Samples) -> Spent:
    return Spent(*map(statistics.median, zip(*found, strict=True)))


def total(stages: Iterable[Spent]) -> Spent:
    """The sum of what stages cost."""
    return Spent(*map(sum, zip(*stages, strict=True)))


def ratio(ours: Samples, theirs: Samples) -> dict[str, float]:
    """The medians of the rounds' ratios, by the clock and of processor time."""
    rounds = list(zip(ours, theirs, strict=True))
    return {
        "wall": statistics.median(a.wall / b.wall for a, b in rounds),
        "cpu": statistics.median(a.cpu / b.cpu for a, b in rounds),
    }


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(samples: Samples) -> dict[str, float]:
    """The median and the least by the clock and the median of processor time, in milliseconds."""
    wall, cpu = ([1e3 * seconds for seconds in column] for column in zip(*samples, strict=True))
    return {"median_ms": statistics.median(wall), "min_ms": min(wall), "cpu_ms": statistics.median(cpu)}
