"""What it costs to lift a plain program: against the same model written in `sh`, and against JAX's own trace.

A training step of a transformer of 24 layers. The compiled programs are compared by their operations, on eight CPU
devices; typing by processor time, against plain JAX, which traces the same step for one device. Single calls outside of
`jit`, which run as one compiled program, are timed against the typed functions of the same names.

    python benchmarks/lift.py
    python benchmarks/lift.py --layers 96 --rounds 5
"""

from __future__ import annotations

import argparse
import collections
import functools
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

SHOWN = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "dot", "fusion")


def counts(step: Callable[..., Any], args: Any) -> dict[str, int]:
    """How many operations of each kind the compiled program has, those of loops once."""
    import shtypes as sh

    text = sh.jit(step).lower(*args).compile().as_text()
    found = collections.Counter(re.findall(r"= \S+ ([a-z-]+)\(", text))
    return {name: found[name] for name in SHOWN}


def compiled(layers: int) -> dict[str, dict[str, int]]:
    """The operations of the step written in `sh`, and of the plain one, lifted."""
    import shtypes as sh
    from benchmarks.models import transformer

    config = transformer.Config(layers=layers, batch=8, seq=16, hidden=32, heads=4, inter=64)
    mesh = sh.make_mesh({"dp": 2, "tp": 4})
    with sh.use_mesh(mesh):
        program = transformer.typed(config, mesh)
        steps = {"sh": program.step, "lift": transformer.lifted_step(config)}
        return {name: counts(step, program.args) for name, step in steps.items()}


#: Owner typing is timed, by name.
TYPED = ("plain", "sh", "lift", "plain loss", "lift loss")


def typing(layers: int, rounds: int, names: Sequence[str] = TYPED) -> dict[str, float]:
    """Processor seconds to type the step and its loss, written and lifted, and to trace them in plain JAX: least."""
    import jax

    import shtypes as sh
    from benchmarks.models import transformer

    mesh = sh.abstract_mesh({"dp": 8, "tp": 8})
    config = transformer.Config(layers=layers, batch=8, seq=2048, hidden=512, heads=8, inter=2048)
    program = transformer.only_types(config, mesh)
    plain = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), program.args)
    steps: dict[str, tuple[Callable[..., Callable[..., Any]], Any]] = {
        "plain": (transformer.plain_step, plain),
        "sh": (transformer.typed_step, program.args),
        "lift": (transformer.lifted_step, program.args),
        "plain loss": (transformer.plain_loss, plain),
        "lift loss": (transformer.lifted_loss, program.args),
    }
    found = collections.defaultdict(list)
    for _ in range(rounds):
        for name in names:
            step, args = steps[name]
            jax.clear_caches()
            with sh.use_mesh(mesh):
                traced = step(config)
                start = time.process_time()
                jax.make_jaxpr(traced)(*args)
                found[name].append(time.process_time() - start)
    return {name: min(times) for name, times in found.items()}


def first(layers: int, rounds: int) -> dict[str, float]:
    """The same where nothing was traced before: each in a new process."""
    found = collections.defaultdict(list)
    for _ in range(rounds):
        for name in TYPED:
            command = [sys.executable, __file__, "--layers", str(layers), "--first", name]
            child = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name].append(float(child.stdout))
    return {name: min(times) for name, times in found.items()}


def eager(rounds: int) -> dict[str, tuple[float, float]]:
    """Microseconds of a call outside of `jit`: the typed function, and JAX's own, lifted. Medians."""
    import jax
    import jax.numpy as jnp

    import shtypes as sh

    found = {}
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})):
        x = sh.ones("f32[8@dp, 16]")
        for name in ("exp", "var", "median", "ptp", "trapezoid", "rot90", "append"):
            operands = (x, x) if name == "append" else (x,)
            axis = {"axis": 1} if name in ("var", "median", "ptp", "append") else {}
            calls = [functools.partial(f, **axis) for f in (getattr(sh, name), sh.lift(getattr(jnp, name)))]
            times: list[list[float]] = [[], []]
            for turn in range(rounds):
                for call, took in zip(calls, times, strict=True):
                    start = time.perf_counter()
                    jax.block_until_ready(call(*operands))
                    took += [time.perf_counter() - start] if turn > 2 else []
            found[name] = (1e6 * statistics.median(times[0]), 1e6 * statistics.median(times[1]))
    return found


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--first", choices=TYPED, help="only this, once, in seconds")
    options = parser.parse_args()
    if options.first:
        print(typing(options.layers, 1, [options.first])[options.first])
        return
    print("compiled  " + "".join(f"{name:>16}" for name in SHOWN))
    for name, row in compiled(options.layers).items():
        print(f"{name:10}" + "".join(f"{row[kind]:16}" for kind in SHOWN))
    again, once = typing(options.layers, options.rounds), first(options.layers, options.rounds)
    print("\ntyped in      seconds   of plain JAX's   first in a process   of plain JAX's")
    for name in TYPED:
        plain = "plain loss" if name.endswith("loss") else "plain"
        print(f"{name:10} {again[name]:10.3f} {again[name] / again[plain]:16.2f}", end="")
        print(f" {once[name]:20.3f} {once[name] / once[plain]:16.2f}")
    print("\ncalled        typed, us   lifted, us    ratio")
    for name, (typed, lifted) in eager(200).items():
        print(f"{name:10} {typed:12.0f} {lifted:12.0f} {lifted / typed:8.2f}")


if __name__ == "__main__":
    main()
