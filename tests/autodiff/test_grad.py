"""Gradients of typed losses: right in every state of the loss, in every way to call them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests import small_models as p
from tests.tolerance import SHORT, assert_close

ALL = (0, 1, 2)


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    return p.mesh()


def as_it_is(f: Callable[..., Any]) -> Callable[..., Any]:
    return f


@pytest.mark.core
@pytest.mark.parametrize("compile_", [as_it_is, jax.jit], ids=["eager", "jit"])
def test_a_local_loss_has_the_gradient_of_the_global_one(compile_: Callable[..., Any]) -> None:
    args = p.values()
    value, grads = compile_(sh.value_and_grad(p.loss, argnums=ALL))(*args)
    assert value.type == sh.ShType.parse("f32[]{U:dp, R:tp}")
    p.assert_close(value, p.expected()[0])
    p.assert_gradients(grads, args, p.expected()[1])


@pytest.mark.one_in(7)
@pytest.mark.parametrize("states", list(itertools.product("RIU", repeat=2)), ids="".join)
def test_the_gradient_does_not_depend_on_the_state_of_the_loss(states: tuple[str, str]) -> None:
    dp, tp = states
    args = p.values()

    def loss(*args: Any) -> Any:
        return sh.reshard(p.loss(*args), f"[]{{{dp}:dp, {tp}:tp}}")

    value, grads = jax.jit(sh.value_and_grad(loss, argnums=ALL))(*args)
    assert value.type.canonical() == sh.ShType.parse(f"f32[]{{{dp}:dp, {tp}:tp}}").canonical()
    p.assert_gradients(grads, args, p.expected()[1])


def test_the_seed_of_a_local_loss_communicates_nothing() -> None:
    x, w, _ = p.values()
    local = sh.grad(lambda x: sh.sum(x @ w))
    assert not [e for e in p.equations(local, x) if "U->" in e]


def test_jax_grad_takes_the_loss_as_a_plain_array() -> None:
    args = p.values()
    p.assert_gradients(jax.jit(jax.grad(p.plain_loss_of, argnums=ALL))(*args), args, p.expected()[1])
    p.assert_gradients(sh.grad(p.plain_loss_of, argnums=ALL)(*args), args, p.expected()[1])


@pytest.mark.parametrize("argnums", [0, -1, (1,), (2, 0)], ids=str)
def test_argnums_choose_and_order_the_gradients(argnums: Any) -> None:
    args = p.values()
    grads = sh.grad(p.loss, argnums=argnums)(*args)
    wanted = jax.tree.map(lambda i: p.expected()[1][i], argnums)
    assert isinstance(grads, tuple) == isinstance(argnums, tuple)
    p.assert_close(grads, wanted)


def test_parameters_may_be_trees_with_plain_leaves() -> None:
    x, w_in, w_out = p.values()
    params = {"in": w_in, "out": [w_out], "gain": jnp.float32(2.0)}

    def loss(params: Any, x: Any, *, scale: float) -> Any:
        out = p.mlp(x, params["in"], params["out"][0])
        return sh.sum(out * out) * params["gain"] * scale

    value, grads = sh.value_and_grad(loss)(params, x, scale=0.5)
    p.assert_close(value, p.expected()[0])
    p.assert_close(grads["in"], p.expected()[1][1])
    p.assert_close(grads["out"][0], p.expected()[1][2])
    assert_close(grads["gain"], p.expected()[0] / 2)
    assert not isinstance(grads["gain"], sh.Array)


def test_aux_results_are_typed_or_plain_and_pass_through() -> None:
    args = p.values()

    def loss(*args: Any) -> Any:
        return p.loss(*args), {"out": p.mlp(*args), "step": jnp.int32(3)}

    for compile_ in (as_it_is, jax.jit):
        (value, aux), grads = compile_(sh.value_and_grad(loss, has_aux=True))(*args)
        p.assert_close(value, p.expected()[0])
        p.assert_close(grads, p.expected()[1][0])
        p.assert_close(aux["out"], p.one_device(p.reference_mlp, p.X, p.W_IN, p.W_OUT))
        assert int(aux["step"]) == 3
        assert not isinstance(aux["out"].type, jax.core.Tracer)
        grads, aux = compile_(sh.grad(loss, has_aux=True))(*args)
        p.assert_close(grads, p.expected()[1][0])


def test_a_value_used_twice_gets_both_gradients() -> None:
    x, _, _ = p.values()
    wanted = p.one_device(jax.grad(lambda x: (jax.nn.silu(x) * x).sum()), p.X)
    p.assert_gradients(sh.grad(lambda x: sh.sum(sh.silu(x) * x))(x), x, wanted)


def test_an_unused_argument_has_a_zero_gradient_of_its_type() -> None:
    x, w, _ = p.values()
    grad = sh.grad(lambda w, x: sh.sum(x * x))(w, x)
    p.assert_gradients(grad, w, 0 * p.W_IN)


def test_an_integer_argument_is_refused_or_has_a_float0_gradient() -> None:
    x, _, _ = p.values()
    ids = sh.array(np.arange(p.BATCH, dtype=np.int32), "i32[batch@dp]")

    def loss(x: Any, ids: Any) -> Any:
        return sh.sum(x * sh.expand_dims(ids, 1))

    wanted = np.broadcast_to(np.arange(p.BATCH)[:, None], p.X.shape)
    p.assert_close(sh.grad(loss)(x, ids), wanted)
    with pytest.raises(sh.ShardingTypeError, match=r"argument 1 of type i32\[batch@dp\] has no gradient"):
        sh.grad(loss, argnums=(0, 1))(x, ids)
    grads = sh.grad(loss, argnums=(0, 1), allow_int=True)(x, ids)
    p.assert_close(grads[0], wanted)
    assert grads[1].dtype == jax.dtypes.float0
    assert grads[1].shape == (p.BATCH,)


def test_a_gradient_inside_a_gradient_is_right() -> None:
    x, w_in, w_out = p.values()

    def squared_gradient(x: Any) -> Any:
        grad = sh.all_reduce(sh.grad(p.loss)(x, w_in, w_out))
        return sh.sum(grad * grad)

    def reference(x: Any) -> Any:
        return (jax.grad(p.reference_loss)(x, p.W_IN, p.W_OUT) ** 2).sum()

    wanted = p.one_device(jax.grad(reference), p.X)
    p.assert_close(sh.grad(squared_gradient)(x), wanted, 4 * SHORT)
    p.assert_close(jax.jit(sh.grad(squared_gradient))(x), wanted, 4 * SHORT)


def test_a_gradient_inside_a_loop_or_a_map_is_right() -> None:
    _, w_in, w_out = p.values()
    rows = sh.array(p.ROWS, "f32[5, batch@dp, hidden]")
    of_row = sh.grad(p.loss, argnums=1)
    wanted = p.one_device(jax.vmap(lambda x: jax.grad(p.reference_loss, 1)(x, p.W_IN, p.W_OUT)), p.ROWS)
    p.assert_close(sh.vmap(of_row, in_axes=(0, None, None))(rows, w_in, w_out), wanted)
    _, looped = jax.jit(lambda rows: sh.scan(lambda c, x: (c, of_row(x, w_in, w_out)), 0, rows))(rows)
    p.assert_close(looped, wanted)


def test_a_holomorphic_function_has_a_complex_gradient() -> None:
    z = sh.array((p.X + 1j).astype(np.complex64), "c64[4@dp,8]")
    wanted = p.one_device(jax.grad(lambda z: (z * z * z).sum(), holomorphic=True), (p.X + 1j).astype(np.complex64))
    p.assert_close(sh.grad(lambda z: sh.sum(z * z * z), holomorphic=True)(z), wanted)


def test_the_printed_gradient_is_the_typed_backward_program() -> None:
    x, w, _ = p.values()
    text = str(jax.make_jaxpr(sh.grad(lambda w, x: sh.sum(x @ w)))(w, x))
    assert "f32[hidden, inner@tp]{U:dp} = einsum" in text
    assert "broadcast" in text


# vjp


def test_vjp_takes_cotangents_of_the_mapped_types() -> None:
    x, w, _ = p.values()
    out, pull = sh.vjp(lambda x, w: x @ w, x, w)
    ct = sh.ones_like(out)
    dx, dw = pull(ct)
    p.assert_gradients((dx, dw), (x, w), (np.ones((4, 16)) @ p.W_IN.T, p.X.T @ np.ones((4, 16))))
    assert pull.argument_types == (out.type.cotangent(),)  # type: ignore[attr-defined]
    assert sh.linearize(lambda x, w: x @ w, x, w)[1].argument_types == (x.type, w.type)


def test_vjp_reads_a_number_as_that_number_in_each_place() -> None:
    args = p.values()
    _, pull = sh.vjp(p.loss, *args)
    p.assert_gradients(pull(1), args, p.expected()[1])
    _, pull, aux = sh.vjp(lambda x: (x * x, {"x": x}), args[0], has_aux=True)
    p.assert_close(pull(0.5)[0], p.X)
    p.assert_close(aux["x"], p.X)


@pytest.mark.parametrize(
    ("cotangent", "words"),
    [
        (
            lambda x, out: sh.reshard(out, dp="R"),
            r"has type f32\[batch, inner@tp\] instead of f32\[batch@dp, inner@tp\]",
        ),
        (lambda x, out: np.ones(out.shape, np.float32), "is a typed value, not ndarray"),
        (lambda x, out: (out, out), "the tree of the result"),
    ],
    ids=["state", "plain", "tree"],
)
def test_vjp_refuses_a_cotangent_of_another_type(cotangent: Callable[..., Any], words: str) -> None:
    x, w, _ = p.values()
    out, pull = sh.vjp(lambda x: x @ w, x)
    with pytest.raises(sh.ShardingTypeError, match=words):
        pull(cotangent(x, out))


def test_jax_vjp_refuses_a_cotangent_of_another_type() -> None:
    x, w, _ = p.values()
    _, pull = jax.vjp(lambda w: x @ w, w)
    with pytest.raises(ValueError, match=r"f32\[hidden, inner@tp\]"):
        pull(w)


# messages


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda x: x * 2, "a gradient needs a scalar loss, not f32"),
        (lambda x: sh.sum(sh.astype(x, "i32")), "real numbers, not i32"),
        (lambda x: sh.reinterpret(sh.all_reduce(sh.sum(x)), dp="V"), "varies over mesh axis `dp`"),
        (lambda x: (sh.sum(x), sh.sum(x)), "returned tuple"),
        (lambda x: x.to_jax(), r"returned float32\[4@dp,8\]"),
    ],
    ids=["vector", "int", "varying", "tuple", "plain vector"],
)
def test_a_loss_that_is_none_is_explained(loss: Callable[..., Any], words: str) -> None:
    x, _, _ = p.values()
    with pytest.raises(sh.ShardingTypeError, match=words):
        sh.grad(loss)(x)


def test_the_message_for_a_varying_loss_says_what_to_write() -> None:
    x, _, _ = p.values()
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.grad(lambda x: sh.reinterpret(sh.all_reduce(sh.sum(x)), dp="V"))(x)
    (hint,) = caught.value.hints
    assert hint == 'sh.reinterpret(loss, dp="U") if the loss is their sum'
    mended = sh.grad(lambda x: sh.reinterpret(sh.reinterpret(sh.all_reduce(sh.sum(x)), dp="V"), dp="U"))(x)
    p.assert_gradients(mended, x, 2 * np.ones_like(p.X))  # each of two devices holds the whole sum


@pytest.mark.parametrize("argnums", [3, -4], ids=str)
def test_a_missing_argument_is_named(argnums: int) -> None:
    with pytest.raises(sh.ShardingTypeError, match="`loss` has no positional argument"):
        sh.grad(p.loss, argnums=argnums)(*p.values())


def test_an_argument_that_is_no_array_is_named() -> None:
    x, _, _ = p.values()
    with pytest.raises(sh.ShardingTypeError, match=r"argument 0\['name'\] is no array"):
        sh.grad(lambda config: sh.sum(config["x"]))({"x": x, "name": "layer"})


# plain losses work as in JAX


def test_a_plain_function_has_the_gradient_of_jax() -> None:
    def f(x: Any) -> Any:
        return jnp.sin(x).sum()

    assert_close(sh.grad(f)(p.X), np.cos(p.X))
    assert float(sh.grad(lambda x: x * x)(3.0)) == 6.0


# tangents and cotangents of other types


@pytest.mark.parametrize("plain", [False, True], ids=["typed", "plain"])
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_what_is_said_of_a_tangent_in_local_mode_can_be_written(policy: str, plain: bool) -> None:
    """A value varies there; no reshard makes a value vary."""

    def given() -> Any:
        return jnp.ones(4) if plain else sh.ones("f32[4]")

    def of(ct: Callable[[], Any], forward: bool) -> Any:
        def body(x: Any) -> Any:
            push = sh.linearize(sh.sin, x)[1] if forward else lambda ct: sh.vjp(sh.sin, x)[1](ct)[0]
            return push(ct())

        return sh.shard_map(body, in_specs=jax.P("x"), out_specs=jax.P("x"))

    values = np.arange(8, dtype=np.float32)
    with sh.policy(policy), sh.use_mesh(sh.make_mesh({"x": 2})):
        x = sh.array(values, "f32[8@x]")
        for forward in (True, False):
            with pytest.raises(sh.ShardingTypeError, match=r"\{V:x\}") as caught:
                of(given, forward)(x)
            (hint,) = caught.value.hints
            assert hint in ('sh.lax.pvary(tangent, "x")', 'sh.lax.pvary(ct, "x")')
            found = of(lambda: sh.lax.pvary(given(), "x"), forward)(x)
            assert_close(np.asarray(found.to_jax()), np.cos(values))


@pytest.mark.parametrize("compile_", [as_it_is, jax.jit], ids=["eager", "jit"])
def test_a_linear_function_is_transposed_by_jax(compile_: Callable[..., Any]) -> None:
    """To cotangents of its results, in the types that these have: pending sums where results are reduced."""
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        matrix = np.arange(12, dtype=np.float32).reshape(4, 3)
        a, w = sh.array(matrix, "f32[4@x, 3]"), sh.array(np.ones(3, np.float32), "f32[3]{R:x}")
        for f, ct in (
            (lambda w: a @ w, sh.array(np.ones(4, np.float32), "f32[4@x]")),
            (sh.lift(jnp.cumsum), sh.ones("f32[3]{U:x}")),
            (lambda w: sh.sum(a @ w), sh.ones("f32[]{R:x}")),
        ):
            (found,) = compile_(lambda ct, f=f: jax.linear_transpose(f, w)(ct))(ct)
            wanted = sh.vjp(f, w)[1](ct)[0]
            assert str(found.type) == "f32[3]{U:x}"
            assert_close(np.asarray(sh.all_reduce(found).to_jax()), np.asarray(sh.all_reduce(wanted).to_jax()))
        with pytest.raises(sh.ShardingTypeError, match=r"the cotangent has type f32\[3\] instead of f32\[3\]\{U:x\}"):
            jax.linear_transpose(lambda w: w * 2, w)(sh.ones("f32[3]{R:x}"))
        with pytest.raises(
            sh.ShardingTypeError, match=r"the cotangent has type float32\[3\] instead of f32\[3\]\{U:x\}"
        ):
            jax.linear_transpose(lambda w: w * 2, w)(jnp.ones(3))


FLAT: dict[str, Callable[[Any, Any], Any]] = {
    "sign": lambda m, x: m.sign(x),
    "round": lambda m, x: m.round(3 * x),
    "a function by several primitives": lambda m, x: m.floor_divide(x, 0.5),
    "a product of such": lambda m, x: m.rint(2 * x) * m.sign(x),
    "a mask": lambda m, x: (x > 0.1).astype("float32"),
    "one of several results": lambda m, x: m.modf(3 * x)[1],
    "in a program with its own jit": lambda m, x: jax.jit(m.ceil)(x),
    "in the body of a loop": lambda m, x: jax.lax.scan(
        lambda c, _: (m.floor(c + x), None), m.zeros_like(x), None, length=3
    )[0],
}


@pytest.mark.one_in(13)
@pytest.mark.parametrize("lifted", [False, True], ids=["typed", "lifted"])
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("flat", FLAT.values(), ids=FLAT)
def test_no_cotangent_is_sent_to_where_the_derivative_is_zero(flat: Any, policy: Any, lifted: bool) -> None:
    """What JAX's rules know to be zero is so before anything is sent, and not after."""
    plain = np.linspace(-1, 1, 4, dtype=np.float32)

    def loss(m: Any, x: Any, z: Any) -> Any:
        y = sh.lift(lambda x: flat(jnp, x))(x) if lifted and m is sh else flat(m, x)
        return m.sum(m.sin(sh.reshard(y, "[_@dp]") if m is sh else y) * z)

    with sh.policy(policy):
        args = sh.array(plain, "[4]{I:dp}"), sh.array(plain, "[4@dp]")
        step = sh.grad(functools.partial(loss, sh), argnums=(0, 1))
        assert [e for e in sh.ledger(step, *args) if e.direction == "backward"] == []
        p.assert_gradients(step(*args), args, jax.jit(jax.grad(functools.partial(loss, jnp), (0, 1)))(plain, plain))


ON_AND_MESH = {"alone": ("", {"tp": 8}), "beside one of size 1": ("@dp", {"dp": 1, "tp": 8})}


@pytest.mark.parametrize(("on", "mesh"), ON_AND_MESH.values(), ids=ON_AND_MESH)
def test_a_cotangent_that_is_cast_for_free_is_resharded_from_before_the_cast(on: str, mesh: dict[str, int]) -> None:
    def loss(w: Any, x: Any) -> Any:
        w = sh.reshard(sh.reshard(w, f"[i,j{on}]"), "[i,j@tp]")
        return sh.reshard(sh.einsum("bi,ij->", x, w), "[]")

    with sh.use_mesh(sh.abstract_mesh(mesh)):
        sent = sh.ledger(sh.grad(loss), f"f32[i=8,j=8{on}]{{I:tp}}", "f32[b=4,i=8]").total.bytes
    assert sent == 8 * 8 * 4 * 7 // 8  # a gather of the slices; to sum the slices in place would send it twice
