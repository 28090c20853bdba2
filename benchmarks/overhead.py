"""What shtypes costs: to build, to run, to call and eagerly, against JAX's explicit mode and hand-written shard_map.

    python benchmarks/overhead.py                     # everything, a few minutes
    python benchmarks/overhead.py --only eager        # one part: gated_mlp, transformer, calls or eager
    python benchmarks/overhead.py --quick --json      # small sizes, machine-readable

Variants take turns in every round, in one process. Ratios are medians of the rounds' ratios: by the clock, then of
processor time. What each number means is in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
from rich.console import Console
from rich.table import Table

import shtypes as sh
from benchmarks.measure import dispatch, steps
from benchmarks.models import gated_mlp, transformer

MODELS: Final = {"gated_mlp": gated_mlp, "transformer": transformer}
PARTS: Final = (*MODELS, "calls", "eager")


def environment() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "devices": f"{jax.device_count()} {jax.devices()[0].platform}",
    }


def collect(parts: tuple[str, ...] = PARTS, *, quick: bool = False, rounds: int | None = None) -> dict[str, Any]:
    """Measures some parts.

    Args:
        parts: Which.
        quick: Small models, few arguments and few rounds: to see that it runs.
        rounds: How often to repeat; by default 2 if quick, else 5 (steps) or 15 (calls and operations).
    """
    mesh = sh.make_mesh({"dp": 2, "tp": 4})
    found: dict[str, Any] = {"environment": environment()}
    with sh.use_mesh(mesh):
        for part in parts:
            if part in MODELS:
                model = MODELS[part]
                config = model.TINY if quick else model.Config()
                times = {"rounds": rounds or (2 if quick else 5), "repeats": 2 if quick else 5}
                found[part] = {"config": config._asdict(), **steps.measure(model, config, mesh, **times)}
                continue
            times = {"rounds": rounds or (2 if quick else 15), "repeats": 3 if quick else 20}
            if part == "calls":
                one = sh.make_mesh({"dp": 1, "tp": 1}, devices=jax.devices()[:1])
                for name, m in {"8 devices": mesh, "1 device": one}.items():
                    with sh.use_mesh(m):
                        calls = dispatch.many_arguments(m, count=5 if quick else 500, **times)
                    found.setdefault(part, {}).update({f"{name}, {kind}": entry for kind, entry in calls.items()})
            else:
                found[part] = dispatch.eager(mesh, **times)
    return found


# tables


def _ratio(value: dict[str, float] | None) -> str:
    return "" if value is None else f"{value['wall']:.2f} {value['cpu']:.2f}"


def build_table(name: str, found: dict[str, Any]) -> Table:
    """Seconds to build and milliseconds to run."""
    table = Table(
        title=f"{name}: build (ms, median) and run (ms, median and least)", title_justify="left", caption_justify="left"
    )
    table.add_column("policy")
    table.add_column("variant")
    for heading in ("trace", "lower", "compile", "total", "/hand", "/explicit", "run", "least", "/hand"):
        table.add_column(heading, justify="right")
    for policy in ("partial", "jax"):
        for variant, entry in found[policy].items():
            if "unsupported" in entry:
                table.caption = f"JAX cannot run {variant} under {policy}: {entry['unsupported']}"
                continue
            build, run = entry["build"], entry["run"]
            stages = [f"{build[s]['median_ms']:.0f}" for s in (*steps.STAGES, "total")]
            versus = [_ratio(build.get("of_shard_map")), _ratio(build.get("of_explicit"))]
            ran = [f"{run['median_ms']:.1f}", f"{run['min_ms']:.1f}", _ratio(run["of_shard_map"])]
            table.add_row(policy, variant, *stages, *versus, *ran)
        table.add_section()
    return table


def program_table(name: str, found: dict[str, Any]) -> Table:
    """What the compiled programs contain."""
    table = Table(title=f"{name}: compiled program", title_justify="left")
    for heading in ("policy", "variant", "collectives: count (operands, kB)"):
        table.add_column(heading)
    for heading in ("dots", "fusions", "copies", "temp MB", "StableHLO kB", "error"):
        table.add_column(heading, justify="right")
    for policy in ("partial", "jax"):
        for variant, entry in found[policy].items():
            if "unsupported" in entry:
                continue
            moved = ", ".join(
                f"{c['count']} {kind} ({c['operands']}, {c['bytes'] / 1e3:.0f})"
                for kind, c in entry["collectives"].items()
            )
            counts = [str(entry[key]) for key in ("dots", "fusions", "copies")]
            temp = "" if entry["temp_bytes"] is None else f"{entry['temp_bytes'] / 1e6:.2f}"
            text = f"{entry['stablehlo_bytes'] / 1e3:.0f}"
            table.add_row(policy, variant, moved, *counts, temp, text, f"{entry['error']:.0e}")
        table.add_section()
    return table


def calls_table(found: dict[str, Any]) -> Table:
    """Jitted calls with many arguments."""
    table = Table(title="jitted call with many arguments: ms until it returns", title_justify="left")
    for heading in ("results", "variant", "median", "least", "/hand"):
        table.add_column(heading, justify="left" if heading in ("results", "variant") else "right")
    for name, kinds in found.items():
        for kind, entry in kinds.items():
            numbers = f"{entry['median_ms']:.2f}", f"{entry['min_ms']:.2f}", _ratio(entry["of_shard_map"])
            table.add_row(name, kind, *numbers)
        table.add_section()
    return table


def eager_table(found: dict[str, Any]) -> Table:
    """Eager operations."""
    table = Table(title="eager operations: µs until the result is there", title_justify="left")
    for heading in ("operation", "shtypes", "least", "native", "least", "/native"):
        table.add_column(heading, justify="left" if heading == "operation" else "right")
    for name, entry in found["ops"].items():
        numbers = [f"{entry[side][k] * 1e3:.0f}" for side in ("shtypes", "native") for k in ("median_ms", "min_ms")]
        table.add_row(name, *numbers, _ratio(entry["of_native"]))
    table.add_section()
    table.add_row("geometric mean", "", "", "", "", _ratio(found["geometric_mean"]))
    return table


def tables(found: dict[str, Any]) -> list[Table]:
    """All results as tables."""
    shown = []
    for name in MODELS:
        if name in found:
            shown += [build_table(name, found[name]), program_table(name, found[name])]
    if "calls" in found:
        shown.append(calls_table(found["calls"]))
    if "eager" in found:
        shown.append(eager_table(found["eager"]))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="a part to measure; may be repeated")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    parser.add_argument("--rounds", type=int, help="how often to repeat")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    found = collect(tuple(options.only or PARTS), quick=options.quick, rounds=options.rounds)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(", ".join(f"{key} {value}" for key, value in found["environment"].items()))
    for table in tables(found):
        console.print(table)


if __name__ == "__main__":
    main()
