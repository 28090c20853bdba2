"""What must hold of a random program when it runs, and the smallest program for which it does not."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shtypes as sh
from tests import tolerance
from tests.compiling import compiled
from tests.denotation import denoted as denoted
from tests.random_programs import PLAIN, Program, spread

#: A chain in narrow floats may be long; what is as far off as this is looked at in any case.
SAYS_SOMETHING = 0.06
COLLECTIVE = re.compile(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def _floats(program: Program) -> list[str]:
    return [name for name, (array, _) in program.inputs.items() if array.dtype.kind == "f"]


def _weights(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    n = int(np.prod(shape, dtype=int))
    return np.asarray(np.cos(np.arange(n) * 1.7 + 1) + 1.25, np.float32).reshape(shape)


def _scalar(m: Any, values: Mapping[str, Any]) -> Any:
    """A weighted sum of all floats of a program; typed, it is unreduced on every axis, which is free."""
    parts = []
    for value in values.values():
        if jnp.issubdtype(value.dtype, jnp.floating):
            part = m.sum(value * _weights(value.shape))
            if m is sh:
                t = jax.typeof(part)
                part = sh.reshard(part, t.replace(states=dict.fromkeys(t.mesh.axis_names, sh.State.UNREDUCED)))
            parts.append(part)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def outcome(program: Program, m: Any, inputs: Mapping[str, Any], **options: Any) -> tuple[Any, dict[str, Any]]:
    """All values of a program, and the gradients of its scalar by its float inputs."""
    names = _floats(program)

    def loss(*parts: Any) -> Any:
        values = program.values(m, {**inputs, **dict(zip(names, parts, strict=True))}, **options)
        mine = {f"in {n}": p for n, p in zip(names, parts, strict=True)}
        return _scalar(m, {**values, **mine}), values

    grad = sh.grad if m is sh else jax.grad
    grads, values = grad(loss, argnums=tuple(range(len(names))), has_aux=True)(*[inputs[n] for n in names])
    return values, dict(zip(names, grads, strict=True))


def _references(programs: Sequence[Program], *, nudge: int = 0) -> tuple[list[Any], list[Any]]:
    """The outcomes on one device, and how far rounding takes each; all numbers moved by rounding: each up or
    down by chance where ``nudge`` is 1, and the other way where it is -1."""
    rng = np.random.default_rng(1)

    def moved_by(by: float, x: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        return x * np.asarray(1 + nudge * by * rng.choice((-1.0, 1.0), x.shape), np.float32).astype(x.dtype)

    inputs: list[dict[str, Any]] = []
    for program in programs:
        given = {}
        for name, (array, _) in program.inputs.items():
            by = nudge * program.nudge if array.dtype.kind == "f" else 0
            moved = by * rng.choice((-1.0, 1.0), array.shape) if by else 0
            given[name] = jnp.asarray((array + moved).astype(array.dtype))
        inputs.append(given)

    def run(all_inputs: Any) -> Any:
        rounded = [{"rounded": functools.partial(moved_by, p.nudge)} if nudge else {} for p in programs]
        return [outcome(p, PLAIN, x, **r) for p, x, r in zip(programs, all_inputs, rounded, strict=True)]

    return tolerance.computed(run, inputs)


class Context:
    """The mesh and policy of a program."""

    def __init__(self, program: Program) -> None:
        self.program, self.mesh = program, sh.make_mesh(program.mesh)

    def __enter__(self) -> None:
        self.scopes = (sh.policy(self.program.policy), sh.use_mesh(self.mesh))
        for scope in self.scopes:
            scope.__enter__()

    def __exit__(self, *error: Any) -> None:
        for scope in reversed(self.scopes):
            scope.__exit__(*error)


def check(program: Program, mode: str = "region") -> None:
    """Runs a program and compares it with one device.

    Args:
        program: The program.
        mode: ``"region"`` (`sh.jit`), ``"per op"`` (`jax.jit`) or ``"eager"``.
    """
    check_together([program], mode)


def check_together(programs: Sequence[Program], mode: str = "region") -> None:
    """Runs programs of one mesh and policy, compiled together, which is quicker than one by one."""
    programs = [p for p in programs if p.accepted]
    if not programs:
        return
    wanted, errors = _references(programs)
    with Context(programs[0]):
        inputs = [{name: spread(array, text) for name, (array, text) in p.inputs.items()} for p in programs]

        def run(given: Any) -> Any:
            return [outcome(p, sh, x, refusals=True) for p, x in zip(programs, given, strict=True)]

        if mode == "eager":
            found = run(inputs)
        elif mode == "per op":
            found = jax.jit(run)(inputs)
        else:
            jitted = sh.jit(run)
            program = compiled(jitted.lower(inputs))
            _check_collectives(sh.ledger(jitted, inputs), program.as_text() or "")
            found = program(inputs)
        jax.block_until_ready(found)
        for program, given, mine, *reference in zip(programs, inputs, found, wanted, errors, strict=True):
            _compare(program, given, mine, *reference)


def _check_collectives(ledger: Any, text: str) -> None:
    """A compiled program has no kind of collective that its ledger has not; none, where that is empty."""
    listed = {entry.kind for entry in ledger if entry.launches}
    made = {"permute" if k == "collective-permute" else k for k in COLLECTIVE.findall(text)}
    assert not ledger.not_covered, f"the ledger does not cover all:\n{ledger}"
    assert made <= listed, f"the program has {sorted(made)}, the ledger {sorted(listed)}"


def _compare(program: Program, inputs: Mapping[str, Any], found: Any, wanted: Any, errors: Any) -> None:
    problems = list(_differences(inputs, found, wanted, errors))
    if not problems:
        return
    ways = [_references([program], nudge=sign)[0][0] for sign in (1, -1)]
    for name, error, message in problems:
        side, key = name
        change = max(_distance(moved[side][key], wanted[side][key]) for moved in ways) if error is not None else 0.0
        if error is None or not change > error / 30:  # else rounding alone explains it
            raise AssertionError(message)


def _differences(
    inputs: Mapping[str, Any], found: Any, wanted: Any, errors: Any
) -> Iterator[tuple[Any, float | None, str]]:
    for side, what in ((0, "value"), (1, "gradient")):
        for name, theirs in wanted[side].items():
            mine = found[side][name]
            if side:
                t = inputs[name].type.cotangent()
                if mine.type != t:
                    yield (side, name), None, f"the gradient of {name} has type {mine.type}, not {t}"
            if not isinstance(mine, sh.Array):
                continue
            label = f"{what} of {name}: {mine.type}"
            try:
                value = denoted(mine)
            except AssertionError as broken:
                yield (side, name), None, f"{label}: {broken}"
                continue
            if value.dtype != theirs.dtype or value.shape != theirs.shape:
                yield (side, name), None, f"{label}: {value.dtype}{value.shape}, not {theirs.dtype}{theirs.shape}"
                continue
            error = _distance(value, theirs)
            if not error <= min(errors[side][name], SAYS_SOMETHING):
                yield (side, name), error, f"{label}: off by {error}\n{value}\nnot\n{theirs}"


def _distance(a: Any, b: Any) -> float:
    """The largest difference, relative to the largest element where that is above 0.1: what is less has cancelled."""
    largest = float(np.max(np.abs(b), initial=0, where=np.isfinite(b)))
    return tolerance.off_by(a, b) * (largest / max(largest, 0.1) if largest else 10.0)


# shrinking


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program found by dropping steps and inputs that still fails."""
    steps = list(program.steps)
    changed = True
    while changed:
        changed = False
        for step in reversed(steps):
            gone = _without(steps, step.name)
            candidate = replace(program, steps=tuple(gone))
            if candidate.accepted and fails(candidate):
                steps, changed = gone, True
                break
    used = " ".join(s.text for s in steps)
    kept = {n: x for n, x in program.inputs.items() if re.search(rf"\b{n}\b", used)}
    smaller = replace(program, steps=tuple(steps), inputs=kept)
    return smaller if fails(smaller) else replace(program, steps=tuple(steps))


def _without(steps: list[Any], name: str) -> list[Any]:
    """The steps without one and what needs it."""
    gone = {name}
    kept = []
    for step in steps:
        if step.name in gone or any(re.search(rf"\b{g}\b", step.text) for g in gone):
            gone.add(step.name)
        else:
            kept.append(step)
    return kept


def failure(program: Program, mode: str) -> str | None:
    """What is wrong with a program, or None."""
    try:
        check(program, mode)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def verify_together(programs: Sequence[Program], mode: str = "region") -> None:
    """As `verify`, for programs of one mesh and policy."""
    try:
        check_together(programs, mode)
    except Exception:
        for program in programs:
            verify(program, mode)
        raise


def verify(program: Program, mode: str = "region") -> None:
    """Raises an `AssertionError` that prints the smallest failing program."""
    message = failure(program, mode)
    if message is None:
        return
    kind = message.split(":")[0]
    small = shrink(program, lambda p: (failure(p, mode) or "").startswith(kind))
    raise AssertionError(f"{program.label}, {mode}: {failure(small, mode)}\n\n{small}")
