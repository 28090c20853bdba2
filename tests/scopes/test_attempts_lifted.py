"""No communication passes a scope unseen in a lifted program, whether the scope stands around it or in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

import shtypes as sh
from tests.scopes.attempts import ATTEMPTS, AXES
from tests.scopes.test_attempts import STRICT, arguments, differentiated

m: Any = sh  # directions come from a table of texts

#: Programs that ask for the types of their operands, which a lifted program does not see while it is traced.
OF_TYPES = frozenset(
    name for name in ATTEMPTS if name.startswith(("a jaxpr", "jaxpr_as_fun", "linearize", "jvp")) or "replays" in name
)
#: Those whose shapes follow from types, which are known of the arguments of the lifted function itself.
OF_SHARDS = frozenset({"a collective", "a permutation", "reinterpret"})
LIFTED = [name for name in ATTEMPTS if name not in OF_TYPES]
PLACES: dict[str, Callable[[Any, Callable[..., Any]], Callable[..., Any]]] = {
    "around the lifted program": lambda scope, f: scope(differentiated(sh.lift(f))),
    "in it": lambda scope, f: differentiated(sh.lift(scope(f))),
    "in a function that it calls": lambda scope, f: differentiated(sh.lift(jax.jit(scope(f)))),
}


@pytest.fixture(autouse=True, params=["partial", "jax"])
def each_policy(request: Any) -> Any:
    sh.set_mesh(sh.make_mesh(AXES))
    with sh.policy(request.param):
        yield


@pytest.mark.one_in(65)
@pytest.mark.parametrize("name", LIFTED)
def test_what_a_lifted_program_sends_is_refused_in_its_direction(name: str) -> None:
    f, args = ATTEMPTS[name].f, arguments(name, of=sh.lift(ATTEMPTS[name].f))
    found = sh.ledger(differentiated(sh.lift(f)), *args)
    sends = {"forward": found.forward().launches > 0, "backward": found.backward().launches > 0}
    for direction, communicates in sends.items():
        for place, run in PLACES.items():
            if name in OF_SHARDS and place == "in a function that it calls":
                continue
            scoped = run(m.no_comm(direction), f)
            if not communicates:
                if (name, direction) not in STRICT:
                    jax.eval_shape(scoped, *args)
                continue
            with pytest.raises(sh.ShardingTypeError, match=r"no_comm.*(forbids|cannot vouch)"):
                assert jax.eval_shape(scoped, *args) == place  # if it is not refused, this says where


def test_most_attempts_are_tried() -> None:
    assert len(LIFTED) > 0.75 * len(ATTEMPTS)
