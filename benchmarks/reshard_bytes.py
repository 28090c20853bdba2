"""Bytes that reshards send: this planner's plans against a lower bound and against XLA's own partitioner.

Every pair of types without pending sums, 4096 elements of f32 (64x64; 4096; 16x16x16), ring model, busiest device.

    python benchmarks/reshard_bytes.py             # plans only, no JAX needed
    python benchmarks/reshard_bytes.py --xla 100   # and compile that many sampled pairs of each set with jax.reshard

The stored XLA numbers are of jax 0.10.2 on eight CPU devices, all pairs: ``jit(lambda x: jax.reshard(x, dst))`` on an
explicit mesh, collectives read from the optimized HLO. The bound is what the device that lacks most must receive.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA warns of each array that it replicates on the way

from shtypes.plans import plan
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from tests.plans import simulate

SHAPES = {1: (4096,), 2: (64, 64), 3: (16, 16, 16)}
#: Mesh sizes, rank, then of XLA: geometric mean and largest of bytes over the bound (None: not measured on all pairs).
SETS: list[tuple[tuple[int, ...], int, float | None, float | None]] = [
    ((2, 2), 1, 1.000, 1.0),
    ((2, 2), 2, 1.256, 3.0),
    ((2, 2), 3, 1.447, 4.0),
    ((2, 4), 1, 1.000, 1.0),
    ((2, 4), 2, 1.317, 4.0),
    ((2, 4), 3, 1.560, 8.0),
    ((2, 2, 2), 1, 1.000, 1.0),
    ((2, 2, 2), 2, 1.530, 12.0),
    ((2, 2, 2), 3, None, None),
]


def bound(src: ShType, dst: ShType) -> int:
    """Bytes of its new shard that some device does not hold yet."""
    worst = 0
    for device in simulate.devices(src.mesh):
        sides = list(zip(simulate.own_slice(src, device), simulate.own_slice(dst, device), strict=True))
        both = math.prod(max(0, min(a.stop, b.stop) - max(a.start, b.start)) for a, b in sides)
        worst = max(worst, math.prod(b.stop - b.start for _, b in sides) - both)
    return 4 * worst


def geomean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def xla_bytes(src: ShType, dst: ShType) -> int:
    """What XLA's partitioner sends for the same pair."""
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from tests.lowering.hlo import collectives

    names = src.mesh.axis_names
    mesh = jax.make_mesh(src.mesh.axis_sizes, names, axis_types=(AxisType.Explicit,) * len(names))
    here, there = (NamedSharding(mesh, PartitionSpec(*(d.axes or None for d in t.dims))) for t in (src, dst))
    x = jax.ShapeDtypeStruct(src.shape, "float32", sharding=here)
    text = jax.jit(lambda x: jax.reshard(x, there)).lower(x).compile().as_text()
    found = collectives(text)
    return sum(size * found[kind, size] for kind, size in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xla", type=int, default=0, metavar="N", help="compile N sampled pairs of each set with XLA")
    count = parser.parse_args().xla
    print("mesh   rank  pairs      bytes  launches   us/plan  ours/bound (max)   XLA/bound (max), stored", end="")
    print("   XLA/ours (max), measured" if count else "")
    for sizes, rank, mean, most in SETS:
        mesh = Mesh(dict(zip("xyz", sizes, strict=False)))
        types = simulate.all_types(mesh, SHAPES[rank], "R")
        pairs = [(a, b) for a in types for b in types if a != b]
        start = time.perf_counter()
        plans = [plan(a, b) for a, b in pairs]
        spent = (time.perf_counter() - start) / len(pairs) * 1e6
        ratios = [p.bytes / low for p, (a, b) in zip(plans, pairs, strict=True) if (low := bound(a, b))]
        stored = f"{mean:.3f} ({most:g})" if mean is not None and most is not None else "-"
        line = f"{'x'.join(map(str, sizes)):6} {rank:4} {len(pairs):6} {sum(p.bytes for p in plans):10} "
        line += f"{sum(p.launches for p in plans) / len(plans):9.2f} {spent:9.0f}  "
        line += f"{geomean(ratios):.3f} ({max(ratios):.2f})       {stored:14}"
        if count:
            sample = random.Random(0).sample(pairs, min(count, len(pairs)))
            versus = [xla_bytes(a, b) / plan(a, b).bytes for a, b in sample if plan(a, b).bytes]
            line += f"            {geomean(versus):.3f} ({max(versus):g}, least {min(versus):.2f})"
        print(line, flush=True)


if __name__ == "__main__":
    main()
