"""No communication passes a scope unseen: whatever the program, wherever the scope stands, under both policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

import shtypes as sh
from tests.scopes.attempts import ATTEMPTS, AXES, P, host, in_steps, reduced

m: Any = sh  # directions come from a table of texts


@pytest.fixture(autouse=True, params=["partial", "jax"])
def each_policy(request: Any) -> Any:
    sh.set_mesh(sh.make_mesh(AXES))
    with sh.policy(request.param):
        yield


def differentiated(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function and its backward pass, from a given cotangent on."""

    def step(ct: Any, *args: Any) -> Any:
        out, pull = jax.vjp(f, *args)
        return out, pull(ct)

    return step


def arguments(name: str, values: bool = False, of: Callable[..., Any] | None = None) -> list[Any]:
    """A cotangent of the result of a program, or ``of`` that of another one, and the arguments: any of their types."""
    f, texts = ATTEMPTS[name]
    out: Any = jax.eval_shape(of or f, *map(sh.abstract_array, texts))
    types = [out.cotangent().canonical(), *texts]
    return [host(text, i) if values else sh.abstract_array(text) for i, text in enumerate(types)]


def truth(name: str) -> dict[str, bool]:
    """In which directions a program communicates as it is written, by its ledger; the list is of programs that do."""
    found = sh.ledger(differentiated(ATTEMPTS[name].f), *arguments(name))
    told = {"forward": found.forward().launches > 0, "backward": found.backward().launches > 0}
    assert any(told.values()) or (name, sh.current_policy()) == ("scatter of sharded updates", "jax")
    return told


#: What is refused in a direction in which this use of the program is silent, but another would not be.
STRICT = {
    ("a jaxpr of a loop", "backward"),  # of a value that another program would differentiate
    ("a jaxpr of an unbounded loop", "backward"),  # as above
    ("a backward pass that is there", "forward"),  # of a value that nothing uses
    ("custom_jvp", "forward"),  # of a tangent, which runs forward in forward mode
    ("a maximum", "backward"),  # counts its winners where it is differentiated
}


#: Where a scope may stand: it is given, and the function.
PLACES: dict[str, Callable[[Any, Callable[..., Any]], Callable[..., Any]]] = {
    "inside jit": lambda scope, f: sh.jit(differentiated(scope(f))).trace,
    "inside jax.jit": lambda scope, f: jax.jit(differentiated(scope(f))).trace,
    "around a backward pass": lambda scope, f: sh.jit(scope(differentiated(f))).trace,
    "around jit": lambda scope, f: scope(sh.jit(differentiated(f)).trace),
}


@pytest.mark.one_in(45)
@pytest.mark.parametrize("name", ATTEMPTS)
def test_what_communicates_is_refused_in_its_direction(name: str) -> None:
    f, args = ATTEMPTS[name].f, arguments(name)
    for direction, communicates in truth(name).items():
        for place, run in PLACES.items():
            scoped = run(m.no_comm(direction), f)
            if not communicates:
                if (name, direction) not in STRICT:
                    scoped(*args)
                continue
            with pytest.raises(sh.ShardingTypeError, match=r"no_comm.*(forbids|cannot vouch)"):
                assert scoped(*args) == place  # if it is not refused, this says where


@pytest.mark.one_in(67)
@pytest.mark.parametrize("name", ATTEMPTS)
def test_what_runs_at_once_is_refused_too(name: str) -> None:
    f, args = ATTEMPTS[name].f, arguments(name, values=True)
    told = truth(name)
    for run in (differentiated, lambda f: jax.jit(differentiated(f))):
        for direction in [d for d, communicates in told.items() if communicates]:
            with pytest.raises(sh.ShardingTypeError, match=r"no_comm.*(forbids|cannot vouch)"):
                m.no_comm(direction)(run(f))(*args)


@pytest.mark.parametrize("name", in_steps(sh.no_comm, None))
def test_what_runs_in_steps_is_in_the_scope_while_it_runs(name: str) -> None:
    p = host(P)
    with pytest.raises(sh.ShardingTypeError, match="forbids all-reduce over `tp` in the forward pass"):
        in_steps(sh.no_comm, p)[name]()
    with pytest.raises(sh.ShardingTypeError, match="allows 0 collectives"):
        in_steps(lambda: sh.comm_budget(launches=0), p)[name]()
    in_steps(lambda: sh.comm_budget(launches=1), p)[name]()
    assert reduced(p).type  # the scopes are left


def test_a_budget_is_that_of_all_steps() -> None:
    p = host(P)

    @sh.comm_budget(launches=2)
    def three() -> Any:
        for _ in range(3):
            yield reduced(p)

    steps = three()
    next(steps), next(steps)
    with pytest.raises(sh.ShardingTypeError, match="allows 2 collectives in the forward pass"):
        next(steps)
