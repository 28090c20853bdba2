"""What JAX says of the arguments of a transformation, in the one shape of errors; what users raise stays theirs."""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.errors import also
from tests.error_checks import INSIDE, faults, run


@pytest.fixture(autouse=True)
def v() -> Any:
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})):
        yield sh.ones("f32[8@x,4]")


def f(x: Any, y: Any = 1.0) -> Any:
    return x * y


def g(x: Any, y: Any) -> Any:
    return sh.sum(x * y)


#: Calls of transformations with a wrong argument, what is said of them, and JAX's kind of error for them.
CALLS: dict[str, tuple[str, type[Exception]]] = {
    "sh.jit(g)(v, 'a')": ("`g` takes arrays, .* class `str`, at `y`", TypeError),
    "sh.jit(f)(v, y='a')": ("`f` takes arrays, .* class `str`, at `y`", TypeError),
    "sh.jit(lambda p: p['a'])({'a': v, 'b': 't'})": (r"class `str`, at `p\['b'\]`", TypeError),
    "sh.jit(f)(np.array(['a']))": ("JAX has no arrays of its dtype", TypeError),
    "sh.jit(g, static_argnums=1)(v, [1])": ("has no hash: it is of class `list`", ValueError),
    "sh.jit(g, static_argnums=1)(v, v)": ("has no hash: it is of class `Array`", ValueError),
    "sh.jit(g)(v)": (r"`g` does not take .*\n.*\n.*missing 1 required .*: 'y'", TypeError),
    "sh.jit(g)(v, v, v)": ("takes 2 positional arguments but 3 were given", TypeError),
    "sh.jit(g)(v, z=v)": ("`g` does not take these arguments", TypeError),
    "sh.jit(lambda x: 'a')(v)": ("a result of `<lambda>` is no array, but of class `str`", TypeError),
    "sh.jit(lambda x: (x, object()))(v)": (r"class `object`, at `\[1\]`", TypeError),
    "sh.cumsum(sh.ShType.parse('f32[8@x,4]'))": (
        "`cumsum` does not take .*\n.*\n.*should be fully replicated",
        ValueError,
    ),
    "sh.median(sh.ShType.parse('f32[8@x,4]'))": (
        "`median` does not take .*\n.*\n.*unsharded over the sorting",
        ValueError,
    ),
    "sh.lift(lambda x: {'a': map(jnp.sin, [x])})(v)": (r"class `map`, at `\['a'\]`\n.*a list of its items", TypeError),
    "sh.lift(lambda x: (jnp.sin(y) for y in [x]))(v)": ("a result of `<lambda>` .* class `generator`", TypeError),
    "sh.lift(lambda x: {'a': x}.values())(v)": ("a result of `<lambda>` .* class `dict_values`", TypeError),
    "sh.lift(lambda x: lambda: jnp.sin(x))(v)()": (
        r"float32\[8,4\], left its trace",
        jax.errors.UnexpectedTracerError,
    ),
    "sh.jit(lambda x: x.type)(v)": ("a result of `<lambda>` is a type", ValueError),
    "sh.jit(lambda x: sh.jit(g)(x, 'a'))(v)": ("`g` takes arrays, .* class `str`, at `y`", TypeError),
    "sh.jit(f).lower('a')": ("`f` takes arrays, .* class `str`, at `x`", TypeError),
    "sh.jit(f).trace()": ("missing 1 required positional argument: 'x'", TypeError),
    "sh.jit(f, static_argnums='y')": ("`static_argnums` of `jit` is an integer", TypeError),
    "sh.jit(f, donate_argnums=5)": (r"donate_argnums=\(5,\)", ValueError),
    "sh.einsum('ab,cb,ad->cd', v, v, v, optimize='no')": ("why: +Path optimizer 'no' not found", KeyError),
    "sh.jit(v)": (r"`jit` takes a function, not f32\[8@x,4\]", TypeError),
    "sh.grad(g, argnums='y')": ("`argnums` of `grad` is an integer", TypeError),
    "sh.jacrev(g, argnums=0.5)": ("`argnums` of `jacrev` is an integer", TypeError),
    "sh.vmap(f)('a')": ("`vmap` takes arrays, .* class `str`", TypeError),
    "sh.vmap(f)(sh.ones('f32[4]'), sh.ones('f32[2]'))": ("one axis had size 2", ValueError),
    "sh.checkpoint(g)(v, 'a')": ("`g` takes arrays, .* class `str`, at `y`", TypeError),
    "sh.checkpoint(lambda x: 'a')(v)": ("is no array, but of class `str`", TypeError),
    "sh.scan(lambda c, x: (c, x), 0.0, 'a')": ("`scan` takes arrays, .* class `str`", TypeError),
    "sh.scan(lambda c, x: (c, 'a'), 0.0, ones)": (r"a result of `scan` .* `str`, at `\[1\]`", TypeError),
    "sh.scan(lambda c, x: c, 0.0, ones)": (r"returns \(carry, y\), not an array", TypeError),
    "sh.cond('a', lambda: v, lambda: v)": ("`cond` takes arrays, .* class `str`", TypeError),
    "sh.cond(True, lambda: 'a', lambda: 'b')": ("a result of `cond` is no array", TypeError),
    "sh.cond(True, lambda x: v, lambda x: v)": (r"<lambda>\(\) missing 1", TypeError),
    "sh.while_loop(lambda c: 'a', lambda c: c, v)": ("a result of `while_loop` is no array", TypeError),
    "sh.map(lambda x: 'a', ones)": ("a result of `map` is no array", TypeError),
    "sh.vjp(f, 'a')": (r"`vjp` takes arrays, .* class `str`, at `primals\[0\]`", TypeError),
    "sh.reshape(v, (5, 5))": ("cannot reshape array of shape", TypeError),
    "sh.sum(v, axis=5)": ("axis 5 is out of bounds", ValueError),
    "sh.jit(lambda x: 1 if x[0] > 0 else 2)(whole)": ("has no bool while", jax.errors.TracerBoolConversionError),
    "sh.jit(lambda x: range(x[0].astype(int)))(whole)": ("no index", jax.errors.TracerIntegerConversionError),
    "sh.jit(lambda x: float(x[0]))(whole)": ("has no float while", jax.errors.ConcretizationTypeError),
    "sh.jit(lambda x: x.tolist())(whole)": ("has no tolist while", jax.errors.ConcretizationTypeError),
    "sh.jit(lambda x: np.asarray(x))(whole)": ("a function of numpy", jax.errors.TracerArrayConversionError),
    "left_its_trace() + 1": (r"f32\[8\], left its trace", jax.errors.UnexpectedTracerError),
    "sh.jit(lambda x, left=left_its_trace(): x * left)(whole)": (
        r"f32\[8\], left its trace",
        jax.errors.UnexpectedTracerError,
    ),
    "sh.make_mesh((2, 4))": (r"axes of a mesh are given by name, .*not \(2, 4\)", TypeError),
    "sh.make_mesh('x')": ("axes of a mesh are given by name, .*not 'x'", TypeError),
    "sh.comm_budget(10)": ("takes 0 positional arguments but 1 was given; it has kinds, axes, bytes", TypeError),
    "sh.shard_map(f, out_specs='[...]')(x=v)": ("`f` takes `x` by its place, and not by name", TypeError),
    "sh.shard_map(f, in_specs=('[_]',) * 3, out_specs='[...]')(v)": (
        r"`in_specs` is no prefix .* it is \('\[_\]', .* values are \(f32\[8@x,4\],\)",
        TypeError,
    ),
    "sh.jvp(f, v, v)": (r"a tuple of arguments .*sh.jvp\(f, \(x,\), \(t,\)\)", TypeError),
    "sh.associative_scan(lambda a, b: sh.sum(a), whole)": ("tuple index out of range", IndexError),
    "sh.grad(no_pair)(whole)": (r"`no_pair` returns \(result, residuals\), not an array", TypeError),
    "sh.vmap(jnp.sum)(v)": (r"was given to `jax.numpy.sum`", TypeError),
    "typed(ones)": (r"where: +program.py:1: typed\(x: an array\)", TypeError),
    "sh.add(whole, whole, out='[8@x]')": ("operands alone say .*sh.reshard", TypeError),
}


