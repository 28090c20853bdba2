"""Windows across shards: cases, and how they are compared with one device and with the compiled program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import shtypes as sh
from tests.end_to_end import host
from tests.tolerance import SERIES, assert_close
from tests.traced.compiled import assert_compiled_as_said


class Case(NamedTuple):
    """A function, its arguments, their types, the bytes that each device sends: forward, and of a `jax.grad` in it."""

    name: str
    f: Callable[..., Any]
    args: Sequence[Any]
    types: Sequence[str]
    sent: tuple[int, int]


def conv(x: Any, k: Any, padding: Any = "VALID", stride: int = 1, **options: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC") if x.ndim == 4 else ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(x, k, (stride,) * (x.ndim - 2), padding, dimension_numbers=layout, **options)


def gradients(f: Callable[..., Any], count: int) -> Callable[..., Any]:
    return jax.grad(lambda *args: jnp.sum(jnp.sin(f(*args))), tuple(range(count)))


def assert_as_one_device(case: Case) -> None:
    """Compares values and gradients, by JAX and by shtypes, what is sent, and the ledger with the compiled program."""
    places = tuple(range(len(case.args)))
    typed = [sh.array(x, t) for x, t in zip(case.args, case.types, strict=True)]
    both = gradients(case.f, len(places))
    forward, inside = (jax.jit(sh.implicit_comm(sh.lift(f))) for f in (case.f, both))
    assert tuple(sh.ledger(f, *typed).total.bytes for f in (forward, inside)) == case.sent

    @jax.jit
    @sh.implicit_comm
    def step(*args: Any) -> Any:
        loss = sh.lift(lambda *xs: jnp.sum(jnp.sin(case.f(*xs))))
        return sh.lift(case.f)(*args), sh.grad(loss, places)(*args)

    assert_compiled_as_said(step, *typed, jits=[lambda jitted: jitted])
    value, found = jax.block_until_ready(step(*typed))
    of_inside = jax.block_until_ready(inside(*typed))
    assert_close(host(value), case.f(*case.args), SERIES)
    for each in (found, of_inside):
        for a, b in zip(each, jax.jit(both)(*case.args), strict=True):
            assert_close(host(a), b, SERIES)
