"""By which arguments a program has a derivative: backward through the whole of it, and forward from each argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shtypes._compat.jaxprs import depends_smoothly, jaxpr_of, vars_with_cotangents

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
