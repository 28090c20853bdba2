"""Functions of JAX and numpy that are given a typed value say so in our shape; operators beside plain arrays work."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import shtypes as sh
from shtypes._compat.patches import PATCHES, without
from tests.end_to_end import host
from tests.tolerance import assert_close

X = np.arange(1, 9, dtype=np.float32).reshape(2, 4)


pytestmark = pytest.mark.mesh({"x": 2})


@pytest.mark.parametrize("mode", [lambda f: f, sh.jit, jax.jit], ids=["eager", "sh.jit", "jax.jit"])
@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x: jnp.add(x, 1), "`jax.numpy.add`"),
        (lambda x: jnp.add(1, x), "`jax.numpy.add`"),
        (lambda x: -jnp.sin(x), "`jax.numpy.sin`"),
        (lambda x: jnp.einsum("ij->i", x), "`jax.numpy.einsum`"),
        (lambda x: jnp.where(True, x, 0.0), "`jax.numpy.where`"),
        (lambda x: jnp.stack([x, x]), "`jax.numpy.stack`"),
        (lambda x: -jax.nn.relu(x), "`jax.nn.relu`"),
        (lambda x: -lax.sin(x), "sin`"),
        (lambda x: lax.dynamic_slice(x, (0, 0), (1, 1)), "`jax.lax.dynamic_slice`"),
        (lambda x: np.add(x, 1), "numpy"),
        (lambda x: -np.sin(x), "numpy"),
        (lambda x: np.multiply(x, x), "numpy"),
    ],
)
def test_a_function_of_arrays_says_that_it_takes_no_typed_value(
    call: Callable[[Any], Any], named: str, mode: Callable[..., Any]
) -> None:
    with pytest.raises(sh.ShardingTypeError) as error:
        mode(call)(sh.array(X, "[2,4@x]"))
    what, where = error.value.what, error.value.where
    assert what.startswith("a typed value, f32[2,4@x], was given to ")
    assert named in what
    assert where.startswith("test_interop_errors.py:")
    assert "refuse" not in where


@pytest.mark.parametrize("call", [lambda x: np.concatenate([x, x]), np.linalg.norm, lambda x: np.allclose(x, x)])
def test_numpy_reads_a_value_where_it_is_and_is_refused_where_it_is_traced(call: Callable[[Any], Any]) -> None:
    x = sh.array(X, "[2,4@x]")
    np.testing.assert_array_equal(call(x), call(X))
    with pytest.raises(sh.ShardingTypeError, match="was given to a function of numpy") as error:
        jax.jit(lambda x: np.asarray(call(x)))(x)
    assert error.value.where.startswith("test_interop_errors.py:")


@pytest.mark.parametrize("mode", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("op", ["sub", "pow", "matmul", "lt", "eq"])
def test_operators_of_plain_arrays_and_numbers_leave_the_operation_to_the_typed_value(op: str, mode: Any) -> None:
    apply = getattr(operator, op)
    other = X.T if op == "matmul" else X[:, ::-1].copy()
    x = sh.array(X, "[2,4]")
    plain = [other, jax.device_put(other)]
    if op != "matmul":
        plain.append(np.float32(2))
    for a in plain:
        found = mode(lambda x, a=a: apply(a, x))(x)
        assert isinstance(found, sh.Array)
        assert_close(host(found), apply(np.asarray(a), X))


def test_where_jax_does_not_leave_an_operator_to_us_the_error_says_what_to_write() -> None:
    (patch,) = (p for p in PATCHES if p.path == "Tracer.__init__")
    with without(patch), pytest.raises(sh.ShardingTypeError, match="an operator of a traced plain array") as error:
        jax.jit(lambda x, a: a * x)(sh.array(X, "[2,4]"), X)
    assert error.value.hints[0] == "write the typed one first: x * a, not a * x"
    assert error.value.where.startswith("test_interop_errors.py:")


MODES: dict[str, Any] = {"eager": lambda f: f, "jit": jax.jit}

LIFTED = "sh.lift(f) for a function f that is written with JAX's"
#: What JAX's functions are called in the error, and what it says to write instead.
NAMED: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "jax.lax.psum": (
        lambda x: lax.psum(x, "x"),
        ("sh.all_reduce(x, axis) sums a pending value", "sh.lax.psum in sh.shard_map"),
    ),
    "jax.lax.pmean": (lambda x: lax.pmean(x, "x"), ("sh.lax.pmean in sh.shard_map",)),
    "jax.lax.pmax": (lambda x: lax.pmax(x, "x"), ("sh.lax.pmax in sh.shard_map",)),
    "jax.lax.pmin": (lambda x: lax.pmin(x, "x"), ("sh.lax.pmin in sh.shard_map",)),
    "jax.lax.psum_scatter": (
        lambda x: lax.psum_scatter(x, "x"),
        ("sh.reduce_scatter(x, axis, dim)", "sh.lax.psum_scatter in sh.shard_map"),
    ),
    "jax.lax.ppermute": (lambda x: lax.ppermute(x, "x", [(0, 1)]), ("sh.lax.ppermute in sh.shard_map",)),
    "jax.lax.pcast": (lambda x: lax.pcast(x, "x", to="varying"), ("sh.lax.pcast in sh.shard_map",)),
    "jax.numpy.add": (lambda x: jax.tree.map(jnp.add, x, x), ("sh.add", LIFTED)),
    "jax.numpy.exp": (lambda x: jax.tree.map(jnp.exp, {"a": x}), ("sh.exp", LIFTED)),
    "jax.nn.softmax": (jax.nn.softmax, ("sh.nn.softmax", LIFTED)),
    "jax.numpy.linalg.norm": (jnp.linalg.norm, ("sh.linalg.norm", LIFTED)),
    "jax.numpy.roots": (jnp.roots, ("sh.roots", LIFTED)),
    "jax.numpy.trim_zeros": (jnp.trim_zeros, ("x[start:stop], of positions that are known",)),
    "jax.debug.print": (lambda x: jax.debug.print("{}", x), ("sh.debug.print",)),
    "jax.debug.callback": (lambda x: jax.debug.callback(print, x), ("sh.debug.callback",)),
    "jax.pure_callback": (
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((2, 4), np.float32), x),
        ("sh.local_map(lambda x: jax.pure_callback(f, jax.typeof(x), x), out=type), on each shard",),
    ),
    "jax.experimental.io_callback": (
        lambda x: io_callback(np.sin, jax.ShapeDtypeStruct((2, 4), np.float32), x),
        ("sh.local_map(lambda x: io_callback(f, jax.typeof(x), x), out=type), on each shard",),
    ),
    "jax.jacrev": (jax.jacrev(lambda x: x * x), ("sh.jacrev", LIFTED)),
    "jax.jacfwd": (jax.jacfwd(lambda x: x * x), ("sh.jacfwd", LIFTED)),
}  # fmt: skip


#: Those that ask how many devices an axis has before they look at what they are given.
OF_AN_AXIS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "jax.lax.all_gather": (
        lambda x: lax.all_gather(x, "x"),
        ("sh.all_gather(x, axis)", "sh.lax.all_gather in sh.shard_map"),
    ),
    "jax.lax.all_to_all": (
        lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True),
        ("sh.all_to_all(x, axis, dim)", "sh.lax.all_to_all in sh.shard_map"),
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMED)
def test_the_function_is_named_and_so_is_what_to_write_instead(name: str, mode: str) -> None:
    call, hints = NAMED[name]
    with pytest.raises(sh.ShardingTypeError) as caught:
        MODES[mode](call)(sh.array(X, "[2,4@x]"))
    error = caught.value
    error.where = error.where.partition(": ")[2]
    assert str(error) == "\n".join(
        [
            f"a typed value, f32[2,4@x], was given to `{name}`",
            f"  where: {name}(f32[2,4@x])",
            "  why:   it does not know the value's type",
            *[f"  try:   {hint}" for hint in (*hints, "x.to_jax() gives a plain jax.Array")],
        ]
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OF_AN_AXIS)
def test_a_collective_that_asks_for_its_axis_first_is_refused_where_there_is_one(name: str, mode: str) -> None:
    call, hints = OF_AN_AXIS[name]
    x = sh.array(X, "[2,4]")
    with pytest.raises(NameError, match="unbound axis name: x"):  # as of any array
        MODES[mode](call)(x)
    with pytest.raises(sh.ShardingTypeError, match=f"was given to `{name}`") as caught:
        MODES[mode](jax.vmap(call, axis_name="x"))(x)
    assert caught.value.hints == (*hints, "x.to_jax() gives a plain jax.Array")


def test_a_function_of_numpy_is_told_how_the_value_is_read() -> None:
    with pytest.raises(sh.ShardingTypeError, match=r"was given to `numpy\.sin`") as caught:
        np.sin(sh.array(X, "[2,4@x]"))
    assert caught.value.hints[-1] == "outside of traced code, np.asarray(x) reads the value"


@pytest.mark.parametrize("callback", [jax.pure_callback, io_callback])
def test_callbacks_that_return_arrays_run_on_each_shard(callback: Any) -> None:
    x = sh.array(X, "f32[2,4@x]")
    on_shards = sh.local_map(lambda x: callback(np.sin, jax.typeof(x), x), out="[2,4@x]")
    for found in (on_shards(x), jax.jit(on_shards)(x), sh.jit(on_shards)(x)):
        assert_close(host(found), np.sin(X))


@pytest.mark.parametrize("mode", MODES)
def test_a_value_does_not_change_in_place(mode: str) -> None:
    def assign(x: Any) -> Any:
        x[0] = 1.0
        return x

    with pytest.raises(sh.ShardingTypeError) as caught:
        MODES[mode](assign)(sh.array(X, "[2,4@x]"))
    assert caught.value.what == "a typed value, f32[2,4@x], does not change in place"
    assert caught.value.hints == ("x = x.at[0].set(value)",)


@pytest.mark.parametrize("mode", MODES)
def test_a_typed_value_is_an_array_to_libraries_and_has_only_what_its_type_says(mode: str) -> None:
    def ask(x: Any) -> Any:
        assert [isinstance(x, kind) for kind in (jax.Array, sh.Array, np.ndarray)] == [True, True, False]
        assert (getattr(x, "sharding", None) is None) == isinstance(x, jax.core.Tracer)  # as of a plain array
        assert x.weak_type is False
        return x

    x = MODES[mode](ask)(sh.array(X, "[2,4@x]")).block_until_ready()
    assert issubclass(type(x), jax.Array)
    assert (x.is_fully_addressable, x.is_fully_replicated, x.is_ready()) == (True, False, True)
    assert 3.0 in x
    assert 99.0 not in x
    with pytest.raises(sh.ShardingTypeError) as caught:
        print(x.device)
    assert type(caught.value).__name__ == "ShardingTypeError"
    assert isinstance(caught.value, AttributeError)
    line = caught.value.where
    assert line.startswith("test_interop_errors.py:")
    assert str(caught.value).replace(line, "LINE") == (
        "a typed value, f32[2,4@x], has no `device`\n"
        "  where: LINE\n"
        "  why:   its type says how it lies on the devices\n"
        "  try:   x.type\n"
        "  try:   x.to_jax().device"
    )


class Partition:
    """What equinox does: the leaves that are arrays are differentiated, the others are held."""

    def __init__(self, loss: Callable[[Any], Any]) -> None:
        self.loss = loss

    def grad(self, tree: Any) -> Any:
        structure: Any
        leaves, structure = jax.tree.flatten(tree)
        chosen = [isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves]

        def of_arrays(arrays: list[Any]) -> Any:
            rest = iter(arrays)
            merged = [next(rest) if c else x for c, x in zip(chosen, leaves, strict=True)]
            return self.loss(jax.tree.unflatten(structure, merged))

        grads = iter(jax.grad(of_arrays)([x for c, x in zip(chosen, leaves, strict=True) if c]))
        return jax.tree.unflatten(structure, [next(grads) if c else None for c in chosen])


def test_a_library_that_asks_which_leaves_are_arrays_differentiates_typed_ones() -> None:
    model = {"w": sh.array(X, "f32[2,4@x]"), "n": 3, "name": 0.5}
    partition = Partition(lambda m: sh.sum(sh.square(m["w"])) * m["n"])
    for grads in (partition.grad(model), jax.jit(partition.grad, static_argnums=())(model)):
        assert grads["n"] is None or grads["n"] == 3
        assert_close(host(grads["w"]), 6 * X)


def test_equinox_and_flax_differentiate_typed_modules() -> None:
    eqx, nnx = pytest.importorskip("equinox"), pytest.importorskip("flax.nnx")

    body = {"__annotations__": {"w": Any, "n": int}, "n": eqx.field(static=True)}
    Module: Any = type(eqx.Module)("Module", (eqx.Module,), body)  # noqa: N806  # a class of a library that may be absent

    grads = eqx.filter_jit(eqx.filter_grad(lambda m: sh.sum(sh.square(m.w)) * m.n))(
        Module(sh.array(X, "f32[2,4@x]"), 3)
    )
    assert_close(host(grads.w), 6 * X)
    param = nnx.Param(sh.array(X, "f32[2,4@x]"))

    def doubled(p: Any) -> Any:
        p[...] = p[...] * 2
        return sh.sum(p[...])

    nnx.jit(doubled)(param)
    assert_close(host(param[...]), 2 * X)


# jax.grad

W = np.asarray([1.0, 2.0, 3.0, 4.0], np.float32)


@pytest.mark.one_in(13)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("text", ["f32[4@x]", "f32[4]", "f32[4]{I:x}", "f32[4]{R:x}"])
def test_grad_of_jax_is_ours(text: str, policy: str) -> None:
    with sh.policy(policy):
        w, x = sh.array(W, text), sh.array(W[::-1].copy(), "f32[4@x]")

        def loss(w: Any) -> Any:
            return sh.sum(w * w * x)

        wanted = sh.grad(loss)(w)
        for mode in (lambda f: f, jax.jit, sh.jit):
            value, grad = mode(jax.value_and_grad(loss))(w)
            assert grad.type == wanted.type == w.type.cotangent()
            assert_close(host(grad), 2 * W * W[::-1])
            assert_close(host(value), (W * W * W[::-1]).sum())
        assert str(jax.make_jaxpr(jax.grad(loss))(w)) == str(jax.make_jaxpr(sh.grad(loss))(w))


def test_what_is_no_loss_is_said_as_sh_grad_says_it() -> None:
    x = sh.array(W, "f32[4@x]")
    with pytest.raises(sh.ShardingTypeError) as caught:
        jax.grad(lambda x: x * x)(x)
    line = caught.value.where.partition(": ")[0]
    assert line.startswith("test_interop_errors.py:")
    assert str(caught.value).replace(line, "LINE") == (
        "a gradient needs a scalar loss, not f32[4@x]\n"
        "  where: LINE: jax.grad(f32[4@x])\n"
        "  why:   a gradient is of one number\n"
        "  try:   sh.sum(loss) or sh.mean(loss)\n"
        "  try:   sh.vjp takes a cotangent for results of any shape"
    )
    with pytest.raises(sh.ShardingTypeError, match="varies over mesh axis `x`"):
        jax.grad(lambda x: sh.reinterpret(sh.sum(sh.all_gather(x, "x")), x="V"))(x)
    with pytest.raises(sh.ShardingTypeError, match="a gradient needs a loss of real numbers"):
        jax.grad(lambda x: sh.argmax(sh.all_gather(x, "x")))(x)
