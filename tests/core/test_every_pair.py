"""Every pair of types of some meshes on eight CPU devices: the value, the transpose, and the bytes of the program."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from shtypes.resharding import Plan, plan
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh
from tests.core.hlo import collectives
from tests.core.test_run_plan import compiled, program_of, said
from tests.resharding import simulate
from tests.resharding.large import large_shards

AT_ONCE = 30
SETS = [(sizes, rank) for sizes in ((2, 2), (2, 4), (2, 2, 2)) for rank in (1, 2)]
SHAPES = {1: (16,), 2: (8, 16)}


def pairs(sizes: tuple[int, ...], rank: int) -> list[tuple[ShType, ShType]]:
    """Those that move anything; sums may stay pending, and none begins to."""
    mesh = Mesh(dict(zip("xyz", sizes, strict=False)))
    types = simulate.all_types(mesh, SHAPES[rank], "RU")
    pending = {t: set(t.axes(State.UNREDUCED)) for t in types}
    return [(a, b) for a, b in itertools.product(types, types) if a != b and pending[b] <= pending[a]]


def cases() -> list[Any]:
    return [
        pytest.param(sizes, rank, first, large, id=f"{sizes}-{rank}-{first}-{'large' if large else 'small'}")
        for sizes, rank in SETS
        for first in range(0, len(pairs(sizes, rank)), AT_ONCE)
        for large in (False, True)
    ]


@pytest.mark.one_in(3401)
@pytest.mark.parametrize(("sizes", "rank", "first", "large"), cases())
def test_each_plan_keeps_the_value_and_sends_what_it_says_in_both_directions(
    sizes: tuple[int, ...], rank: int, first: int, large: bool
) -> None:
    chosen = pairs(sizes, rank)[first : first + AT_ONCE]
    if large:
        with large_shards():
            plans = [plan(a, b) for a, b in chosen]
    else:
        plans = [plan(a, b) for a, b in chosen]
    rng = np.random.default_rng(0)
    for p in plans:
        value = rng.integers(-9, 9, p.src.shape).astype(np.float32)
        check(p, value, rng)


def check(p: Plan, value: Any, rng: np.random.Generator) -> None:
    family = simulate.split(p.src, value, rng)
    program, (placed,) = compiled([p], [family])
    assert collectives(program.as_text()) == said([p]), f"{p.src} {p.dst} {p}"
    (out,) = jax.block_until_ready(program(placed))
    np.testing.assert_array_equal(simulate.meaning(p.dst, np.asarray(out)), value, err_msg=f"{p.src} {p.dst} {p}")
    # The transpose as a linear map of all shards: <ct, f(x)> is <transpose of f (ct), x>.
    ct = jax.device_put(rng.integers(-9, 9, out.shape).astype(np.float32), out.sharding)
    (back,) = jax.block_until_ready(jax.jit(lambda x, ct: jax.vjp(program_of([p]), x)[1]((ct,)))(placed, ct))
    assert np.vdot(np.asarray(ct), np.asarray(out)) == np.vdot(np.asarray(back), family), f"{p.src} {p.dst} {p}"
