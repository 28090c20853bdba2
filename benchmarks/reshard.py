"""Reshards against XLA's own: bytes of all pairs of types, the time that they take, and the time to plan them.

Bytes are per device, in the ring model, of the busiest device. The bound is what must be sent whatever is done: without
pending sums, what the device that lacks most must receive; with them, the messages that join the terms of each element
and tell its holders (the first device that has all ``k`` terms took a message from each other term, and each further
holder takes one), and one word for each element that a device wants, axes that stay pending taken one index at a time.
XLA's side is ``jit(lambda x: jax.reshard(x, sharding))`` on an explicit mesh, its collectives read from the optimized
HLO.

    python benchmarks/reshard.py                       # plans and bounds; needs no devices
    python benchmarks/reshard.py --xla 100             # compile so many sampled pairs of each set; 0 for all
    python benchmarks/reshard.py --clock 80            # run so many pairs of 16 MiB on eight CPU devices, alternated
    python benchmarks/reshard.py --large 200           # plan so many pairs on each larger mesh
    python benchmarks/reshard.py --large 20 --xla 1    # compile these with XLA, too, for devices that are not there
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# As many devices as the largest mesh has, where programs are compiled and not run.
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={256 if '--large' in sys.argv else 8}")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA warns of each array that it replicates on the way

from shtypes.resharding import plan
from shtypes.types import Dim, ShType, State
from shtypes.types.mesh import Mesh
from tests.resharding import simulate

Pair = tuple[ShType, ShType]

SHAPES = {1: (4096,), 2: (64, 64), 3: (16, 16, 16)}
CLOCKED = {1: (4_194_304,), 2: (2048, 2048), 3: (256, 128, 128)}
SETS = [((2, 2), 1), ((2, 2), 2), ((2, 4), 1), ((2, 4), 2), ((2, 2, 2), 1), ((2, 2, 2), 2), ((2, 2, 2), 3)]
LARGE = [(4, 4), (8, 8), (16, 16), (4, 4, 4), (2,) * 4, (2,) * 5, (2,) * 6, (4, 4, 4, 4), (8, 4, 4, 2)]
#: Kinds of pairs on which an earlier planner was slower than XLA by the clock.
SLOW = [
    ("[_@x, _@y]", "[_, _]"), ("[_@(x,y), _@z]", "[_, _]"), ("[_, _@(x,y,z)]", "[_, _]"), ("[_@x, _@(y,z)]", "[_, _]"),
    ("[_@(x,y,z), _]", "[_, _@(x,y,z)]"), ("[_@x, _@y]", "[_@(y,x,z), _]"), ("[_@(x,y), _@z]", "[_@z, _@(x,y)]"),
    ("[_@(z,y), _@x]", "[_@x, _@(y,z)]"), ("[_@(x,y,z), _]", "[_@(z,y,x), _]"), ("[_@(y,z,x), _]", "[_@x, _@(z,y)]"),
]  # fmt: skip


def pairs_of(sizes: tuple[int, ...], rank: int, sums: bool) -> list[Pair]:
    """Every pair of types of a shape; with ``sums``, those with sums pending at the start, some of them at the end."""
    mesh = Mesh(dict(zip("xyz", sizes, strict=False)))
    types = simulate.all_types(mesh, SHAPES[rank], "RU" if sums else "R")
    pending = {t: set(t.axes(State.UNREDUCED)) for t in types}
    return [
        (a, b) for a in types for b in types if a != b and bool(pending[a]) == sums and pending[b] <= pending[a]
    ]  # fmt: skip


def bound(src: ShType, dst: ShType) -> float:
    """Bytes that must be sent."""
    small = math.prod(src.mesh.axis_sizes)
    small_src, small_dst = (_of_shape(t, (small,) * t.ndim) for t in (src, dst))
    scale = src.size * 4 / small_src.size
    return scale * _words(small_src, small_dst)


def _of_shape(t: ShType, shape: tuple[int, ...]) -> ShType:
    return t.replace(dims=[Dim(n, d.axes) for n, d in zip(shape, t.dims, strict=True)])


def _words(src: ShType, dst: ShType) -> float:
    mesh = src.mesh
    everyone = simulate.devices(mesh)
    kept = [i for i, a in enumerate(mesh.axis_names) if dst.state(a) is State.UNREDUCED]
    terms = [i for i, a in enumerate(mesh.axis_names) if src.state(a) is State.UNREDUCED and i not in kept]
    holds = [{d for d in everyone if _holds(src, d, e)} for e in _elements(src)]
    wants = [{d for d in everyone if _holds(dst, d, e)} for e in _elements(src)]
    if not terms:
        lacking = {d: sum(d in w and d not in h for h, w in zip(holds, wants, strict=True)) for d in everyone}
        return max(lacking.values())
    messages, wanted = 0, 0
    for h, w in zip(holds, wants, strict=True):
        for at in itertools.product(*(range(mesh.axis_sizes[i]) for i in kept)):
            here = {d for d in h if all(d[i] == k for i, k in zip(kept, at, strict=True))}
            there = {d for d in w if all(d[i] == k for i, k in zip(kept, at, strict=True))}
            groups = {tuple(d[i] for i in terms) for d in here}
            messages += len(there) - 1 + len(groups) - bool(here & there)
            wanted += len(there)
    return max(messages, wanted) / mesh.size


def _elements(t: ShType) -> Iterable[tuple[int, ...]]:
    return itertools.product(*map(range, t.shape))


def _holds(t: ShType, device: tuple[int, ...], element: tuple[int, ...]) -> bool:
    return all(s.start <= i < s.stop for s, i in zip(simulate.own_slice(t, device), element, strict=True))


def geomean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def sampled(pairs: list[Pair], count: int) -> list[Pair]:
    return random.Random(0).sample(pairs, count) if 0 < count < len(pairs) else pairs


def sharding(mesh: Any, t: ShType) -> Any:
    """The type as XLA sees it."""
    from jax.sharding import NamedSharding, PartitionSpec

    dims = [d.axes or None for d in t.dims]
    pending = {*t.axes(State.UNREDUCED)}
    return NamedSharding(mesh, PartitionSpec(*dims, unreduced=pending) if pending else PartitionSpec(*dims))


def explicit_mesh(mesh: Mesh) -> Any:
    """The mesh on which JAX reshards."""
    import jax
    from jax.sharding import AxisType

    kinds = (AxisType.Explicit,) * len(mesh.axis_names)
    return jax.make_mesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds, devices=jax.devices()[: mesh.size])


def native(src: ShType, dst: ShType) -> Callable[[Any], Any]:
    """The reshard as JAX has it."""
    import jax

    there = sharding(explicit_mesh(src.mesh), dst)
    return jax.jit(lambda x: jax.reshard(x, there))


def xla_bytes(src: ShType, dst: ShType) -> int:
    """What XLA's partitioner sends for the same pair."""
    import jax

    from tests.core.hlo import collectives

    x = jax.ShapeDtypeStruct(src.shape, "float32", sharding=sharding(explicit_mesh(src.mesh), src))
    compiled: Any = native(src, dst)
    found = collectives(compiled.lower(x).compile().as_text())
    return sum(size * found[kind, size] for kind, size in found)


