"""By which arguments a program has a derivative: backward through the whole of it, and forward from each argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import shtypes as sh
from shtypes._compat.jaxprs import depends_smoothly, jaxpr_of, vars_with_cotangents
from shtypes.traced.ledger import prices_of_program

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "a stopped maximum": lambda x, i: jax.nn.softmax(x) * i,
    "a choice": lambda x, i: jnp.where(i > 0, x, jnp.floor(x)),
    "branches": lambda x, i: lax.cond(i[0] > 0, lambda a, b: a * 2, lambda a, b: jnp.sign(a) + b, x, x * 3),
    "a call with one smooth result": lambda x, i: jax.jit(lambda a, b: (jnp.round(a), b * a))(x, x + i)[0],
    "integers of a call": jax.jit(lambda a, b: b + a.sum().astype(int)),
    "arguments": lambda x, i: (x, i),
    "a loop": lambda x, i: lax.scan(lambda c, a: (c + a, c), 0.0, x),
    "a place": lambda x, i: jnp.argmax(x),
    "a stopped call": lambda x, i: jax.jit(lax.stop_gradient)(x) + x * 0,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_arguments_have_cotangents_if_some_result_depends_on_them_smoothly(name: str) -> None:
    program = jax.make_jaxpr(PROGRAMS[name])(jnp.ones(4), jnp.arange(4))
    found = vars_with_cotangents(program)
    arguments = jaxpr_of(program).invars
    assert [v in found for v in arguments] == [any(depends_smoothly(program, [i])) for i in range(len(arguments))]


@pytest.mark.mesh({"x": 4})
@pytest.mark.parametrize(("f", "backward"), [(lambda x: x * 2, 96), (sh.floor, 0), (sh.stop_gradient, 0)])
def test_a_reshard_has_a_price_backward_if_what_it_moves_has_a_cotangent(f: Any, backward: int) -> None:
    program = jax.make_jaxpr(lambda x: f(sh.reshard(x, "[8, 4]")))(sh.abstract_array("f32[8@x, 4]"))
    assert [(p.forward_bytes, p.backward_bytes) for p in prices_of_program(program)] == [(96, backward)]


@pytest.mark.mesh({"x": 4})
def test_what_a_program_sends_is_known_without_its_cotangents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shtypes.traced.equations.with_cotangents", lambda jaxpr: pytest.fail("they are not needed"))
    assert sh.ledger(lambda x: sh.reshard(x, "[8, 4]") * 2, sh.abstract_array("f32[8@x, 4]")).bytes == 96
