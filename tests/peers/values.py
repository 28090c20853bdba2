"""Programs on typed operands, run: values, gradients and the types of gradients against one device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import shtypes as sh
from tests.meaning import Layout
from tests.peers.compare import operand_type
from tests.peers.programs import EVERYTHING, Program
from tests.random_checks import denoted
from tests.random_programs import spread
from tests.tolerance import computed, off_by


class Case(NamedTuple):
    """A program on operands of given types."""

    program: Program
    given: tuple[Layout, ...]

    def __str__(self) -> str:
        return f"{self.program} of {' '.join(map(str, self.given))}"


def _weights(shape: Sequence[int]) -> Any:
    n = int(np.prod(shape, dtype=int))
    return np.asarray(np.cos(np.arange(n) * 1.7 + 1) + 1.25, np.float32).reshape(shape)


def _scalar(m: Any, y: Any) -> Any:
    """A real number that each element of the result moves differently; typed, unreduced on each axis: that is free."""
    if jnp.issubdtype(y.dtype, jnp.complexfloating):
        y = m.real(y) + 2 * m.imag(y)
    if y.dtype.itemsize < 4:
        y = m.astype(y, "f32")
    total = m.sum(y * _weights(y.shape))
    if m is sh:
        t = jax.typeof(total)
        total = sh.reshard(total, t.replace(states=dict.fromkeys(t.mesh.axis_names, sh.State.UNREDUCED)))
    return total


def _outcome(m: Any, program: Program, operands: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    chosen = program.differentiated
    if not chosen:
        return program.fn(m, *operands), ()

    def loss(*parts: Any) -> Any:
        merged = list(operands)
        for i, part in zip(chosen, parts, strict=True):
            merged[i] = part
        y = program.fn(m, *merged)
        return _scalar(m, y), y

    grad = sh.grad if m is sh else jax.grad
    found, y = grad(loss, argnums=tuple(range(len(chosen))), has_aux=True)(*[operands[i] for i in chosen])
    return y, tuple(found)


@functools.cache
def reference(program: Program) -> tuple[Any, Any]:
    """The value and the gradients, and how far rounding takes each."""
    given = [jnp.asarray(x) for x in program.arrays]
    return computed(lambda *operands: _outcome(EVERYTHING, program, operands), *given)


def _placed(x: Any, t: Any) -> Any:
    """A typed value; its pending sums are really spread."""
    return spread(x, t.canonical().removeprefix(t.dtype_name)) if x.dtype != bool else sh.array(x, t)


def problems(mesh: Any, cases: Sequence[Case], *, region: bool = True) -> list[str]:
    """How accepted cases differ from one device; all are compiled together."""
    with sh.use_mesh(mesh):
        operands = [
            [
                _placed(np.asarray(x), operand_type(t, v.dtype))
                for x, t, v in zip(c.program.arrays, c.given, c.program.operands, strict=True)
            ]
            for c in cases
        ]

        def run(everything: Any) -> Any:
            return [_outcome(sh, c.program, given) for c, given in zip(cases, everything, strict=True)]

        jitted = (sh.jit if region else jax.jit)(run)
        found = jax.block_until_ready(jitted(operands))
    out: list[str] = []
    for case, given, mine in zip(cases, operands, found, strict=True):
        out += [f"{case}: {p}" for p in _compare(case, given, mine, reference(case.program))]
    return out


def _of_numbers(x: Any, right: Any, pending: bool) -> Any:
    """What is compared of a result: of what is no number, that it is none, but for sums of infinities of both signs."""
    if x.shape != right.shape or not np.issubdtype(x.dtype, np.inexact):
        return x
    x = np.where(np.isfinite(x), x, np.asarray(np.nan, x.dtype))
    return np.where(np.isfinite(right), x, np.asarray(0, x.dtype)) if pending else x


def _compare(case: Case, given: Sequence[Any], mine: Any, reference: Any) -> list[str]:
    out = []
    wanted, errors = reference
    parts = [("value", mine[0], wanted[0], errors[0])]
    for i, ct, right, most in zip(case.program.differentiated, mine[1], wanted[1], errors[1], strict=True):
        if np.isfinite(wanted[0]).all():  # else there is no derivative, and zero times it is zero or not a number
            parts.append((f"gradient {i}", ct, right, most))
        if ct.type != given[i].type.cotangent():
            out.append(f"gradient {i} is {ct.type}, not {given[i].type.cotangent()}")
    for what, x, right, most in parts:
        try:
            value = denoted(x) if isinstance(x, sh.Array) else np.asarray(x)
        except AssertionError as error:
            out.append(f"{what}: {error}")
            continue
        pending = any("U" in t.letters for t in case.given) or "{U:" in str(getattr(x, "type", ""))
        value, right = _of_numbers(value, right, pending), _of_numbers(right, right, pending)
        off = off_by(value, right) if value.shape == right.shape else float("inf")
        if what != "value" and max(np.nanmax(np.abs(v), initial=0) for v in (value, right)) <= most:
            continue  # a gradient that is zero but for rounding, of weights of about one
        if value.dtype != right.dtype or not off <= most:
            out.append(f"{what} ({getattr(x, 'type', '')}): off by {off}: {value} not {right}")
    return out