def sets(xla: int | None) -> None:
    """All pairs of each set: bytes against the bound, and against XLA's."""
    print("mesh   rank sums  pairs      bytes launches  us/plan (p99)  ours/bound (max)", end="")
    print("" if xla is None else "  XLA/ours (least, most)  above XLA")
    total: dict[bool, list[float]] = {False: [], True: []}
    for (sizes, rank), sums in itertools.product(SETS, (False, True)):
        pairs = pairs_of(sizes, rank, sums)
        if rank == 3 and len(sizes) == 3:
            pairs = sampled(pairs, 2000)
        spent, plans = [], []
        for src, dst in pairs:
            start = time.perf_counter()
            plans.append(plan(src, dst))
            spent.append((time.perf_counter() - start) * 1e6)
        measured = sampled(pairs, 500)
        ratios = [plan(a, b).bytes / low for a, b in measured if (low := bound(a, b)) and plan(a, b).bytes]
        spent.sort()
        line = f"{'x'.join(map(str, sizes)):6} {rank:4} {'U' if sums else '-':>4} {len(pairs):6} "
        line += f"{sum(p.bytes for p in plans):10} {sum(p.launches for p in plans) / len(plans):8.2f} "
        line += f"{statistics.median(spent):8.0f} ({spent[int(len(spent) * 0.99)]:.0f})   "
        line += f"{geomean(ratios):.3f} ({max(ratios):.2f})    "
        if xla is not None:
            versus = [(xla_bytes(a, b), plan(a, b).bytes) for a, b in sampled(pairs, xla)]
            total[sums] += [theirs / ours for theirs, ours in versus if ours and theirs]
            line += f"   {_against(versus)}"
        print(line, flush=True)
    for sums, found in total.items():
        if found:
            print(f"XLA/ours, {'with' if sums else 'without'} pending sums, of those that send: {geomean(found):.4f}")


