"""Training in several processes, which goes on where it was when one of them dies.

Each process loads its own rows of a batch and has a part of each weight that is sharded; `jax.distributed` connects
them. The program is the one of a single process: a mesh over all devices, types, and a step.

    python -m examples.multiprocess                      # two processes of four CPU devices, started from here
    srun --ntasks=2 python -m examples.multiprocess --joined --folder FOLDER     # or by a cluster that JAX knows

docs/processes.md has the lines for other clusters.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from typing import Annotated as A
from typing import Any, TypedDict

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp  # type: ignore[import-untyped]

import shtypes as sh

VOCAB, HIDDEN, INNER, BATCH, SEQ = 256, 16, 32, 8, 16
EMBEDDING = f"f32[vocab={VOCAB}@tp, hidden={HIDDEN}]"
UP = f"f32[hidden={HIDDEN}, inner={INNER}@tp]"
DOWN = f"f32[inner={INNER}@tp, hidden={HIDDEN}]"
TOKENS = f"i32[batch={BATCH}@dp, seq={SEQ + 1}]"

Tokens = A[sh.Array, "i32[batch@dp, seq]"]


class Weights(TypedDict):
    """What is trained."""

    embedding: A[sh.Array, EMBEDDING]
    up: A[sh.Array, UP]
    down: A[sh.Array, DOWN]


def init() -> Weights:
    """Weights, sampled alike on every mesh."""
    one, two, three = sh.random.split(sh.random.key(0), 3)
    return {
        "embedding": sh.random.normal(one, EMBEDDING) / 4,
        "up": sh.random.normal(two, UP) / 4,
        "down": sh.random.normal(three, DOWN) / 4,
    }


def loss(weights: Weights, tokens: Tokens) -> A[sh.Array, "f32[]{U:dp, I:tp}"]:
    """The mean cross entropy of the next byte: a pending sum over ``dp``."""
    x = sh.reshard(sh.nn.embedding(weights["embedding"], tokens[:, :-1]), "[batch@dp, seq, hidden]")
    x = x + sh.reshard(sh.silu(x @ weights["up"]) @ weights["down"], "[batch@dp, seq, hidden]")
    logits = sh.einsum("bsh,vh->bsv", x, weights["embedding"])
    return sh.mean(sh.nn.cross_entropy(logits, tokens[:, 1:], out="[batch@dp, seq]{I:tp}"))


def batches(first: int) -> Iterator[np.ndarray[Any, Any]]:
    """This process's rows of each batch from number ``first`` on: bytes of a source of the standard library."""
    source = pathlib.Path(sysconfig.get_path("stdlib"), "argparse.py").read_bytes()
    text = np.frombuffer(source, np.uint8).astype(np.int32)
    mine = range(BATCH)[sh.addressable_slices(TOKENS)[0]]
    for step in range(first, sys.maxsize):
        starts = np.random.default_rng(step).integers(0, len(text) - SEQ, BATCH)  # alike in all processes
        yield np.stack([text[starts[row] : starts[row] + SEQ + 1] for row in mine])


def train(folder: str, steps: int, every: int, dp: int) -> None:
    """Trains, from the last checkpoint if there is one; process 0 writes the losses, in full, to ``losses.txt``."""
    sh.set_mesh(sh.make_mesh({"dp": dp, "tp": len(jax.devices()) // dp}))
    optimizer = sh.optim.lift(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)), pending="finish")

    def step(weights: Weights, state: Any, tokens: Tokens) -> tuple[Weights, Any, A[sh.Array, "f32[]{I:tp}"]]:
        value, gradients = sh.value_and_grad(loss)(weights, tokens)
        updates, state = optimizer.update(gradients, state, weights)
        return sh.optim.apply_updates(weights, updates), state, sh.all_reduce(value)

    weights = sh.jit(init)()
    state = optimizer.init(weights)
    kept = ocp.CheckpointManager(pathlib.Path(folder, "checkpoints").absolute())
    done = kept.latest_step() or 0
    if done:
        weights, state = kept.restore(done, args=ocp.args.StandardRestore((weights, state)))
    run = sh.jit(step, donate_argnums=(0, 1))
    tokens = sh.prefetch_to_device(batches(done), TOKENS)
    while done < steps:
        weights, state, value = run(weights, state, next(tokens))
        done += 1
        if jax.process_index() == 0:
            with pathlib.Path(folder, "losses.txt").open("a") as log:
                print(done, float(value).hex(), file=log)
        if done % every == 0:
            kept.save(done, args=ocp.args.StandardSave((weights, state)))
            kept.wait_until_finished()
    kept.close()


def join() -> None:
    """Connects this process with the others: as the environment says, or as the cluster does that JAX finds."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if "COORDINATOR" in os.environ:
        jax.distributed.initialize(
            os.environ["COORDINATOR"],
            int(os.environ["PROCESSES"]),
            int(os.environ["PROCESS"]),
            heartbeat_timeout_seconds=20,  # so long after its death is a process missed that no collective misses
        )
    else:
        jax.distributed.initialize()


def launch(processes: int, command: list[str]) -> bool:
    """Runs a command in some processes; False if one of them died, once the others are ended too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        around = {**os.environ, "COORDINATOR": f"127.0.0.1:{free.getsockname()[1]}", "PROCESSES": str(processes)}
    started = [subprocess.Popen(command, env={**around, "PROCESS": str(i)}) for i in range(processes)]
    print(*(f"process {i} has pid {process.pid}" for i, process in enumerate(started)), sep="\n", flush=True)
    try:
        while True:
            codes = [process.poll() for process in started]
            died = [i for i, code in enumerate(codes) if code]  # neither running nor ended well
            if died:
                print(f"process {died[0]} of {processes} died", flush=True)
            if died or None not in codes:
                return not died
            time.sleep(0.1)
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> None:
    """Starts the processes, and all of them anew when one dies; or is one of them."""
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--processes", type=int, default=2)
    read.add_argument("--dp", type=int, default=2, help="over how many devices the batch is split")
    read.add_argument("--steps", type=int, default=20)
    read.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    read.add_argument("--folder", help="where checkpoints and losses are; one that is there is gone on with")
    read.add_argument("--restarts", type=int, default=3, help="how often to start anew when a process dies")
    read.add_argument("--joined", action="store_true", help="be one of the processes, which something else starts")
    asked = read.parse_args()
    if asked.joined:
        if asked.folder is None:
            read.error("--joined needs a --folder that all processes see")
        join()
        train(asked.folder, asked.steps, asked.every, asked.dp)
        return
    folder = asked.folder or tempfile.mkdtemp()
    given = {"--folder": folder, "--steps": asked.steps, "--every": asked.every, "--dp": asked.dp}
    command = [
        sys.executable,
        "-m",
        "examples.multiprocess",
        "--joined",
        *(str(a) for pair in given.items() for a in pair),
    ]
    for _ in range(1 + asked.restarts):
        if launch(asked.processes, command):
            break
        print("starting again from the last checkpoint", flush=True)
    else:
        sys.exit("it died too often")
    last = dict(line.split() for line in pathlib.Path(folder, "losses.txt").read_text().splitlines())
    print("\n".join(f"step {step}: loss {float.fromhex(value):.4f}" for step, value in last.items()))


if __name__ == "__main__":
    main()
