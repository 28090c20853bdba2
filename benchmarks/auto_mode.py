"""What `sh.suggest` finds, against JAX's auto mode with the annotations that people write: bytes, work and time.

    python benchmarks/auto_mode.py                   # ten models, several minutes
    python benchmarks/auto_mode.py --only GPT --rounds 0

Each model is one function in plain JAX, its loss and gradients on ``dp=2, tp=4`` of eight CPU devices, the gradients in
the types of the weights. XLA partitions it for nine configurations: types of the weights and the data, as data
parallelism, Megatron, FSDP and their combinations have them.

Bytes are what each device sends by the compiled program, in the ring model; work is XLA's count of operations on a
device. `sh.suggest` is asked twice, and is told no types of weights. For the quickest step, by what a device and a link
of such a machine do: `bytes` compares it with the configuration that sends least of those with at most a fifth more
work, and `clock` with the quickest of all nine, of programs that take turns; the two are timed once more, since what
is quickest by chance is not so again. And for the fewest bytes, with the data
where the configuration has them that sends least of all nine, since no configuration pays for how data come: `all`
compares these two, and `its work` is that configuration's to that of the plan.
"""

from __future__ import annotations

import argparse
import inspect
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shtypes as sh
from benchmarks.measure import timing
from shtypes.types.tables import aligned
from tests.core.hlo import collectives
from tests.solver import models

MESH: Final = {"dp": 2, "tp": 4}
#: About what each of eight devices on two cores does.
DEVICE: Final = sh.Device({"f32": 10e9}, 2e9)
LINK: Final = sh.Link(0.9e9, launch=1e-4)
#: Where nothing but bytes counts.
BYTES: Final[dict[str, Any]] = {"links": sh.Link(1e9), "compute": sh.Device({"f32": 1e21}, 1e21)}
#: How much more work than what was found a configuration may do, to be compared by bytes.
MORE_WORK: Final = 1.2
TOLERANCE: Final = 1e-4

#: Which dim of a weight tensor parallelism shards, by the end of its path.
GPT: Final = {"q": 1, "k": 1, "v": 1, "o": 0, "up": 1, "down": 0, "embed": 1, "head": 1}
MLP: Final = {"up": 1, "down": 0}
EXPERTS: Final = {"up": 0, "down": 0}
CONVOLUTIONS: Final = {"kernels/0": 0, "kernels/1": 1, "dense/0": 1, "dense/1": 0}


class Model(NamedTuple):
    """A function, shapes of its weights and data, and the dims that tensor parallelism shards."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    tensor: dict[str, int]


def gpt(d: int, f: int, heads: int = 8, batch: int = 16, seq: int = 64, vocab: int = 1024) -> Model:
    """A decoder of two layers."""
    return Model(models.gpt_loss, models.gpt(2, batch, seq, d, heads, d // heads, f, vocab, scanned=False), GPT)


MODELS: Final[dict[str, Model]] = {
    "GPT, d=64": gpt(64, 256),
    "GPT, d=256": gpt(256, 1024),
    "GPT, d=256, f=4096": gpt(256, 4096),
    "GPT, d=256, 32 heads": gpt(256, 1024, heads=32),
    "GPT, vocabulary 16384": gpt(128, 512, vocab=16384),
    "MLP, many rows": Model(models.mlp_loss, models.mlp(8192, 128, 512), MLP),
    "MLP, few rows": Model(models.mlp_loss, models.mlp(64, 512, 2048), MLP),
    "convolutions": Model(models.convolutions_loss, models.convolutions(64, 8, 32, 512), CONVOLUTIONS),
    "experts": Model(models.experts_loss, models.experts(512, 128, 512, 8), EXPERTS),
    "experts with capacity": Model(models.capacity_loss, models.capacity(16, 64, 128, 1024, 8), EXPERTS),
}


class Configuration(NamedTuple):
    """What people annotate: the axes of the rows of data, of the tensor-parallel dims of weights, of another dim."""

    data: tuple[str, ...]
    tensor: tuple[str, ...]
    fsdp: tuple[str, ...]
    positions: tuple[str, ...] = ()


DP, TP, BOTH = ("dp",), ("tp",), ("dp", "tp")
CONFIGURATIONS: Final = {
    "data": Configuration(BOTH, (), ()),
    "data over dp": Configuration(DP, (), ()),
    "Megatron": Configuration(DP, TP, ()),
    "Megatron over all": Configuration((), BOTH, ()),
    "FSDP": Configuration(BOTH, (), BOTH),
    "FSDP over dp": Configuration(DP, (), DP),
    "hybrid FSDP": Configuration(BOTH, (), TP),
    "FSDP x TP": Configuration(DP, TP, DP),
    "Megatron, positions": Configuration(DP, TP, (), TP),
}


class Step(NamedTuple):
    """A compiled step with its arguments, what each device sends and does, and what it computes."""

    run: Callable[[], Any]
    sent: int
    work: float


def _step(jitted: Any, args: Any) -> Step:
    compiled = jitted.lower(*args).compile()
    sent = sum(size * times for (_, size), times in collectives(compiled.as_text()).items())
    return Step(lambda: compiled(*args), sent, compiled.cost_analysis()["flops"])


def auto(model: Model, values: Any, to: Configuration, mesh: Any) -> Step:
    """The step that XLA makes of a configuration."""

    def weight(path: Any, x: Any) -> P:
        dims: list[Any] = [None] * x.ndim
        name = models_path(path)
        which = next((d for end, d in model.tensor.items() if name.endswith(end)), None)
        if to.tensor and which is not None and x.shape[which] % size(to.tensor) == 0:
            dims[which] = to.tensor
        free = [i for i, n in enumerate(x.shape) if to.fsdp and dims[i] is None and n % size(to.fsdp) == 0]
        if free:
            dims[free[0]] = to.fsdp
        return P(*dims)

    specs = jax.tree_util.tree_map_with_path(weight, values[0]), *(P(*data_axes(to, x)) for x in values[1:])
    shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, P))
    jitted = jax.jit(jax.value_and_grad(model.f), in_shardings=shardings, out_shardings=(None, shardings[0]))
    return _step(jitted, jax.tree.map(jax.device_put, values, shardings))


def models_path(path: Any) -> str:
    """The path of a weight: ``layers/0/up``."""
    return "/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)


def size(axes: tuple[str, ...]) -> int:
    """How many devices there are along some axes."""
    return len(jax.devices()) if axes == BOTH else MESH[axes[0]]


def data_axes(to: Configuration, x: Any) -> list[tuple[str, ...] | None]:
    """The axes of the dims of an array of data that a configuration shards."""
    positions = [to.positions] if x.ndim > 1 and to.positions and x.shape[1] % size(to.positions) == 0 else []
    return [to.data or None, *positions]


def data_types(model: Model, to: Configuration) -> dict[str, str]:
    """The types of the data in a configuration, by parameter."""
    _, *names = inspect.signature(model.f).parameters
    dims = [[f"_@({','.join(axes)})" if axes else "_" for axes in data_axes(to, x)] for x in model.args[1:]]
    return {name: f"[{', '.join(d)}, ...]" for name, d in zip(names, dims, strict=True)}


def found(model: Model, values: Any, mesh: Any, **options: Any) -> Step:
    """The step in the types that are found."""
    plan = sh.suggest(model.f, *model.args, mesh=MESH, **options)[0]
    with sh.use_mesh(mesh):
        return _step(sh.jit(sh.train_step(sh.apply(model.f, plan))), jax.tree.map(sh.array, values, plan.arguments))


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference of two results, relative to the largest element of each array."""
    arrays = ([x.to_jax() if isinstance(x, sh.Array) else x for x in jax.tree.leaves(r)] for r in (ours, theirs))
    return max(
        float(abs(a - b).max() / (abs(b).max() + 1e-30)) for a, b in zip(*map(jax.device_get, arrays), strict=True)
    )