def clock(count: int) -> None:
    """Random pairs and the slow kinds by the clock, one run of each side after the other."""
    mesh = Mesh({"x": 2, "y": 2, "z": 2})
    types = simulate.all_types(mesh, CLOCKED[2], "R")
    dice = random.Random(7)
    pairs: list[Pair] = []
    while len(pairs) < count:
        a, b = dice.choice(types), dice.choice(types)
        if plan(a, b).communicates:
            pairs.append((a, b))
    like = types[0]
    pairs += [(ShType.parse(a, like=like), ShType.parse(b, like=like)) for a, b in SLOW]
    ratios = []
    for src, dst in pairs:
        ours, theirs, memory = timed(src, dst)
        ratios.append(theirs / ours)
        line = f"{theirs / ours:5.2f}  {theirs * 1e3:6.1f} {ours * 1e3:6.1f} ms  temporaries {memory:.2f}  "
        print(f"{line}{src} -> {dst}: {plan(src, dst)}", flush=True)
    for name, found in (("random", ratios[:count]), ("slow kinds", ratios[count:])):
        low = sum(r < 0.95 for r in found)
        if found:
            print(f"{name}: XLA/ours {geomean(found):.3f}, least {min(found):.2f}, {low} of {len(found)} below 0.95")


def timed(src: ShType, dst: ShType, budget: float = 1.0) -> tuple[float, float, float]:
    """Seconds of ours and of XLA's, and our temporaries as a part of the larger of both types.

    Both move the same buffers. They take turns, and so does who goes first; the times are medians of as many rounds as
    fit in ``budget`` seconds.
    """
    import jax
    import numpy as np

    import shtypes as sh

    theirs: Any = native(src, dst)
    with sh.use_mesh(sh.make_mesh(dict(src.mesh.shape))):
        y = sh.array(np.random.default_rng(0).random(src.shape, np.float32), src)
        x = jax.device_put(y.data, sharding(explicit_mesh(src.mesh), src))
        ours: Any = sh.jit(lambda y: sh.reshard(y, dst))

        def seconds(f: Any, given: Any) -> float:
            start = time.perf_counter()
            jax.block_until_ready(f(given))
            return time.perf_counter() - start

        found: dict[str, list[float]] = {"ours": [], "theirs": []}
        np.testing.assert_array_equal(np.asarray(ours(y)), np.asarray(theirs(x)))
        rounds = itertools.count()
        end = time.perf_counter() + budget
        while (k := next(rounds)) < 11 or time.perf_counter() < end:
            for name, f, given in sorted([("ours", ours, y), ("theirs", theirs, x)], reverse=bool(k % 2)):
                found[name].append(seconds(f, given))
        memory = ours.lower(y).compile().memory_analysis().temp_size_in_bytes
    largest = max(src.local_bytes, dst.local_bytes)
    return statistics.median(found["ours"][2:]), statistics.median(found["theirs"][2:]), memory / largest


