"""What a user puts in the place of a function of JAX is called, and stays, before, during and between lifted traces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh

X = np.arange(32, dtype=np.float32).reshape(8, 4)

#: Functions of JAX: where they are, and a program that calls them by their module.
FUNCTIONS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "jnp.sin": (jnp, "sin", lambda x: jnp.sin(x)),  # noqa: PLW0108  # looked up when it is called
    "jnp.einsum": (jnp, "einsum", lambda x: jnp.einsum("ab,cb->ac", x, X[:3])),
    "jnp.zeros_like": (jnp, "zeros_like", lambda x: jnp.zeros_like(x) + x),
    "lax.scan": (jax.lax, "scan", lambda x: jax.lax.scan(lambda c, _: (c + x, None), x, None, length=2)[0]),
    "lax.while_loop": (jax.lax, "while_loop", lambda x: jax.lax.while_loop(lambda c: c[1] < 2, _next, (x, 0))[0]),
    "lax.full_like": (jax.lax, "full_like", lambda x: jax.lax.full_like(x, 2.0) * x),
    "lax.dot_general": (jax.lax, "dot_general", lambda x: jax.lax.dot_general(x, X[:3], (((1,), (1,)), ((), ())))),
    "lax.with_sharding_constraint": (
        *(jax.lax, "with_sharding_constraint"),
        lambda x: jax.lax.with_sharding_constraint(x, jax.P("dp")),
    ),
    "jax.reshard": (jax, "reshard", lambda x: jax.reshard(x, jax.P("dp"))),
    "jax.device_put": (jax, "device_put", lambda x: jax.device_put(x, jax.P("dp"))),
    "jax.random.normal": (jax.random, "normal", lambda x: x + jax.random.normal(jax.random.key(0), x.shape)),
}


def _next(state: tuple[Any, Any]) -> tuple[Any, Any]:
    return state[0] * 2, state[1] + 1


pytestmark = pytest.mark.mesh({"dp": 2})


@contextlib.contextmanager
def replaced(module: Any, name: str) -> Iterator[list[int]]:
    """The function with one in its place that counts its calls."""
    own, calls = getattr(module, name), list[int]()

    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return own(*args, **kwargs)

    with mock.patch.object(module, name, theirs):
        yield calls
    assert getattr(module, name) is own


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_replaced_before_a_lifted_trace_is_called_in_it_and_stays(name: str) -> None:
    module, attribute, program = FUNCTIONS[name]
    x, lifted = sh.array(X, "f32[8@dp, 4]"), sh.lift(program)
    before = np.asarray(lifted(x))
    with replaced(module, attribute) as calls:
        theirs = getattr(module, attribute)
        np.testing.assert_array_equal(np.asarray(lifted(x)), before)
        assert calls
        assert getattr(module, attribute) is theirs
        sh.jit(sh.lift(program))(x)
        sh.ledger(sh.lift(program), x)
        assert getattr(module, attribute) is theirs
    count = len(calls)
    np.testing.assert_array_equal(np.asarray(lifted(x)), before)
    assert len(calls) == count


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_program_replaces_while_it_is_traced_is_called_there(name: str) -> None:
    module, attribute, program = FUNCTIONS[name]
    counted: list[int] = []

    def patching(x: Any) -> Any:
        with replaced(module, attribute) as calls:
            y = program(x)
        counted.append(len(calls))
        return y, program(x)

    inside, after = sh.lift(patching)(sh.array(X, "f32[8@dp, 4]"))
    assert counted[0] == 1
    np.testing.assert_array_equal(np.asarray(inside), np.asarray(after))


def test_a_function_that_is_replaced_for_good_stays_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(x: Any, *args: Any, **kwargs: Any) -> Any:
        return x

    for module, attribute, program in FUNCTIONS.values():
        if attribute in ("scan", "while_loop"):
            continue
        monkeypatch.setattr(module, attribute, theirs)
        with contextlib.suppress(Exception):  # it may be used inside JAX in a way that this does not fit
            sh.lift(program)(sh.array(X, "f32[8@dp, 4]"))
        assert getattr(module, attribute) is theirs
        monkeypatch.undo()


def test_a_failed_trace_leaves_all_as_it_was() -> None:
    own = {(m.__name__, n): f for m in (jnp, jax.lax, jax) for n, f in vars(m).items() if callable(f)}

    def fails(x: Any) -> Any:
        raise RuntimeError("in the program")

    with pytest.raises(RuntimeError, match="in the program"):
        sh.lift(fails)(sh.array(X, "f32[8@dp, 4]"))
    assert {(m.__name__, n): f for m in (jnp, jax.lax, jax) for n, f in vars(m).items() if callable(f)} == own
    assert not sh.typeof(sh.array(X, "f32[8@dp, 4]")).axes(sh.State.UNREDUCED)
    assert jax.typeof(jnp.asarray(X)).sharding.mesh.axis_names == jax.sharding.get_abstract_mesh().axis_names
