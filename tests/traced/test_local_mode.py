"""The collectives of local mode in the ledger, in compiled programs and under scopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

import shtypes as sh
from tests.traced.compiled import assert_compiled_as_said
from tests.traced.random_programs import AXES

pytestmark = pytest.mark.mesh(AXES)


def mapped(f: Callable[..., Any]) -> Callable[..., Any]:
    found: Callable[..., Any] = sh.shard_map(f, in_specs="[_@tp, _]", out_specs="[_@tp, _]")
    return found


COLLECTIVES: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "psum": (lambda v: v * sh.lax.psum(sh.sin(v), "tp", to="I"), {"forward", "backward"}),
    "all_gather": (lambda v: sh.sum(sh.sin(sh.lax.all_gather(v, "tp")), 0), {"forward", "backward"}),
    "psum_scatter": (
        lambda v: sh.lax.psum_scatter(sh.sin(v), "tp", scatter_dimension=1, tiled=True),
        {"forward", "backward"},
    ),
    "all_to_all": (lambda v: sh.lax.all_to_all(sh.sin(v), "tp", 1, 0, tiled=True), {"forward", "backward"}),
    "ppermute": (
        lambda v: sh.sin(sh.lax.ppermute(v, "tp", [(i, (i + 1) % 4) for i in range(4)])),
        {"forward", "backward"},
    ),
    "axis_index": (lambda v: v * sh.lax.axis_index("tp"), set()),
    "nothing": (lambda v: sh.sin(v) * v, set()),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_a_collective_compiles_to_what_its_ledger_says(name: str) -> None:
    f, directions = COLLECTIVES[name]
    x = sh.ones("f32[32@tp,16]")
    ct = sh.ones(mapped(f)(sh.abstract_array(x.type)).type.cotangent())

    def step(x: Any, ct: Any) -> Any:
        out, pull = sh.vjp(mapped(f), x)
        return out, pull(ct)

    found = assert_compiled_as_said(step, x, ct)
    assert {e.direction for e in found} == directions


@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_no_comm_holds_inside_local_mode(name: str) -> None:
    f, directions = COLLECTIVES[name]
    x = sh.abstract_array("f32[32@tp,16]")

    def refused(direction: Any) -> bool:
        found = ""
        try:
            jax.eval_shape(mapped(sh.no_comm(direction)(f)), x)
        except sh.ShardingTypeError as error:
            found = str(error)
        assert not found or "no_comm" in found
        return bool(found)

    assert refused("forward") == ("forward" in directions)
    assert refused("backward") == ("backward" in directions)
    assert refused("both") == bool(directions)