def left_its_trace() -> Any:
    left: list[Any] = []
    sh.jit(left.append)(sh.ones("f32[8]"))
    return left[0]


@sh.custom_vjp
def no_pair(x: Any) -> Any:
    return sh.sum(x)


forward: Any = sh.sum
no_pair.defvjp(forward, lambda _, ct: (ct,))


@sh.typed
def typed(x: Annotated[sh.Array, "f32[3]"]) -> Any:
    return x


def refusal(call: str, v: Any) -> Any:
    functions = {"f": f, "g": g, "left_its_trace": left_its_trace, "no_pair": no_pair, "typed": typed}
    with pytest.raises(sh.ShardingTypeError) as caught:
        run(call, {**functions, "jnp": jnp, "v": v, "whole": sh.ones("f32[8]"), "np": np, "ones": jnp.ones(3)})
    return caught.value


@pytest.mark.parametrize("call", CALLS)
def test_what_jax_refuses_is_told_in_the_one_shape_and_is_of_jaxs_kind_too(call: str, v: Any) -> None:
    error, (said, kind) = refusal(call, v), CALLS[call]
    assert re.search(said, str(error), re.DOTALL), str(error)
    assert isinstance(error, kind)
    assert not faults(error)
    assert not INSIDE.search(str(error)), str(error)


