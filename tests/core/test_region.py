"""The region lowering against the per-op lowering: the same values and types, the expected regions and collectives."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from tests.tolerance import assert_close

MESH = {"dp": 2, "tp": 2}
BATCH, HIDDEN, INNER, LAYERS = 4, 8, 16, 3

_rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    sampled: np.ndarray[Any, Any] = (_rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)
    return sampled


X, W_IN, W_OUT, SQUARE = normal(BATCH, HIDDEN), normal(HIDDEN, INNER), normal(INNER, HIDDEN), normal(HIDDEN, HIDDEN)
STACK, ROWS, IDS = normal(LAYERS, HIDDEN, HIDDEN), normal(5, BATCH, HIDDEN), np.arange(BATCH, dtype=np.int32)


pytestmark = pytest.mark.mesh(MESH)


def x() -> Any:
    return sh.array(X, "f32[batch@dp, hidden]")


def weights() -> tuple[Any, Any]:
    return sh.array(W_IN, "f32[hidden, inner@tp]"), sh.array(W_OUT, "f32[inner@tp, hidden]")


def stack() -> Any:
    return sh.array(STACK, "f32[layer, hidden, hidden]")


def square() -> Any:
    return sh.array(SQUARE, "f32[hidden, hidden]")


def plain(v: Any) -> Any:
    """A typed scalar as a plain one."""
    return sh.reshard(v, "[]{I:(dp,tp)}").to_jax()


def mlp(x: Any, w_in: Any, w_out: Any) -> Any:
    return sh.all_reduce(sh.silu(x @ w_in) @ w_out, "tp")


def loss(x: Any, w_in: Any, w_out: Any) -> Any:
    return plain(sh.sum(mlp(x, w_in, w_out) ** 2))


def layer(x: Any, w: Any) -> Any:
    return sh.tanh(x @ w)


def stacked_loss(ws: Any, x: Any, body: Callable[..., Any] = layer) -> Any:
    out, _ = lax.scan(lambda c, w: (body(c, w), None), x, ws, length=LAYERS)
    return plain(sh.sum(out * out))


def scanned(x: Any, ws: Any) -> Any:
    return lax.scan(lambda c, w: (layer(c, w), sh.sum(c, 0)), x, ws, length=LAYERS)


def remat(policy: Any = None) -> Callable[..., Any]:
    body = jax.checkpoint(layer, policy=policy)
    return jax.grad(lambda ws, x: stacked_loss(ws, x, body))


def accumulated(ws: Any, rows: Any) -> Any:
    """Gradients of several batches, summed while they are unreduced: a scan in a scan, reduced once."""
    zero = sh.zeros(f"f32[{LAYERS},{HIDDEN},{HIDDEN}]" + "{U:dp}")

    def step(total: Any, row: Any) -> tuple[Any, None]:
        return total + sh.grad(lambda ws: typed_stacked_loss(ws, row))(ws), None

    total, _ = sh.scan(step, zero, rows)
    return sh.all_reduce(total, "dp")


def typed_stacked_loss(ws: Any, x: Any) -> Any:
    out, _ = sh.scan(lambda c, w: (layer(c, w), None), x, ws)
    return sh.sum(out * out)


def branch(x: Any) -> Any:
    return lax.cond(plain(sh.sum(x)) > 0, sh.sin, lambda x: x * 3.0, x)


def switched(i: Any, x: Any) -> Any:
    return plain(sh.sum(lax.switch(i, [sh.sin, sh.tanh, lambda x: x * x], x)))


def while_(x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, sh.sin(s[1])), (0, x))


def until(x: Any) -> Any:
    return lax.while_loop(lambda v: plain(sh.sum(v * v)) > 0.01, lambda v: v * 0.5, x)


def counted(x: Any) -> Any:
    def step(carry: Any, _: Any) -> tuple[Any, Any]:
        n, lr, v = carry
        return (n + 1, lr * 0.5, v * sh.constant(lr)), plain(sh.sum(v))

    return lax.scan(step, (0, jnp.float32(1.0), x), None, length=4)


def hvp(x: Any, v: Any) -> Any:
    return jax.jvp(jax.grad(lambda x: plain(sh.sum(sh.sin(x) * x))), (x,), (v,))[1]


@sh.custom_vjp
def clipped(x: Any) -> Any:
    return sh.sin(x)


clipped.defvjp(lambda x: (sh.sin(x), x), lambda x, ct: (ct * sh.cos(x) * 0.5,))


@jax.custom_jvp
def with_jvp(x: Any) -> Any:
    return sh.sin(x)


with_jvp.defjvp(lambda primals, tangents: (sh.sin(primals[0]), tangents[0] * 2.0))


def noise(key: Any, x: Any) -> Any:
    first, second = jax.random.split(key)
    bits = sh.from_jax(jax.random.normal(first, (BATCH, HIDDEN)))
    return x + bits, second


def keys_in_a_carry(key: Any, x: Any) -> Any:
    def step(carry: Any, _: Any) -> tuple[Any, None]:
        key, v = carry
        key, now = jax.random.split(key)
        return (key, v * sh.constant(jax.random.uniform(now))), None

    (key, v), _ = lax.scan(step, (key, x), None, length=2)
    return jax.random.key_data(key), v


def sgd(params: Any, x: Any) -> Any:
    """A step with an update of typed values."""
    grads = jax.grad(lambda p: loss(x, *p))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * sh.reshard(g, p.type), params, grads)


def update_elsewhere(params: Any, x: Any) -> Any:
    """A step whose update knows plain arrays only, as those of optimizer libraries."""
    grads = jax.grad(lambda p: loss(x, *p))(params)
    grads = jax.tree.map(lambda p, g: sh.reshard(g, p.type), params, grads)
    new = jax.tree.map(lambda p, g: p.to_jax() - 0.1 * g.to_jax(), params, grads)
    return jax.tree.map(lambda a, p: sh.from_jax(a, p.type), new, params)


def shown(x: Any) -> Any:
    total = plain(sh.sum(x))
    jax.debug.callback(lambda _: None, total)
    return x * sh.constant(total)


def on_the_host(x: Any) -> Any:
    total = plain(sh.sum(x))
    doubled = jax.pure_callback(lambda v: np.float32(2 * v), jax.ShapeDtypeStruct((), np.float32), total)
    return x * sh.constant(doubled)


def callback_in_a_loop(x: Any) -> Any:
    def step(carry: Any, _: Any) -> tuple[Any, None]:
        return shown(sh.sin(carry)), None

    return lax.scan(step, x, None, length=2)[0]


@jax.jit
def inner(x: Any) -> Any:
    return sh.sin(x)


@sh.jit
def inner_region(x: Any) -> Any:
    return sh.sin(x)


def repeated_layer(c: Any, w: Any) -> Any:
    return layer(layer(c, w), w)


@dataclass(frozen=True)
class Row:
    """A program, its arguments, and the regions that it takes.

    Attributes:
        f: The program.
        args: Makes its arguments.
        regions: How many manual computations it compiles to.
        reduces: How many all-reduces the compiled program has; None for any.
    """

    f: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    regions: int = 1
    reduces: int | None = None


def layers() -> tuple[Any, ...]:
    return stack(), x()


def all_three() -> tuple[Any, ...]:
    return x(), *weights()


def one() -> tuple[Any, ...]:
    return (x(),)


def params_and_x() -> tuple[Any, ...]:
    return list(weights()), x()


def key_and_x() -> tuple[Any, ...]:
    return jax.random.key(3), x()


def rows() -> tuple[Any, ...]:
    return stack(), sh.array(ROWS, "f32[micro, batch@dp, hidden]")


W_SHAPE = f"f32[{HIDDEN}, {HIDDEN}]"

PROGRAMS: dict[str, Row] = {
    "a layer": Row(mlp, all_three, reduces=1),
    "a pending sum": Row(lambda x, a, b: sh.silu(x @ a) @ b, all_three, reduces=0),
    "the gradient of a layer": Row(jax.grad(loss, argnums=(0, 1, 2)), all_three),
    "a typed loss": Row(sh.value_and_grad(lambda x, a, b: sh.sum(mlp(x, a, b) ** 2)), all_three),
    "scan": Row(scanned, lambda: (x(), stack()), reduces=0),
    "scan backwards, unrolled": Row(
        lambda x, w: sh.scan(lambda c, w: (layer(c, w), c), x, w, reverse=True, unroll=3), lambda: (x(), stack())
    ),
    "the gradient of scan": Row(jax.grad(stacked_loss, argnums=(0, 1)), layers),
    "scan of checkpoint": Row(remat(), layers),
    "scan of checkpoint with a policy": Row(remat(sh.checkpoint_policies.dots_saveable), layers),
    "checkpoint of scan": Row(jax.grad(jax.checkpoint(stacked_loss)), layers),
    "checkpoint of each layer": Row(
        jax.grad(lambda w, x: plain(sh.sum(jax.checkpoint(layer)(jax.checkpoint(layer)(x, w), w)))),
        lambda: (square(), x()),
    ),
    "the library's checkpoint": Row(
        jax.grad(lambda w, x: plain(sh.sum(sh.checkpoint(repeated_layer)(x, w)))), lambda: (square(), x())
    ),
    "accumulated gradients": Row(accumulated, rows, reduces=1),
    "cond": Row(branch, one),
    "the gradient of cond": Row(jax.grad(lambda x: plain(sh.sum(branch(x)))), one),
    "switch": Row(switched, lambda: (jnp.int32(1), x())),
    "the gradient of switch": Row(jax.grad(switched, argnums=1), lambda: (jnp.int32(2), x())),
    "while with a count": Row(while_, one),
    "while with a typed predicate": Row(until, one),
    "fori_loop": Row(lambda x: sh.fori_loop(0, 3, lambda i, v: v * sh.constant(i + 1.0), x), one),
    "plain values in a carry": Row(counted, one),
    "vmap": Row(sh.vmap(layer, in_axes=(0, None)), lambda: (sh.array(ROWS, "f32[n, batch@dp, hidden]"), square())),
    "vmap of a gradient": Row(sh.vmap(jax.grad(lambda w, x: plain(sh.sum(layer(x, w)))), in_axes=(0, None)), layers),
    "vmap of an unmapped result": Row(sh.vmap(lambda w, x: sh.sin(x), in_axes=(0, None)), layers),
    "jvp": Row(lambda x: jax.jvp(sh.sin, (x,), (x * 2.0,)), one),
    "a hessian times a vector": Row(hvp, lambda: (x(), x())),
    "custom_vjp": Row(jax.grad(lambda x: plain(sh.sum(clipped(x)))), one),
    "custom_vjp not differentiated": Row(clipped, one),
    "custom_jvp": Row(lambda x: jax.jvp(with_jvp, (x,), (x,)), one),
    "nested jit": Row(lambda x: inner(inner(x)), one),
    "nested sh.jit": Row(lambda x: inner_region(inner(x)), one),
    "the gradient of a nested sh.jit": Row(jax.grad(lambda x: plain(sh.sum(inner_region(x)))), one),
    "a key": Row(noise, key_and_x),
    "keys in a carry": Row(keys_in_a_carry, key_and_x),
    "a typed key": Row(lambda k, x: (k, x * 2.0), lambda: (sh.array(jax.random.key(1), "key<fry>[]"), x())),
    "an update of typed values": Row(sgd, params_and_x),
    "an update elsewhere": Row(update_elsewhere, params_and_x, regions=2),
    "a callback beside": Row(shown, one),
    "a callback in a loop": Row(callback_in_a_loop, one),
    "a callback in between": Row(on_the_host, one, regions=2),
    "bf16": Row(lambda x: sh.astype(sh.astype(x, "bf16") * 2.0, "f32"), one),
    "f8": Row(lambda x: sh.astype(x, "f8_e4m3fn"), one),
    "one number of two kinds": Row(lambda i, x: (x + 1.0, i + 1), lambda: (sh.array(IDS, "i32[batch@dp]"), x())),
    "integers": Row(
        lambda i, x: (i + 1, x * sh.astype(sh.expand_dims(i, 1), "f32")), lambda: (sh.array(IDS, "i32[batch@dp]"), x())
    ),
    "gradients of integers": Row(
        jax.grad(
            lambda i, x: plain(sh.sum(x * sh.astype(sh.expand_dims(i, 1), "f32"))), argnums=(0, 1), allow_int=True
        ),
        lambda: (sh.array(IDS, "i32[batch@dp]"), x()),
    ),
    "python numbers": Row(lambda x, s, n: (x * sh.constant(s), n + 1), lambda: (x(), 2.5, 3)),
    "nothing in": Row(lambda: sh.zeros("f32[4@dp, 4]") + 1.0, lambda: ()),
    "nested and empty trees": Row(
        lambda t: {"a": [t["x"] * 2.0, None, ()], "b": t["x"]}, lambda: ({"x": x(), "n": None, "e": []},)
    ),
    "dead code and handed-on arguments": Row(lambda x: (sh.sin(x), x)[1], one, regions=0),
    "a barrier": Row(lambda x: lax.optimization_barrier((sh.sin(x), x)), one),
    "a small plain matrix": Row(lambda x: x @ sh.from_jax(jnp.eye(HIDDEN) * 2.0), one),
    "slices of a plain array": Row(
        lambda x, a: x + sh.from_jax(a, "f32[batch@dp, hidden]"), lambda: (x(), jnp.asarray(X))
    ),
    "a large plain array": Row(lambda x: x + sh.from_jax(jnp.ones((300, 300)).sum(0)[:HIDDEN]), one),
    "moves": Row(lambda x: sh.reshard(sh.reshard(x, "[batch, hidden@dp]"), "[batch@(dp,tp), hidden]"), one),
}


def data(v: Any) -> Any:
    v = v.data if isinstance(v, sh.Array) else v
    if jnp.issubdtype(jnp.asarray(v).dtype if not hasattr(v, "dtype") else v.dtype, jax.dtypes.prng_key):
        v = jax.random.key_data(v)
    return np.asarray(v)


def assert_same(found: Any, wanted: Any) -> None:
    """Compares trees of values: structure, types, weak types, data; floats but for what XLA fuses otherwise."""
    structures: list[Any] = [jax.tree.structure(found), jax.tree.structure(wanted)]
    assert structures[0] == structures[1]
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert type(a) is type(b)
        if isinstance(a, sh.Array):
            assert a.type == b.type
        elif isinstance(a, jax.Array):
            assert jax.typeof(a) == jax.typeof(b)
        u, v = data(a), data(b)
        assert (u.shape, u.dtype) == (v.shape, v.dtype)
        if jnp.issubdtype(u.dtype, jnp.inexact):
            assert_close(u, v)
        else:
            assert u.tobytes() == v.tobytes()


def regions(text: str) -> int:
    return text.count("sdy.manual_computation")


@pytest.mark.one_in(23)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_region_computes_what_the_operations_compute_one_by_one(name: str) -> None:
    row = PROGRAMS[name]
    args = row.args()
    lowered = sh.jit(row.f).lower(*args)
    assert regions(lowered.as_text()) == row.regions
    compiled = lowered.compile()
    found = jax.block_until_ready(compiled(*args))
    wanted = jax.block_until_ready(jax.jit(row.f)(*args))
    assert_same(found, wanted)
    if row.reduces is not None:
        assert len(re.findall(r" all-reduce(?:-start)?\(", compiled.as_text())) == row.reduces


def test_a_reversed_scan_of_a_program_starts_at_the_end() -> None:
    """Its carries are those of one device, each beside the element that it met."""
    xs = np.arange(1, 5, dtype=np.float32)[:, None] * np.ones((4, 8), np.float32)

    def scanned(m: Any, carry: Any, xs: Any) -> Any:
        return m.scan(lambda c, x: (2 * c + x, c), carry, xs, reverse=True)

    last, carries = sh.jit(lambda c, xs: scanned(sh, c, xs))(sh.zeros("f32[8@dp]"), sh.array(xs, "f32[4, 8@dp]"))
    expected_last, expected_carries = scanned(lax, np.zeros(8, np.float32), xs)
    assert_close(last, expected_last)
    assert_close(carries, expected_carries)
