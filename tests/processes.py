"""Programs in several processes on CPU devices, as JAX's own runtime runs them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

#: What each program starts with: which process it is, and where the others are.
START = """
import os, sys
sys.stdout = open(os.environ["PRINTED"] + os.environ["PROCESS"], "w")  # gloo writes to the other one, within lines
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(os.environ["COORDINATOR"], int(os.environ["PROCESSES"]), int(os.environ["PROCESS"]))
import numpy as np
import shtypes as sh
process = jax.process_index()
def told(f, *args, **kwargs):
    try:
        print(f(*args, **kwargs))
    except sh.ShardingTypeError as error:
        print(error.what)
"""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run_processes(program: str, folder: Path, count: int = 2, devices: int = 4) -> list[list[str]]:
    """Runs a program in several processes, and returns the lines that each printed.

    Args:
        program: Python, after `START`.
        folder: Where they may write.
        count: How many processes.
        devices: The CPU devices of each.
    """
    around = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu", "PROCESSES": str(count)}
    around["COORDINATOR"] = f"127.0.0.1:{free_port()}"
    around["PRINTED"] = f"{folder}/printed"
    command = [sys.executable, "-c", START + program]
    started = [
        subprocess.Popen(
            command, env={**around, "PROCESS": str(i)}, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for i in range(count)
    ]
    try:
        ended = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, ended, strict=True):
        assert process.returncode == 0, errors[-4000:]
    return [Path(f"{around['PRINTED']}{i}").read_text().splitlines() for i in range(count)]
