"""Each collective of the table inside JAX's control flow and transformations: what it gives outside of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from tests.local_mode.test_collectives import COTANGENT, ROWS, Row, on_devices, random, typed, typed_as
from tests.tolerance import assert_close

N = 2
Program = Callable[[Any, Any], Any]


def chosen_in_a_recomputed_scan(f: Callable[[Any], Any]) -> Program:
    """Under checkpoint, in a scan, in a branch; the result of the second step."""

    def run(x: Any, flag: Any) -> Any:
        def step(count: Any, x: Any) -> Any:
            return count + 1, sh.cond(flag > 0, f, lambda x: f(x) * 2.0, x)

        return sh.scan(step, 0, sh.stack([x * 3.0, x]))[1][1]

    return sh.checkpoint(run)


def added_in_a_loop(f: Callable[[Any], Any]) -> Program:
    """Half of it twice, in a loop whose carry it joins."""

    def run(x: Any, flag: Any) -> Any:
        return sh.fori_loop(0, 2, lambda _, total: total + f(x) * 0.5, sh.zeros_like(f(x)))

    return run


def mapped_and_jitted(f: Callable[[Any], Any]) -> Program:
    """A function under `jax.jit`, mapped over two values, of which the first is kept."""

    def run(x: Any, flag: Any) -> Any:
        return sh.vmap(jax.jit(f))(sh.stack([x, x * 5.0]))[0]

    return run


def on_n(row: Row) -> Callable[[Any], Any]:
    """A row's collective for so many devices."""
    return lambda x: row.fn(x, N)


FNS = [on_n(row) for row in ROWS]


def everything(wrap: Any, operands: Any, cts: Any, flag: Any) -> Any:
    """Each collective in a program, and what the program's transpose makes of a cotangent."""
    found = []
    for f, x, ct in zip(FNS, operands, cts, strict=True):
        y, pull = jax.vjp(lambda x, f=f: wrap(f)(x, flag), x)
        found.append((y, pull(ct)[0]))
    return found


@pytest.fixture(scope="module")
def outside() -> Any:
    """The operands, the cotangents, and each collective by itself."""
    sh.set_mesh(sh.make_mesh({"x": N}))
    operands = [typed(random(N, row.shape(N), row.states[0], seed), row.states[0]) for seed, row in enumerate(ROWS)]
    cts = []
    for row, f, x in zip(ROWS, FNS, operands, strict=True):
        t, state = sh.typeof(f(sh.abstract_array(x.type))), COTANGENT[row.states[1]]
        cts.append(typed_as(random(N, t.local_shape, state, 7), state, t.cotangent()))
    flag = sh.array(np.int32(1))
    alone = sh.jit(lambda *given: everything(lambda f: lambda x, _: f(x), *given))
    return (operands, cts, flag), jax.block_until_ready(alone(operands, cts, flag))


@pytest.mark.nightly
@pytest.mark.parametrize("around", [chosen_in_a_recomputed_scan, added_in_a_loop, mapped_and_jitted])
def test_a_collective_gives_the_same_inside_of_a_program(around: Callable[..., Program], outside: Any) -> None:
    sh.set_mesh(sh.make_mesh({"x": N}))
    given, wanted = outside
    found = jax.block_until_ready(sh.jit(lambda *a: everything(around, *a), region="require")(*given))
    for row, one, other in zip(ROWS, wanted, found, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.type == b.type, row.id
            for p, q in zip(on_devices(a, N), on_devices(b, N), strict=True):
                assert_close(q, p, what=row.id)