def test_an_argument_that_is_no_array(v: Any) -> None:
    error = refusal("sh.jit(g)(v, 'a')", v)
    assert str(error) == (
        "`g` takes arrays, and was given a value of class `str`, at `y`\n"
        "  where: program.py:1: g\n"
        "  try:   static_argnames= or static_argnums= for what is no array"
    )
    assert str(error.__cause__).startswith("Error interpreting argument to")


@dataclasses.dataclass
class Layer:
    kernel: Any


@pytest.mark.parametrize("call", ["sh.jit(f)(layer)", "sh.grad(f)(layer)", "sh.scan(f, layer, None, length=2)"])
def test_a_class_that_jax_does_not_know_is_said_to_be_registered(call: str, v: Any) -> None:
    class Local(Layer):
        pass

    for layer in (Layer(v), Local(v)):
        with pytest.raises(sh.ShardingTypeError) as caught:
            run(call, {"f": lambda *xs: xs, "layer": layer})
        name = type(layer).__name__
        assert caught.value.hints[-1] == f"jax.tree_util.register_dataclass({name}, ...) where its fields are arrays"


def test_a_model_with_functions_in_it_is_said_to_be_differentiated_without_them(v: Any) -> None:
    with pytest.raises(sh.ShardingTypeError, match="a function of the arrays alone"):
        run("sh.grad(f)(model)", {"f": lambda model: model, "model": {"act": jax.nn.relu, "kernel": v}})


MADE: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "jit": sh.jit,
    "grad": sh.grad,
    "vmap": sh.vmap,
    "checkpoint": sh.checkpoint,
    "scan": lambda f: lambda v: sh.scan(lambda c, _: (f(v), c), 0.0, None, length=2),
    "cond": lambda f: lambda v: sh.cond(jnp.sum(jnp.ones(2)) > 0, f, f, v),
}


@pytest.mark.parametrize("kind", [ValueError, TypeError, AssertionError, KeyError, AttributeError])
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_the_users_function_raises_stays_as_it_is(make: Any, kind: type[Exception], v: Any) -> None:
    mine = kind("mine")

    def wrong(x: Any) -> Any:
        raise mine

    with pytest.raises(kind) as caught:
        make(wrong)(v)
    assert caught.value is mine


def test_a_class_of_two_kinds_is_one_and_its_errors_can_be_pickled() -> None:
    kind = also(jax.errors.TracerBoolConversionError)
    assert kind is also(jax.errors.TracerBoolConversionError)
    assert also(TypeError) is sh.ShardingTypeError
    read = pickle.loads(pickle.dumps(kind("what", why="why", hints=["hint"])))
    assert type(read) is sh.ShardingTypeError
    assert str(read) == "what\n  why:   why\n  try:   hint"
