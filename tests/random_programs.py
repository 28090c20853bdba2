"""Random typed programs, and what must hold of each: it means what the same text means in plain JAX on one device.

A program is a list of named expressions in ``m``, which is `shtypes` or plain JAX. Generating one types each expression
as it goes: what is refused stays in the program as a refusal, which must come again wherever the program runs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

import shtypes as sh
from shtypes.core.array import wrap
from shtypes.core.jax_type import as_jax_type
from shtypes.core.physical import physical_sharding
from tests import random_ops as random_ops  # registers the ops
from tests.random_choices import OPS, Choices, NothingFits, Value, chances, evaluated, typed_step
from tests.random_choices import Step as Step
from tests.random_plain import CONSTANTS
from tests.random_plain import PLAIN as PLAIN

MESHES: tuple[dict[str, int], ...] = (
    {"x": 2},
    {"x": 4},
    {"x": 2, "y": 2},
    {"x": 2, "y": 4},
    {"x": 2, "y": 2, "z": 2},
    {"x": 1, "y": 2},
)
SIZES = (1, 4, 8)
POLICIES = ("partial", "jax")


@dataclass(frozen=True)
class Program:
    """A program and its inputs.

    Attributes:
        mesh: Sizes of the mesh axes.
        policy: The policy it is traced under.
        inputs: Host array and type text by name.
        steps: The expressions, in order.
        label: Says where it comes from.
        nudge: How far rounding could have moved the inputs.
        implicit: Whether it runs inside `implicit_comm`.
    """

    mesh: Mapping[str, int]
    policy: str
    inputs: Mapping[str, tuple[Any, str]]
    steps: tuple[Step, ...]
    label: str = ""
    nudge: float = 3e-7
    implicit: bool = False

    @functools.cached_property
    def accepted(self) -> tuple[Step, ...]:
        return tuple(s for s in self.steps if not s.refused)

    def values(
        self,
        m: Any,
        inputs: Mapping[str, Any],
        *,
        refusals: bool = False,
        rounded: Callable[[Any], Any] = lambda x: x,
    ) -> dict[str, Any]:
        """Every value of the program; with ``refusals``, the refused steps are tried as well.

        Args:
            m: `shtypes`, or what stands for it.
            inputs: The operands.
            refusals: Whether to try refused steps.
            rounded: What is done to the result of each step.
        """
        with sh.implicit_comm() if self.implicit and m is sh else contextlib.nullcontext():
            return self._values(m, inputs, refusals, rounded)

    def _values(
        self, m: Any, inputs: Mapping[str, Any], refusals: bool, rounded: Callable[[Any], Any]
    ) -> dict[str, Any]:
        env: dict[str, Any] = {**CONSTANTS, **inputs, "m": m}
        found = {}
        for step in self.steps:
            if not step.refused:
                env[step.name] = found[step.name] = rounded(evaluated(step, env))
            elif refusals:
                try:
                    evaluated(step, env)
                except sh.ShardingTypeError:
                    continue
                raise AssertionError(f"{step.text} was refused when the program was generated, and is taken here")
        return found

    def __str__(self) -> str:
        lines = [
            *("import jax, jax.numpy as jnp, numpy as np", 'jax.config.update("jax_num_cpu_devices", 8)'),
            *("import shtypes as sh", "from tests.random_programs import *", "globals().update(CONSTANTS)"),
            *(f"sh.set_policy({self.policy!r}); sh.set_mesh(sh.make_mesh({dict(self.mesh)!r}))", "m = sh"),
            *(
                f"{name} = spread(np.asarray({_shown(array)}, {str(array.dtype)!r}).reshape({array.shape}), {text!r})"
                for name, (array, text) in self.inputs.items()
            ),
            *(f"{s.name} = {s.text}" if not s.refused else f"# refused: {s.text}" for s in self.steps),
        ]
        return "\n".join(lines)


def _shown(array: Any) -> str:
    return repr([float(f"{x:.9g}") if array.dtype.kind == "f" else x.item() for x in array.ravel()])


def spread(array: Any, text: str) -> Any:
    """A typed value whose pending sums are really spread: no device holds the value, and none holds zeros."""
    t = as_jax_type(sh.abstract_array(text, shape=array.shape, dtype=str(array.dtype)).type)
    sizes = [t.mesh.shape[a] for a in t.axes(sh.State.UNREDUCED)]
    count = int(np.prod(sizes, dtype=int))
    rng = np.random.default_rng(3)
    parts = rng.integers(1, 16, (*array.shape, count)) / (1 if array.dtype.kind in "iu" else 8)
    if array.dtype.kind not in "iu":  # of both signs, so that sums of them are not much larger than they are
        parts *= rng.choice((-1.0, 1.0), parts.shape)
    parts = parts.astype(array.dtype)  # wraps, for unsigned ones
    parts[..., -1] = array - parts[..., :-1].sum(-1, dtype=array.dtype)
    return wrap(t, jax.device_put(parts.reshape((*array.shape, *sizes)), physical_sharding(t)))


# generating


def _eighths(array: Any) -> Any:
    return np.round(array * 8) / np.asarray(8, array.dtype)


def _fails_in_xla(texts: Sequence[str]) -> bool:
    """XLA for the CPU fails on transforms of what LAPACK lays out by columns, on one device too."""
    return all(any(name in text for text in texts) for name in ("fft.", "linalg."))


def generate_program(
    seed: int,
    *,
    steps: tuple[int, int] = (5, 30),
    mesh: Mapping[str, int] | None = None,
    policy: str | None = None,
    favour: Sequence[str] = (),
    implicit: bool = False,
) -> Program:
    """The program of a seed, on a given mesh and policy or on any; one in ten computes in bf16, and is short.

    ``implicit`` programs are typed inside `implicit_comm`.
    ``favour`` names families of ops (files of `tests.random_ops`, or functions in them) that most steps are made from.
    """
    rng = np.random.default_rng(seed)
    any_mesh, any_policy = MESHES[int(rng.integers(len(MESHES)))], POLICIES[int(rng.integers(2))]
    mesh, policy = mesh or any_mesh, policy or any_policy
    typed = sh.make_mesh(mesh)
    inputs: dict[str, tuple[Any, str]] = {}
    pool: list[Value] = []
    with sh.policy(policy), sh.use_mesh(typed):
        chooser = Choices(rng, typed, [])
        common = tuple(chooser.one(SIZES) for _ in range(3))
        for i in range(int(rng.integers(2, 5))):
            shape = (
                common[int(rng.integers(4)) :]
                if chooser.flip(0.7)
                else tuple(chooser.one(SIZES) for _ in range(chooser.one(range(4))))
            )
            array = rng.integers(-8, 9, shape) / 8 if chooser.flip(0.4) else rng.uniform(-1, 1, shape)
            inputs[f"x{i}"] = np.asarray(array, np.float32), chooser.type(shape)
        shape = common[1:] if chooser.flip() else (4,)
        kind = chooser.one([np.int32, np.int32, np.int8, np.uint8])
        inputs["n0"] = np.asarray(rng.integers(0 if kind is np.uint8 else -3, 6, shape), kind), chooser.type(shape)
        low = chooser.flip(0.1)
        if low:  # terms of a sum would lose bits
            inputs = {
                n: (_eighths(x), t.replace("U:", "R:")) if n[0] == "x" else (x, t) for n, (x, t) in inputs.items()
            }
            steps = min(steps[0], 3), min(steps[1], 8)
        for name, (array, text) in inputs.items():
            pool.append(Value(name, sh.abstract_array(text, shape=array.shape, dtype=str(array.dtype)).type, 1.0))
        generated: list[Step] = []
        for i, v in enumerate(pool):
            if low and v.kind == "f":
                generated.append(Step(f"low_{v.name}", f"m.astype({v.name}, 'bf16')"))
                pool[i] = Value(generated[-1].name, v.type.replace(dtype="bf16"), v.bound)
        wanted = int(rng.integers(steps[0], steps[1] + 1))
        weights = chances(favour)
        tries = 0
        while wanted and tries < 150:
            tries += 1
            generate = OPS[int(rng.choice(len(OPS), p=weights))][1]
            try:
                text, bound = generate(Choices(rng, typed, pool))
            except NothingFits:
                continue
            if bound > 4:
                scale = 2.0 ** -np.ceil(np.log2(bound / 2))
                text, bound = f"({text}) * {scale}", bound * scale
            if _fails_in_xla([*(s.text for s in generated), text]):
                continue
            step = Step(f"v{len(generated)}", text)
            with sh.implicit_comm() if implicit else contextlib.nullcontext():
                found = typed_step(step, pool, quiet=tries % 8 > 0)
            if found is None:
                generated.append(replace(step, refused=True))
                continue
            if not hasattr(found, "dims") or found.size > 2048:
                continue
            if low and found.dtype_name == "f32":  # in JAX perhaps a weak one, which typed values never are
                continue
            generated.append(step)
            pool.append(Value(step.name, found, float(bound)))
            wanted -= 1
    precision = {"nudge": 4e-3} if low else {}
    return Program(mesh, policy, inputs, tuple(generated), f"seed {seed}", implicit=implicit, **precision)
