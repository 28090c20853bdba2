"""Measures what the devices at hand compute, read and send in a second, for `sh.compute` and `sh.cost_model`.

    python benchmarks/calibrate.py device.toml

Products of square matrices give the rate of each dtype, a sum of two arrays the bandwidth of the memory, and
all-gathers of two sizes the bandwidth of the link between the devices and how long they take to begin. The best of
several runs counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from shtypes.types import dtypes

#: Rows of the matrices, and elements of the arrays: on accelerators and on CPUs.
ROWS, ELEMENTS = (8192, 2**28) if jax.default_backend() != "cpu" else (1024, 2**24)
REPEATS = 5


def best(run: Callable[[], Any]) -> float:
    """The least seconds of several runs, the first of which compiles and does not count."""
    jax.block_until_ready(run())
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times)


def product_rate(dtype: str) -> float:
    """FLOP/s of a product of two square matrices."""
    a = jnp.ones((ROWS, ROWS), dtypes.to_numpy(dtype))
    multiply = jax.jit(jnp.matmul)
    return 2 * ROWS**3 / best(lambda: multiply(a, a))


def memory_bandwidth() -> float:
    """Bytes per second of a sum of two arrays: two are read and one is written."""
    a, b = jnp.ones(ELEMENTS, jnp.float32), jnp.ones(ELEMENTS, jnp.float32)
    add = jax.jit(jnp.add)
    return 3 * a.nbytes / best(lambda: add(a, b))


def link() -> sh.Link | None:
    """What connects all devices, by all-gathers of a small and a large array; None of a single device."""
    n = jax.device_count()
    if n == 1:
        return None
    with sh.use_mesh(sh.make_mesh({"all": n})):
        gather = sh.jit(lambda x: sh.all_gather(x, "all"))
        seconds = {}
        for elements in (n, ELEMENTS // 16 // n * n):
            x = sh.ones(f"f32[{elements}@all]")
            seconds[4 * elements * (n - 1) // n] = best(lambda x=x: gather(x).data)  # type: ignore[misc]
    (small, fixed), (large, whole) = sorted(seconds.items())
    bandwidth = (large - small) / max(whole - fixed, 1e-9)
    return sh.Link(bandwidth=bandwidth, launch=fixed, source="benchmarks/calibrate.py")


def main(path: str | None) -> None:
    """Measures, prints, and writes a file if there is a path for it."""
    rates = {dtype: product_rate(dtype) for dtype in ("f32", "bf16")}
    bandwidth = memory_bandwidth()
    lines = [f"bandwidth = {bandwidth:.4g}", f'source = "benchmarks/calibrate.py on {jax.devices()[0].device_kind}"']
    lines += ["[flops]", *(f"{dtype} = {rate:.4g}" for dtype, rate in rates.items())]
    text = "\n".join(lines) + "\n"
    print(text)
    print("link between the devices:", link())
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