def large(count: int, xla: bool) -> None:
    """Planning on larger meshes: the time, and bytes against the bound that the planner knows, and against XLA's."""
    from shtypes.resharding import least_bytes

    compiler = Compiler()
    print("mesh        rank sums   bytes/bound   ms median (p99)" + "   XLA/ours (least, most)  above XLA" * xla)
    for sizes, rank, sums in itertools.product(LARGE, (1, 2, 3, 4), (False, True)):
        dice = random.Random(0)
        mesh = Mesh({f"a{i}": n for i, n in enumerate(sizes)})
        ratios, spent, versus, crashed = [], [], [], 0
        for _ in range(count):
            src, dst = (any_type(mesh, rank, dice, sums and k == 0) for k in range(2))
            start = time.perf_counter()
            found = plan(src, dst)
            spent.append((time.perf_counter() - start) * 1e3)
            low = least_bytes(src, dst)
            if low and found.bytes:
                ratios.append(found.bytes / low)
            if xla and src != dst:
                theirs = compiler.bytes(src, dst)
                crashed += theirs is None
                versus += [] if theirs is None else [(theirs, found.bytes)]
        spent.sort()
        line = f"{'x'.join(map(str, sizes)):12} {rank:3} {'U' if sums else '-':>4} {geomean(ratios):10.3f}"
        line += f"     {statistics.median(spent):6.2f} ({spent[int(len(spent) * 0.99)]:.0f})"
        line += f"   {_against(versus)}" if xla else ""
        print(line + (f"; XLA crashed on {crashed}" if crashed else ""), flush=True)


class Compiler:
    """XLA in a process of its own: on some pairs it ends the process."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def bytes(self, src: ShType, dst: ShType) -> int | None:
        """What XLA sends; None where it crashes."""
        self._pool = self._pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            return self._pool.submit(xla_bytes, src, dst).result()
        except BrokenProcessPool:
            self._pool = None
            return None


def _against(versus: list[tuple[int, int]]) -> str:
    """XLA's bytes as a multiple of ours, and how often ours are more."""
    found = [theirs / ours for theirs, ours in versus if ours and theirs] or [1.0]
    above = sum(ours > theirs for theirs, ours in versus)
    return f"{geomean(found):.3f} ({min(found):.2f}, {max(found):.2f})   {above} of {len(versus)}"


def any_type(mesh: Mesh, rank: int, dice: random.Random, sums: bool) -> ShType:
    """A random type: each axis on a dim, replicated, or pending."""
    dims: list[tuple[str, ...]] = [()] * rank
    states = {}
    for axis in dice.sample(mesh.axis_names, len(mesh.axis_names)):
        k = dice.randrange(rank + 1 + sums)
        if k < rank:
            dims[k] += (axis,)
        else:
            states[axis] = State.REDUCED if k == rank else State.UNREDUCED
    return ShType(mesh, "f32", [Dim(4 * mesh.size, axes) for axes in dims], states)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xla", type=int, metavar="N", help="compile N sampled pairs of each set with XLA; 0 for all")
    parser.add_argument("--clock", type=int, default=0, metavar="N", help="run N random pairs of 16 MiB")
    parser.add_argument("--large", type=int, default=0, metavar="N", help="plan N pairs on each larger mesh")
    given = parser.parse_args()
    if given.clock:
        clock(given.clock)
    elif given.large:
        large(given.large, given.xla is not None)
    else:
        sets(given.xla)


if __name__ == "__main__":
    main()
