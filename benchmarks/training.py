"""What a training step costs that is typed, written in JAX's explicit mode, and written by hand in one `jax.shard_map`.

    python benchmarks/training.py                          # everything, several minutes
    python benchmarks/training.py --only accumulation      # one part: one, dp, dp_tp or accumulation
    python benchmarks/training.py --only accumulation --rows 32
    python benchmarks/training.py --quick --json           # small sizes, machine-readable

The step is that of the decoder of `examples/transformer`: loss, gradients and Adam, on one device, on ``dp=8`` and on
``dp=2, tp=4``. Under "partial" each gradient is summed once, after the backward pass; under "jax", as in explicit
mode, in each layer. In ``accumulation`` gradients are summed over microbatches: pending ones are sent once for each
step, those of explicit mode once for each layer and microbatch. Shown are the collectives of the compiled program,
those that it runs with the trips of loops multiplied, the bytes that each device sends, memory, and the time to compile
and to run, as ratios within rounds in which the variants take turns. All variants compute the same, or it stops.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
from rich.console import Console
from rich.table import Table

import shtypes as sh
from benchmarks.measure import hlo, steps, timing
from benchmarks.measure.steps import Variant
from benchmarks.models import decoder, microbatch
from benchmarks.models.common import same
from benchmarks.overhead import environment
from examples.transformer.layouts import layout

LAYOUTS: Final = ("one", "dp", "dp_tp")
PARTS: Final = (*LAYOUTS, "accumulation")


class Part(NamedTuple):
    """What is compared on one mesh.

    Attributes:
        config: The sizes.
        variants: Ways to write the step; the hand-written one of each policy is what ratios are to.
        results: What of a step's results all variants must agree in.
        expected: These results, of one device.
    """

    config: Any
    variants: list[Variant]
    results: Callable[[Any], Any]
    expected: Any


def by_hand(policy: str, *, again: bool = False) -> Variant:
    """The decoder in one `jax.shard_map`; ``again`` with `jax.checkpoint` around what is cheap."""
    build = functools.partial(decoder.by_hand, policy=policy, again=again)
    return Variant("checkpointed" if again else "shard_map", policy, jax.jit, build)


@functools.cache
def _decoder(config: Any) -> Part:
    variants = [
        Variant("shtypes", "partial", sh.jit, decoder.typed),
        by_hand("partial"),
        by_hand("partial", again=True),
    ]
    variants += [Variant("shtypes", "jax", sh.jit, decoder.typed), by_hand("jax")]
    variants += [Variant("explicit", "jax", jax.jit, decoder.explicit)]

    def results(found: Any) -> Any:  # Adam's first moment is a tenth of the gradient
        return found[2], found[1][0].mu

    with layout("one").use() as mesh:
        program = decoder.by_hand(config, mesh, "partial")
        return Part(config, variants, results, steps.host(results(jax.jit(program.step)(*program.args))))


def _accumulation(config: Any) -> Part:
    variants = [Variant("shtypes", "partial", sh.jit, microbatch.typed)]
    variants += [Variant("shard_map", "partial", jax.jit, microbatch.by_hand)]
    variants += [Variant("shtypes", "jax", sh.jit, microbatch.typed)]
    variants += [Variant("explicit", "jax", jax.jit, microbatch.explicit)]
    return Part(config, variants, same, steps.host(jax.jit(microbatch.plain_step())(*microbatch.data(config))))


def collect(
    parts: tuple[str, ...] = PARTS,
    *,
    quick: bool = False,
    builds: int = 3,
    rounds: int | None = None,
    rows: int = microbatch.Config().batch,
) -> dict[str, Any]:
    """Measures some parts.

    Args:
        parts: Which.
        quick: Small models: to see that it runs, and what is sent.
        builds: How often each variant is compiled.
        rounds: How often the variants take turns to run; by default 2 if quick, else 30.
        rows: Those of a microbatch in "accumulation", of all devices.
    """
    found: dict[str, Any] = {"environment": environment()}
    for name in parts:
        accumulates = name == "accumulation"
        if accumulates:
            part = _accumulation(microbatch.TINY if quick else microbatch.Config(batch=rows))
        else:
            part = _decoder(decoder.TINY if quick else decoder.Config())
        with layout("dp" if accumulates else name).use() as mesh:
            found[name] = measure(part, mesh, builds=builds, rounds=(2 if quick else 30) if rounds is None else rounds)
    return found


def measure(part: Part, mesh: Any, *, builds: int, rounds: int) -> dict[str, Any]:
    """Builds and runs each variant of a part.

    Args:
        part: The variants.
        mesh: The mesh.
        builds: How often to build each once more, timed.
        rounds: How often they take turns to run, timed.

    Returns:
        For each, under ``"<name>, <policy>"``: what the compiled program contains, what it runs (``"executed"``), bytes
        of ``"memory"``, milliseconds to compile and to run, and the relative error against one device.
    """
    results: dict[str, Any] = {}
    running: dict[str, Callable[[], Any]] = {}
    built: dict[str, timing.Samples] = {}
    ran: dict[str, timing.Samples] = {}
    for variant in part.variants:
        key = f"{variant.name}, {variant.policy}"
        results[key], running[key] = _first(variant, part, mesh)
        if rounds:
            jax.block_until_ready(running[key]())
    for _ in range(builds):
        for variant in part.variants:
            stages, _, _ = steps.build(variant, part.config, mesh)
            built.setdefault(f"{variant.name}, {variant.policy}", []).append(timing.total(stages.values()))
    for i in range(rounds):
        for key in (running, reversed(running))[i % 2]:
            with timing.without_gc():
                ran.setdefault(key, []).append(timing.until_done(running[key], 3))
    explicit = next(key for key in running if key.startswith("explicit"))
    for what, samples in {"build": built, "run": ran}.items():
        for key, spent in samples.items():
            hand = f"shard_map, {key.split(', ')[1]}"
            results[key][what] = timing.summary(spent) | _ratios(samples, key, hand, explicit)
    return results


def _ratios(samples: dict[str, timing.Samples], key: str, hand: str, explicit: str) -> dict[str, Any]:
    """Quartiles of the rounds' ratios, to the hand-written variant of the policy and to explicit mode."""
    found: dict[str, Any] = {}
    for name, base in {"of_shard_map": hand, "of_explicit": explicit}.items():
        if base in samples:
            rounds = list(zip(samples[key], samples[base], strict=True))
            found[name] = {
                "wall": _quartiles([a.wall / b.wall for a, b in rounds]),
                "cpu": _quartiles([a.cpu / b.cpu for a, b in rounds]),
            }
    return found


