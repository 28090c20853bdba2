"""Loops where JAX compiles nothing, and over no steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.tolerance import assert_close

X = np.arange(24, dtype=np.float32).reshape(4, 6) / 8


pytestmark = [pytest.mark.one_in(9), pytest.mark.mesh({"x": 2})]


def _body(carry: Any, v: Any) -> tuple[Any, Any]:
    return carry + v, {"product": carry * v, "plain": jnp.float32(2.0)}


LOOPS: dict[str, Callable[[Any], Any]] = {
    "scan": lambda x: sh.scan(_body, sh.zeros("f32[6]"), x),
    "backwards": lambda x: sh.scan(_body, sh.zeros("f32[6@x]"), x, reverse=True),
    "without xs": lambda x: sh.scan(lambda c, _: (c + x[0], None), x[1], None, length=3)[0],
    "of plain xs": lambda x: sh.scan(lambda c, v: (c + v, c), x[0], jnp.ones((3, 6))),
    "of no steps": lambda x: sh.scan(_body, x[0], sh.zeros("f32[0,6@x]")),
    "map": lambda x: sh.map(lambda v: v * v, x),
    "map over a sharded dim": lambda x: sh.map(lambda v: v * v, sh.reshard(x, "[4@x,6]")),
    "gradient": lambda x: sh.grad(lambda c: sh.all_reduce(sh.sum(sh.scan(_body, c, x)[0] ** 2)))(x[0]),
    "fori_loop": lambda x: sh.fori_loop(0, 3, lambda i, c: c * 2.0, x),
    "while_loop": lambda x: sh.while_loop(lambda c: sh.all_reduce(sh.sum(c)) < 99, lambda c: c * 2.0, x),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_the_same_where_nothing_is_compiled(name: str) -> None:
    x = sh.array(X, "f32[4,6@x]")
    wanted = jax.block_until_ready(LOOPS[name](x))
    with jax.disable_jit():
        found = jax.block_until_ready(LOOPS[name](x))
    assert sh.tree.types(found) == sh.tree.types(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert_close(one, other)


def test_where_nothing_is_compiled_a_body_sees_values() -> None:
    seen: list[float] = []

    def body(carry: Any, v: Any) -> tuple[Any, None]:
        seen.append(float(sh.all_reduce(sh.sum(v))))
        return carry + v, None

    with jax.disable_jit():
        sh.scan(body, sh.zeros("f32[6@x]"), sh.array(X, "f32[4,6@x]"))
    assert_close(seen, X.sum(1))


def _of_a_step(step: Callable[[Any], Any]) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """A scan whose three steps multiply a matrix with itself, and reshard the product as a fix says."""

    def loop(w: Any, fixed: Callable[[Any], Any]) -> Any:
        return sh.scan(lambda c, _: (c, step(fixed(sh.einsum("ij,ik->jk", w, w)))), sh.zeros("f32[]"), None, length=3)

    return loop


#: Scans whose bodies need the sum of a product, with the number of times that they do.
IN_LOOPS: dict[str, tuple[Callable[[Any, Callable[[Any], Any]], Any], int]] = {
    "an op": (_of_a_step(sh.sin), 3),
    "a lifted function": (_of_a_step(sh.lift(jnp.sin)), 3),
    "a lifted loop": (_of_a_step(sh.lift(lambda x: jax.lax.map(jnp.sin, x))), 3),
    "a gradient": (_of_a_step(sh.grad(lambda x: sh.all_reduce(sh.sum(sh.sin(x))))), 3),
    "a loop": (
        lambda w, fixed: sh.map(lambda _: _of_a_step(sh.sin)(w, fixed), sh.zeros("f32[2]")),
        6,
    ),
}


@pytest.mark.one_in(1)
@pytest.mark.parametrize("name", IN_LOOPS)
def test_fixes_in_a_loop_have_the_price_of_all_of_its_steps(name: str) -> None:
    f, runs = IN_LOOPS[name]
    w = sh.abstract_array("f32[4@x,4]")
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.ledger(f, w, lambda x: x)
    for fix in caught.value.fixes:
        target = re.search(r'"(.*)"', fix.code)
        assert target is not None
        ledger = sh.ledger(f, w, lambda x, to=target[1]: sh.reshard(x, to))
        assert ledger.forward().bytes == fix.bytes_forward
        assert {entry.times for entry in ledger.forward()} == {runs}
