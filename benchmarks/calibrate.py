"""Measures what the devices at hand compute, read and send in a second, for `sh.suggest`, `sh.compute` and ledgers.

    python benchmarks/calibrate.py machine.toml dp=2,tp=4
    shtypes suggest model.py:loss --arguments shapes --mesh dp=2,tp=4 --links machine.toml --device machine.toml

Products of square matrices give the rate of each dtype, a sum of two arrays the bandwidth of the memory, and
all-gathers of two sizes along each axis of the mesh the bandwidth of its link and how long they take to begin; without
a mesh all devices are one axis. The best of several runs counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
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


def link(mesh: Mapping[str, int], axis: str) -> sh.Link:
    """What connects the devices along an axis, by all-gathers of a small and a large array."""
    n = mesh[axis]
    with sh.use_mesh(sh.make_mesh(dict(mesh))):
        gather = sh.jit(lambda x: sh.all_gather(x, axis))
        seconds = {}
        for elements in (n, ELEMENTS // 16 // n * n):
            x = sh.ones(f"f32[{elements}@{axis}]")
            seconds[4 * elements * (n - 1) // n] = best(lambda x=x: gather(x).data)  # type: ignore[misc]
    (small, fixed), (large, whole) = sorted(seconds.items())
    return sh.Link(bandwidth=(large - small) / max(whole - fixed, 1e-9), launch=fixed)


def links(mesh: Mapping[str, int]) -> dict[str, sh.Link]:
    """What connects the devices along each axis; those of one device are as the slowest."""
    found = {axis: link(mesh, axis) for axis, n in mesh.items() if n > 1}
    return {**found, "default": min(found.values(), key=lambda each: each.bandwidth)} if found else {}


def machine(mesh: Mapping[str, int]) -> str:
    """All that is measured, as the file that `links=` and `compute=` of `sh.suggest` read."""
    lines = [
        f"bandwidth = {memory_bandwidth():.4g}",
        f'source = "benchmarks/calibrate.py on {jax.devices()[0].device_kind}"',
        "[flops]",
        *(f"{dtype} = {product_rate(dtype):.4g}" for dtype in ("f32", "bf16")),
    ]
    for axis, each in links(mesh).items():
        lines += [f"[links.{axis}]", f"bandwidth = {each.bandwidth:.4g}", f"launch = {each.launch:.4g}"]
    return "\n".join(lines) + "\n"


def main(path: str | None = None, mesh: str = "") -> None:
    """Measures, prints, and writes a file if there is a path for it."""
    axes = {axis: int(n) for axis, n in (part.split("=") for part in mesh.split(",") if part)}
    text = machine(axes or {"all": jax.device_count()})
    print(text)
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
