"""What functions of the host raise leaves the program on each device, and none waits for another.

Each program runs in a process of its own: one that waits is ended by XLA, and takes the process along.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import shtypes as sh
from tests.end_to_end import some

_START: Final = """
import contextlib
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
from jax import lax
import shtypes as sh

sh.set_mesh(sh.make_mesh({"x": 2, "y": 2}))
whole, sharded = (sh.array(np.arange(8.0, dtype=np.float32), t) for t in ("f32[8]", "f32[8@x]"))

def check(v):
    if v.max() > 3:
        raise ValueError("too large")
    return v

def by_equinox(x):
    return eqx.error_if(x, jnp.any(x > 3), "too large")

def by_callback(x):
    return jax.pure_callback(check, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

def by_debug(x):
    jax.debug.callback(check, x)
    return x

def by_typed_debug(x):
    sh.debug.callback(check, x)
    return x

def in_a_loop(x):
    return lax.fori_loop(0, 3, lambda i, c: by_equinox(c) + 1, x)

def lifted(f):
    return lambda x: sh.lift(lambda x: jnp.sin(f(x)))(x)

def in_local_mode(f):
    return sh.shard_map(lambda x: lax.psum(f(x) * 2, "x"), in_specs=jax.P("x"), out_specs=jax.P())

def gradient(f):
    return lambda x: sh.grad(lambda x: sh.all_reduce(sh.sum(lifted(f)(x) ** 2)))(x)

def forgotten():  # JAX keeps the failed effect of a device until the device has another one
    with contextlib.suppress(Exception):
        jax.effects_barrier()  # of the devices that were not the first
    effect = lambda x: jax.debug.callback(lambda x: None, x)
    jax.jit(jax.shard_map(effect, in_specs=jax.P(), out_specs=None))(jnp.zeros(4))

for name, (run, x) in PROGRAMS.items():
    try:
        jax.block_until_ready(run(x))
        jax.effects_barrier()
        print(name, "went on", flush=True)
    except Exception as error:
        print(name, "raised" if "too large" in str(error) else repr(error), flush=True)
        forgotten()
    small = x * 0
    try:
        jax.block_until_ready(run(small))
        jax.effects_barrier()
        print(name, "runs", flush=True)
    except Exception as error:
        print(name, "is left with", repr(error), flush=True)
"""
_PROGRAMS: Final = {
    "equinox, by JAX's jit": "(jax.jit(lifted(by_equinox)), whole)",
    "equinox, lifted": "(lifted(by_equinox), whole)",
    "equinox, compiled": "(sh.jit(lifted(by_equinox)), whole)",
    "equinox, in the gradient": "(sh.jit(gradient(by_equinox)), whole)",
    "equinox, in a loop": "(sh.jit(lifted(in_a_loop)), whole)",
    "equinox, on some devices": "(in_local_mode(by_equinox), sharded)",
    "callback, lifted": "(sh.jit(lifted(by_callback)), whole)",
    "callback, on some devices": "(sh.jit(in_local_mode(by_callback)), sharded)",
    "debug, lifted": "(sh.jit(lambda x: sh.all_reduce(sh.sum(lifted(by_debug)(x)))), sharded)",
    "debug, on some devices": "(sh.jit(in_local_mode(by_debug)), sharded)",
    "debug of types, on some devices": "(sh.jit(in_local_mode(by_typed_debug)), sharded)",
    "debug of types, eager": "(in_local_mode(by_typed_debug), sharded)",
}


#: One in nine by default.
_CHOSEN: Final = dict(list(_PROGRAMS.items())[:: some(9, 1)])


@functools.cache
def _said() -> list[str]:
    """What a process prints that runs the programs one after the other."""
    listed = ", ".join(f"{name!r}: {program}" for name, program in _CHOSEN.items())
    code = _START.replace("for name, (run, x) in PROGRAMS", f"PROGRAMS = {{{listed}}}\nfor name, (run, x) in PROGRAMS")
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(sh.__file__).parents[1]), env.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    return run.stdout.splitlines()


@pytest.mark.nightly
@pytest.mark.parametrize("name", _CHOSEN)
def test_what_the_host_raises_leaves_the_program_on_each_device(name: str) -> None:
    raised, *after = [line for line in _said() if line.startswith(f"{name} ")]
    assert raised == f"{name} raised"
    if "JAX" not in name:  # whose own programs leave their errors to the next barrier, too
        assert after == [f"{name} runs"]