def _quartiles(found: list[float]) -> list[float]:
    return statistics.quantiles(found, method="inclusive") if len(found) > 1 else found * 3


def _first(variant: Variant, part: Part, mesh: Any) -> tuple[dict[str, Any], Callable[[], Any]]:
    """What a variant compiles to and computes, and a call of it."""
    _, lowered, compiled = steps.build(variant, part.config, mesh)
    facts, memory = hlo.facts(lowered, compiled), compiled.memory_analysis()
    facts["executed"] = hlo.executed(compiled.as_text())
    facts["memory"] = {
        "temporary": int(memory.temp_size_in_bytes),
        "peak": int(memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes),
    }
    with sh.policy(variant.policy):
        program = variant.build(part.config, mesh)
        facts["error"] = steps.largest_error(steps.host(part.results(compiled(*program.args))), part.expected)
    if not facts["error"] < steps.TOLERANCE:  # also when it is not a number
        raise AssertionError(f"{variant.name} under {variant.policy} is off by {facts['error']}")
    jitted = variant.jit(program.step)

    def run() -> Any:
        with sh.policy(variant.policy):
            return jitted(*program.args)

    return facts, run


# tables


def _collectives(found: dict[str, dict[str, int]], count: str) -> str:
    return ", ".join(f"{row[count]} {kind}" for kind, row in found.items()) or "none"


def program_table(name: str, found: dict[str, Any]) -> Table:
    """What is sent, and memory."""
    table = Table(title=f"{name}: collectives of a step and memory of a device", title_justify="left")
    for heading in ("variant", "compiled", "launched", "arrays"):
        table.add_column(heading)
    for heading in ("kB sent", "temporary kB", "peak kB", "error"):
        table.add_column(heading, justify="right")
    for key, entry in found.items():
        executed = entry["executed"]
        calls = [_collectives(entry["collectives"], "count"), _collectives(executed, "launches")]
        sent = sum(row["bytes"] for row in executed.values())
        sizes = [f"{size / 1e3:.0f}" for size in (sent, entry["memory"]["temporary"], entry["memory"]["peak"])]
        table.add_row(key, *calls, str(sum(r["arrays"] for r in executed.values())), *sizes, f"{entry['error']:.0e}")
    return table


def time_table(name: str, found: dict[str, Any]) -> Table:
    """Milliseconds to compile and to run, with the quartiles of ratios."""
    table = Table(
        title=f"{name}: ms by the clock; ratios: median (quartiles) / of processor time", title_justify="left"
    )
    table.add_column("variant")
    for heading in ("compile", "/hand", "/explicit", "step", "least", "/hand", "/explicit"):
        table.add_column(heading, justify="right")
    for key, entry in found.items():
        cells = []
        for what in ("build", "run"):
            numbers = entry[what]
            cells += [f"{numbers['median_ms']:.1f}"] + ([f"{numbers['min_ms']:.1f}"] if what == "run" else [])
            cells += [_spread(numbers.get(base)) for base in ("of_shard_map", "of_explicit")]
        table.add_row(key, *cells)
    return table


def _spread(ratios: dict[str, list[float]] | None) -> str:
    """The median and the quartiles by the clock, and the median of processor time."""
    if ratios is None:
        return ""
    low, middle, high = ratios["wall"]
    return f"{middle:.2f} ({low:.2f} to {high:.2f}) / {ratios['cpu'][1]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="a part to measure; may be repeated")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    parser.add_argument("--builds", type=int, default=3, help="how often to compile each variant")
    parser.add_argument("--rounds", type=int, help="how often the variants take turns to run")
    parser.add_argument("--rows", type=int, default=microbatch.Config().batch, help="of a microbatch in accumulation")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    times = {"builds": options.builds, "rounds": options.rounds}
    found = collect(tuple(options.only or PARTS), quick=options.quick, rows=options.rows, **times)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(", ".join(f"{key} {value}" for key, value in found.pop("environment").items()))
    for name, part in found.items():
        console.print(program_table(name, part))
        if options.builds and options.rounds != 0:
            console.print(time_table(name, part))


if __name__ == "__main__":
    main()