def rows(only: str, rounds: int) -> Iterator[tuple[str, float, float, float, tuple[str, ...]]]:
    """For each model, the ratios and a line of the table."""
    axes = jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=(AxisType.Auto,) * len(MESH))
    for name, model in MODELS.items():
        if only not in name:
            continue
        values = models.arrays(model.args)
        ours = found(model, values, sh.make_mesh(MESH), links=LINK, compute=DEVICE)
        theirs = {key: auto(model, values, to, axes) for key, to in CONFIGURATIONS.items()}
        fair = {key: s for key, s in theirs.items() if s.work <= MORE_WORK * ours.work}
        best, least = (min(some, key=lambda k: some[k].sent, default="") for some in (fair, theirs))
        inputs = data_types(model, CONFIGURATIONS[least])
        fewest = found(model, values, sh.make_mesh(MESH), inputs=inputs, **BYTES)
        for step in (fewest, *theirs.values()):
            if difference(ours.run(), step.run()) > TOLERANCE:
                raise SystemExit(f"{name}: the two compute different gradients")
        took: dict[str, list[timing.Spent]] = {key: [] for key in ("", *theirs)}
        for _ in range(rounds):
            for key, each in took.items():
                each.append(timing.until_done((ours if not key else theirs[key]).run, 3))
        quickest = min(theirs, key=lambda k: statistics.median(s.wall for s in took[k])) if rounds else ""
        again: dict[str, list[timing.Spent]] = {"": [], quickest: []}  # the least of nine is too low by chance
        for _ in range(2 * rounds):
            for key, each in again.items():
                each.append(timing.until_done((ours if not key else theirs[key]).run, 3))
        clock = timing.ratio(again[""], again[quickest])["wall"] if rounds else float("nan")
        by_bytes = ours.sent / theirs[best].sent if best else float("nan")
        cells = (name, f"{ours.sent / 1e3:,.0f}", f"{theirs[best].sent / 1e3:,.0f}" if best else "-", best)
        of_all = fewest.sent / max(theirs[least].sent, 1)
        work = theirs[least].work / fewest.work
        more = (f"{by_bytes:.2f}", f"{of_all:.2f}", least, f"{work:.1f}", f"{clock:.2f}", quickest)
        yield name, by_bytes, of_all, clock, (*cells, *more)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose names have this in them")
    parser.add_argument("--rounds", type=int, default=5, help="0 for no times")
    options = parser.parse_args()
    every = list(rows(options.only, options.rounds))
    headings = (
        "model",
        "found kB",
        "best kB",
        "configuration",
        "bytes",
        "all",
        "of all",
        "its work",
        "clock",
        "quickest",
    )
    right = {"found kB", "best kB", "bytes", "all", "its work", "clock"}
    print(*aligned(headings, [cells for *_, cells in every], right), sep="\n")
    print(f"geometric mean of bytes: {timing.geometric_mean(row[1] for row in every):.2f}")
    print(f"geometric mean of all: {timing.geometric_mean(row[2] for row in every):.2f}")
    print(f"geometric mean of clock: {timing.geometric_mean(row[3] for row in every):.2f}")


if __name__ == "__main__":
    main()
