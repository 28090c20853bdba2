"""Whether a process that runs for long grows: it jits, differentiates and jits again, with ever new numbers.

Numbers, shapes and meshes change; functions are made anew and left. The memory of the process is printed along the
way, beside that of the same program in plain JAX.

    python benchmarks/memory.py                  # 10,000 rounds of each
    python benchmarks/memory.py --rounds 2000
    python benchmarks/memory.py --only shtypes
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

MESHES = ({"x": 2}, {"x": 4}, {"dp": 2, "tp": 2}, {"dp": 4, "tp": 2})
POINTS = 20


def typed_round() -> Callable[[int], None]:
    """One round with shtypes."""
    import jax
    import numpy as np

    import shtypes as sh

    def run(i: int) -> None:
        axes = MESHES[i % len(MESHES)]
        axis, number = next(iter(axes)), 1.0 + i
        with sh.use_mesh(sh.make_mesh(axes)):
            x = sh.array(np.ones((8, 1 + i % 13), np.float32), f"f32[8@{axis}, _]".replace("_", str(1 + i % 13)))

            def loss(x: sh.Array) -> Any:
                return sh.all_reduce(sh.sum(sh.tanh(x * number) + number))

            step = sh.jit(sh.grad(loss))
            jax.block_until_ready((step(x), step(x)))
            jax.block_until_ready(sh.grad(lambda x: sh.sum(x * number))(x))

    return run


def plain_round() -> Callable[[int], None]:
    """The same in plain JAX, on one device."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def run(i: int) -> None:
        number = 1.0 + i
        x = np.ones((8, 1 + i % 13), np.float32)

        def loss(x: jax.Array) -> jax.Array:
            return jnp.sum(jnp.tanh(x * number) + number)

        step = jax.jit(jax.grad(loss))
        jax.block_until_ready((step(x), step(x)))
        jax.block_until_ready(jax.grad(lambda x: jnp.sum(x * number))(x))

    return run


def memory() -> float:
    """Resident memory of this process, in MiB."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def curve(kind: str, rounds: int) -> None:
    """Runs the rounds and prints the memory along the way."""
    run = {"shtypes": typed_round, "plain JAX": plain_round}[kind]()
    for i in range(rounds):
        run(i)
        if (i + 1) % max(1, rounds // POINTS) == 0:
            print(f"{kind:<10} {i + 1:>6} rounds {memory():8.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--only", choices=["shtypes", "plain JAX"], help="in this process")
    given = parser.parse_args()
    if given.only:
        curve(given.only, given.rounds)
        return
    for kind in ("shtypes", "plain JAX"):
        subprocess.run([sys.executable, __file__, "--only", kind, "--rounds", str(given.rounds)], check=True)


if __name__ == "__main__":
    main()
