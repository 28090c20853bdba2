"""A plain array on the left of an operator: values and gradients as on one device, and plain programs as ever."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import host
from tests.fresh import printed
from tests.tolerance import assert_close

ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
} | {"divmod": lambda a, x: divmod(a, x)[1]}
COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
BITS = {"and": operator.and_, "or": operator.or_, "xor": operator.xor, "lshift": operator.lshift}
BITS["rshift"] = operator.rshift
#: Without a derivative that is not zero everywhere.
STEPS = {"floordiv", "divmod"}
X = np.random.default_rng(3).uniform(1, 3, (4, 8)).astype(np.float32)
A = np.float32(2.5)
K = np.arange(32).reshape(4, 8) % 5


pytestmark = pytest.mark.mesh({"x": 2, "y": 2})


@pytest.fixture(params=["partial", "jax"])
def each_policy(request: pytest.FixtureRequest) -> Iterator[None]:
    with sh.policy(request.param):
        yield


#: How a plain ``a`` and a typed ``x`` meet as tracers of one class.
MODES: dict[str, Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]] = {
    "jax.jit": jax.jit,
    "sh.jit": sh.jit,
    "scan": lambda f: (
        lambda a, x: jax.tree.map(lambda y: y[0], sh.scan(lambda c, _: (c, f(a * 1, c * 1)), x, None, 1)[1])
    ),
    "vmap": lambda f: lambda a, x: jax.vmap(f, in_axes=(None, 1), out_axes=1)(a * 1, x),
    "checkpoint": lambda f: sh.jit(sh.checkpoint(f)),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("mode", MODES)
def test_an_operator_means_what_it_means_on_one_device(mode: str) -> None:
    operators = {**ARITHMETIC, **COMPARISONS}
    found = MODES[mode](lambda a, x: {op: f(a, x) for op, f in operators.items()})(
        jnp.asarray(A), sh.array(X, "f32[4@x,8]")
    )
    for op, f in operators.items():
        assert isinstance(found[op], sh.Array), op
        assert_close(host(found[op]), f(A, X), what=op)


@pytest.mark.parametrize("op", BITS)
def test_operators_of_bits_type_too(op: str) -> None:
    x = sh.array(K, "i32[4@x,8]")
    found = jax.jit(BITS[op])(jnp.int32(6), x)
    np.testing.assert_array_equal(host(found), BITS[op](np.int32(6), K))


@pytest.mark.parametrize("text", ["f32[8,4]", "f32[8@x,4]", "f32[8,4@y]"])
def test_a_plain_matrix_multiplies_from_the_left(text: str) -> None:
    x = sh.array(X.T, text)
    left = np.random.default_rng(4).normal(size=(3, 8)).astype(np.float32)
    found = jax.jit(operator.matmul)(left, x)
    assert_close(host(found), left @ X.T)


@pytest.mark.one_in(9)
@pytest.mark.usefixtures("each_policy")
@pytest.mark.parametrize("mode", ["jax.jit", "sh.jit"])
def test_gradients_are_those_of_one_device(mode: str) -> None:
    operators = {op: f for op, f in ARITHMETIC.items() if op not in STEPS}

    def grads(m: Any, grad: Any) -> Callable[[Any, Any], Any]:
        losses = {op: lambda a, x, f=f: m.sum(m.sin(f(a, x))) for op, f in operators.items()}
        return lambda a, x: {op: grad(loss, argnums=(0, 1))(a, x) for op, loss in losses.items()}

    wanted = jax.jit(grads(jnp, jax.grad))(jnp.asarray(A), X)
    found = MODES[mode](grads(sh, sh.grad))(jnp.asarray(A), sh.array(X, "f32[4@x,8]"))
    for op in operators:
        by_a, by_x = found[op]
        assert not isinstance(by_a, sh.Array)
        assert_close(by_a, wanted[op][0], what=op)
        assert_close(host(by_x), wanted[op][1], what=op)


@pytest.mark.usefixtures("each_policy")
def test_an_optimizer_that_multiplies_from_the_left_types_in_every_state() -> None:
    for text in ("f32[4@x,8]", "f32[4,8]{U:x}", "f32[4,8]{I:(x,y)}", "f32[4,8]"):
        w = sh.array(X, text)
        found = jax.jit(lambda lr, g: g - lr * g)(jnp.float32(0.5), w)
        assert found.type == w.type or text == "f32[4,8]{I:(x,y)}"
        assert_close(host(found), X / 2)


def test_what_neither_knows_stays_an_error_of_python() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        jax.jit(lambda a: a * object())(jnp.float32(1))


PLAIN = """if True:
    import jax, jax.numpy as jnp, operator
    def f(a, x):
        for op in (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
                   operator.pow, operator.lt, operator.ge, operator.eq, operator.ne, lambda a, x: divmod(a, x)[0],
                   lambda a, x: a @ x.T, lambda a, x: 2.0 * x, lambda a, x: a.astype(int) << 2):
            yield op(a, x)
    def run():
        a, x = jnp.ones((2, 3)), jnp.arange(6.0).reshape(2, 3) + 1
        print(jax.make_jaxpr(lambda a, x: list(f(a, x)))(a, x))
        print(jax.make_jaxpr(jax.grad(lambda a, x: jnp.sum(a * x) / (2 + a[0, 0])))(a, x))
        print(jax.make_jaxpr(jax.vmap(lambda a, x: a * x, in_axes=(None, 0)))(1.0, x))
        for wrong in (lambda: jax.grad(lambda a: a)(a), lambda: jax.grad(lambda a: 1)(1.0),
                      lambda: jax.jit(lambda a: a * {})(a), lambda: jax.jit(lambda a: a == [1])(a),
                      lambda: jax.lax.psum(a, "x"), lambda: jax.lax.all_gather(a, "x"),
                      lambda: jax.device_put(object()), lambda: jax.grad(lambda a: 1 + 2j * a)(1.0)):
            try:
                print(wrong())
            except Exception as error:
                print(type(error).__name__, str(error).split(" at 0x")[0].splitlines()[0])
        jax.debug.print("{}", a)
        print(jax.device_get(a).tolist(), isinstance(a, jax.Array), isinstance(1.0, jax.Array))
        jax.jit(lambda a: print(isinstance(a, jax.Array)))(a)
        jax.effects_barrier()
    run()
    print("beside typed ones")
    import shtypes as sh
    sh.Array, sh.jit, sh.grad
    jax.clear_caches()
    run()
"""


def test_a_plain_program_is_the_same_beside_typed_ones() -> None:
    """In one process, before and after the package is imported: nothing is left of what JAX compiled before."""
    without, beside = printed(PLAIN).split("beside typed ones\n")
    assert len(without.splitlines()) > 40
    assert without == beside
