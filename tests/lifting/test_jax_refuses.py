"""Lines of a lifted program that JAX refuses: told with the user's expression and the types of its operands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

import shtypes as sh
from tests.error_checks import INSIDE


@pytest.fixture(autouse=True)
def v() -> Any:
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})):
        yield sh.ones("f32[8@x,4]")


def refusal(call: Callable[..., Any], *args: Any) -> sh.ShardingTypeError:
    with pytest.raises(sh.ShardingTypeError) as caught:
        call(*args)
    assert re.match(r"test_jax_refuses\.py:\d+ in ", caught.value.where), caught.value.where
    assert not INSIDE.search(str(caught.value)), str(caught.value)
    assert caught.value.__cause__ is not None
    return caught.value


def text(error: sh.ShardingTypeError) -> str:
    return re.sub(r"\.py:\d+", ".py:N", str(error))


def product(x: Any, w: Any) -> Any:
    h = jnp.sin(x)
    return h @ w


def branch(x: Any) -> Any:
    y = jnp.sum(x, axis=0)
    if y[0] > 0:
        return y
    return -y


def shards(x: Any) -> Any:
    return jax.shard_map(jnp.sin, in_specs=P("x", None, "y"), out_specs=P("x"))(x)


def test_shapes_that_do_not_fit(v: Any) -> None:
    assert text(refusal(sh.lift(product), v, sh.ones("f32[8@x,2@y]"))) == (
        "`h @ w` does not take f32[8@x,4] and f32[8@x,2@y]\n"
        "  where: test_jax_refuses.py:N in product: jnp.matmul(f32[8@x,4], f32[8@x,2@y])\n"
        "  why:   dot_general requires contracting dimensions to have the same shape, got (4,) and (8,)."
    )


def test_a_condition_that_is_traced(v: Any) -> None:
    error = refusal(sh.lift(branch), sh.ones("f32[8,4]"))
    assert text(error) == (
        "a traced value, bool[], has no bool while it is traced\n"
        "  where: test_jax_refuses.py:N in branch: y[0] > 0\n"
        "  try:   jnp.where, jax.lax.cond and jax.lax.while_loop take it as it is"
    )
    assert isinstance(error, jax.errors.TracerBoolConversionError)


def test_specs_that_are_too_long(v: Any) -> None:
    error = refusal(sh.lift(shards), v)
    assert error.what.endswith(" does not take f32[8@x,4]")
    assert re.search(r"in_specs is P\('x', None, 'y'\) which has length 3, but .* has rank 2", error.why)
    assert isinstance(error, ValueError)


LINES: dict[str, tuple[Callable[[Any], Any], str, type[Exception]]] = {
    "int": (lambda x: int(x[0, 0]), r"f32\[\]\{U:x\}, has no int while", jax.errors.ConcretizationTypeError),
    "range": (lambda x: range(jnp.argmax(x[0])), "has no index while", jax.errors.TracerIntegerConversionError),
    "numpy": (np.sin, r"f32\[8@x,4\], has no numpy array", jax.errors.TracerArrayConversionError),
    "item": (lambda x: x[0, 0].item(), "has no item while", jax.errors.ConcretizationTypeError),
    "tolist": (lambda x: x.tolist(), "has no tolist while", jax.errors.ConcretizationTypeError),
    "a mask": (lambda x: x[x > 0], r"bool\[8@x,4\](.|\n)*jnp.where", jax.errors.NonConcreteBooleanIndexError),
    "nonzero": (jnp.nonzero, "must be statically specified", jax.errors.ConcretizationTypeError),
    "an operator": (lambda x: x + x.T, r"`x \+ x.T` does not take f32\[8@x,4\] and f32\[4,8@x\]", TypeError),
    "a text": (lambda x: x + "a", r"unsupported operand type\(s\) for \+: a traced array and 'str'", TypeError),
    "an axis": (lambda x: jnp.sum(x, axis=5), "jnp.sum.*axis 5 is out of bounds", ValueError),
    "indices": (lambda x: x[0, 0, 0], "Too many indices", IndexError),
    "an attribute": (lambda x: x.nothing, "a traced array has no attribute nothing", AttributeError),
    "in a jit": (jax.jit(lambda a: a @ a), r"`a @ a` does not take float32\[8,4\] and float32\[8,4\]", TypeError),
    "a scan": (lambda x: lax.scan(lambda c, a: (x, a), 0.0, x), "so the shapes do not match", TypeError),
    "a vmap": (lambda x: jax.vmap(jnp.add)(x, x.T), "one axis had size 4", ValueError),
    "a body": (
        jax.shard_map(lambda a: a.T @ a.T, in_specs=P(None, "x"), out_specs=P("x")),
        r"`a.T @ a.T` does not take float32\[2,8\]\{V:x\}",
        TypeError,
    ),
    "an axis of shards": (
        jax.shard_map(jnp.sin, in_specs=P("z"), out_specs=P("x")),
        "in_specs refers to 'z'",
        ValueError,
    ),
    "sizes of shards": (
        lambda x: jax.shard_map(jnp.sin, in_specs=P(None, ("x", "y")), out_specs=P("x"))(x[:, :3]),
        "4 does not evenly divide 3",
        ValueError,
    ),
    "a collective": (
        jax.shard_map(lambda a: lax.psum(a, "z"), in_specs=P("x"), out_specs=P("x")),
        r"psum\(a, .z.\)",
        Exception,
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_what_jax_refuses_in_a_lifted_program_is_told_at_its_line(name: str, v: Any) -> None:
    f, said, kind = LINES[name]
    error = refusal(sh.lift(f), v)
    assert re.search(said, str(error), re.DOTALL), str(error)
    assert isinstance(error, kind)


def test_inserted_communication_and_other_transformations_say_the_same(v: Any) -> None:
    w = sh.ones("f32[8@x,2@y]")
    said = str(refusal(sh.lift(product), v, w))
    total = lambda x, w: sh.sum(sh.lift(product)(x, w))  # noqa: E731
    for call in (sh.implicit_comm(sh.lift(product)), sh.jit(sh.lift(product)), sh.grad(total)):
        assert str(refusal(call, v, w)) == said
    plain = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 4), (8, 2))]
    assert str(refusal(sh.suggest, product, *plain)).startswith("`h @ w` does not take float32[8,4] and float32[8,2]\n")


def test_a_derivative_rule_is_told_at_its_line_too(v: Any) -> None:
    @jax.custom_vjp
    def double(x: Any) -> Any:
        return 2 * x

    double.defvjp(lambda x: (2 * x, x), lambda x, ct: (ct @ x,))
    error = refusal(sh.grad(sh.lift(lambda x: jnp.sum(double(x)))), v)
    assert error.what == "`ct @ x` does not take float32[8,4] and float32[8,4]"
    assert not error.hints


@pytest.mark.parametrize(
    ("args", "said"), [((1,), "missing 1 required"), ((1, 2, 3), "takes 2 positional arguments but 3 were given")]
)
def test_a_call_that_does_not_fit_the_function(args: Any, said: str) -> None:
    assert said in refusal(sh.lift(product), *args).why
    with pytest.raises(sh.ShardingTypeError, match=r"`product` does not take these arguments(.|\n)*missing 1 required"):
        sh.suggest(product, jax.ShapeDtypeStruct((8, 4), "float32"))


@pytest.mark.parametrize("kind", [ValueError, TypeError, AssertionError, KeyError, AttributeError])
def test_what_the_program_raises_stays_as_it_is(kind: type[Exception], v: Any) -> None:
    mine = kind("mine")

    def wrong(x: Any) -> Any:
        raise mine

    for call in (
        sh.lift(wrong),
        sh.lift(jax.jit(wrong)),
        lambda v: sh.suggest(wrong, jax.ShapeDtypeStruct((8, 4), "float32")),
        sh.local_map(wrong, out="[8@x,4]"),
        sh.shard_map(wrong, in_specs="[_@x,_]", out_specs="[_@x,_]"),
    ):
        with pytest.raises(kind) as caught:
            call(v)
        assert caught.value is mine


def test_a_program_that_catches_what_jax_refuses_goes_on(v: Any) -> None:
    def either(x: Any) -> Any:
        try:
            return x if x[0, 0] > 0 else -x
        except jax.errors.TracerBoolConversionError:
            return 2 * x

    x = sh.ones("f32[8,4]")
    for call in (sh.lift(either), sh.jit(either), sh.jit(sh.lift(either))):
        np.testing.assert_array_equal(np.asarray(call(x)), np.full((8, 4), 2.0))


def test_a_program_that_is_refused_runs_its_python_once(v: Any) -> None:
    runs = []

    def program(v: Any) -> Any:
        runs.append(v)
        return jnp.sin(v) @ jnp.ones((3, 3))

    with pytest.raises(sh.ShardingTypeError, match=r"does not take f32\["):
        sh.lift(program)(v)
    assert len(runs) == 1
