"""Ways in which communication might pass a scope unseen: each program communicates, forward, backward or both.

Arguments are ``x``, rows over dp, and ``w``, invariant on both axes; ``p`` is pending over tp. In the backward pass a
cast of ``w`` is an all-reduce.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import shtypes as sh
from shtypes.scopes.comm import CommScope

AXES = {"dp": 2, "tp": 2}
X, W, P, ROW = "f32[8@dp,4]", "f32[4,4]{I:(dp,tp)}", "f32[8,4]{U:tp}", "f32[4]{I:(dp,tp)}"


class Attempt(NamedTuple):
    """A program that communicates, forward or in the backward pass of all its arguments.

    Attributes:
        f: A function of the arguments, with a typed result.
        arguments: Their types.
    """

    f: Callable[..., Any]
    arguments: tuple[str, ...]


def attempt(f: Callable[..., Any], *arguments: str) -> Attempt:
    return Attempt(f, arguments)


def reduced(p: Any) -> Any:
    return sh.all_reduce(p, "tp", to="R")


# casts that rules insert


INSERTED: dict[str, Attempt] = {
    "mul": attempt(lambda x, b: x * b, X, ROW),
    "add": attempt(lambda x, b: x + b, X, ROW),
    "sub": attempt(lambda x, b: b - x, X, ROW),
    "div": attempt(lambda x, b: x / b, X, ROW),
    "matmul": attempt(lambda x, w: x @ w, X, W),
    "einsum": attempt(lambda x, w: sh.einsum("bi,ij->bj", x, w), X, W),
    "einsum of three": attempt(lambda x, w: sh.einsum("bi,ij,jk->bk", x, w, w), X, W),
    "dot_general": attempt(lambda x, w: sh.dot_general(x, w, (((1,), (0,)), ((), ()))), X, W),
    "tensordot": attempt(lambda x, w: sh.tensordot(x, w, 1), X, W),
    "outer": attempt(lambda x, b: sh.outer(x[:, 0], b), X, ROW),
    "kron": attempt(lambda x, b: sh.kron(x, b[None]), X, ROW),
    "vecdot": attempt(sh.vecdot, X, ROW),
    "maximum": attempt(sh.maximum, X, ROW),
    "power": attempt(lambda x, b: sh.exp(x) ** b, X, ROW),
    "logaddexp": attempt(sh.logaddexp, X, ROW),
    "where": attempt(lambda x, b: sh.where(x > 0, x, b), X, ROW),
    "select of a mask": attempt(lambda x, b: sh.where(x > 0, b, 0.0), X, ROW),
    "concatenate": attempt(lambda x, w: sh.concatenate([x, w[:1] * x], 1), X, W),
    "stack": attempt(lambda x, b: sh.stack([x, sh.broadcast_to(b, x.shape)]), X, ROW),
    "take": attempt(lambda x, w: sh.take(w, sh.astype(x[:, 0], "i32"), 0), X, W),
    "index": attempt(lambda x, w: w[sh.astype(x[:, 0], "i32")], X, W),
    "scatter of sharded updates": attempt(lambda x, w: w.at[sh.astype(x[:, 0], "i32")].add(x), X, W),
    "dynamic_update_slice": attempt(lambda x, w: sh.dynamic_update_slice(x, w[:1] * x[:, :1], (0, 0)), X, W),
    "convolution": attempt(lambda x, w: sh.conv_general_dilated(x[:, None], w[None, :1], (1,), "SAME"), X, W),
    "layer_norm": attempt(lambda x, b: sh.nn.layer_norm(x, scale=b), X, ROW),
    "rms_norm": attempt(lambda x, b: sh.nn.rms_norm(x, scale=b), X, ROW),
    "scores and values": attempt(lambda x, w: sh.softmax(x @ w) @ w, X, W),
    "local_map": attempt(sh.local_map(lambda s, w: s @ w, out="[_@dp,_]"), X, W),
    "local_map that recomputes": attempt(sh.local_map(lambda s, w: s @ w, out="[_@dp,_]", residuals="recompute"), X, W),
    "local_map with checkpoint in it": attempt(
        sh.local_map(jax.checkpoint(lambda s, w: jnp.sin(s @ w)), out="[_@dp,_]"), X, W
    ),
    "checkpoint around local_map": attempt(
        sh.checkpoint(sh.local_map(lambda s, w: jnp.sin(s @ w), out="[_@dp,_]")), X, W
    ),
    "shard_map": attempt(sh.shard_map(lambda x, w: x @ w, out_specs="[_@dp,_]"), X, W),
    "pvary": attempt(sh.shard_map(lambda x, w: x @ sh.lax.pvary(w, "dp"), out_specs="[_@dp,_]"), X, W),
    "a slice that a spec asks for": attempt(
        sh.shard_map(lambda w: w * 2, in_specs="[_@dp,_]", out_specs="[_@dp,_]"), W
    ),
    "vmap over a sharded dim": attempt(sh.vmap(lambda x, w: x @ w, (0, None)), X, W),
    "the operand of a branch": attempt(lambda x, w: sh.cond(True, lambda x, w: x @ w, lambda x, w: x, x, w), X, W),
    "a constant of a loop": attempt(lambda x, w: sh.scan(lambda c, _: (c @ w, None), x, None, 3)[0], X, W),
    "a constant of a counted loop": attempt(lambda x, w: sh.fori_loop(0, 3, lambda _, c: c @ w, x), X, W),
    "reinterpret": attempt(
        lambda x, w: sh.shard_map(lambda w: sh.reinterpret(w, dp="V") * 2, out_specs="[_@dp,_]", axis_names="dp")(w),
        X,
        W,
    ),
    "a reshard to reduced": attempt(lambda w: sh.reshard(w, dp="R"), W),
    "a reshard to sharded": attempt(lambda w: sh.reshard(w, dp=0), W),
}


# programs that were traced before


@functools.cache
def _traced(f: Callable[..., Any], texts: tuple[str, ...], policy: str) -> Any:
    assert policy == sh.current_policy()
    return jax.make_jaxpr(f)(*map(sh.abstract_array, texts))


def traced_before(f: Callable[..., Any], *texts: str) -> Any:
    """A program that was traced where no scope was open."""
    return _traced(f, texts, sh.current_policy())


def replayed(f: Callable[..., Any]) -> Callable[..., Any]:
    def replay(*args: Any) -> Any:
        closed = traced_before(f, *[jax.typeof(x).canonical() for x in args])
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *args)[0]

    return replay


def _in_jit(p: Any) -> Any:
    return sh.jit(reduced)(p)


def _in_scan(p: Any) -> Any:
    return sh.scan(lambda c, _: (c + reduced(p), None), sh.zeros("f32[8,4]"), None, 2)[0]


def _in_cond(p: Any) -> Any:
    return sh.cond(True, reduced, reduced, p)


def _in_while(p: Any) -> Any:
    start = (0, sh.zeros("f32[8,4]"))
    return sh.constant(sh.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, reduced(sh.constant(p))), start)[1])


def _matmul(x: Any, w: Any) -> Any:
    return x @ w


def _jitted_matmul(x: Any, w: Any) -> Any:
    return sh.jit(_matmul)(x, w)


def _gradient(x: Any, w: Any) -> Any:
    return sh.grad(lambda w: sh.sum(x @ w))(w)


def _converted(p: Any) -> Any:
    f, consts = jax.closure_convert(lambda q: reduced(p) + reduced(q), p)
    return f(p, *consts)


def _pulled_back(x: Any) -> Any:
    """The cotangent of what is gathered is a pending sum, and one that nobody knows."""
    _, pull = sh.vjp(lambda q: sh.all_gather(q, "dp", to="R"), x)
    ct = sh.reinterpret(sh.ones("[8,4]{V:dp}"), dp="U")
    return pull(sh.reshard(ct, tp="U") if sh.current_policy() == "partial" else ct)[0]


before = sh.jit(lambda p: reduced(p) * 1.0)

REPLAYED: dict[str, Attempt] = {
    "a jaxpr": attempt(replayed(reduced), P),
    "a jaxpr of a jit": attempt(replayed(_in_jit), P),
    "a jaxpr of a loop": attempt(replayed(_in_scan), P),
    "a jaxpr of an unbounded loop": attempt(replayed(_in_while), P),
    "a jaxpr of branches": attempt(replayed(_in_cond), P),
    "a jaxpr of casts": attempt(replayed(_matmul), X, W),
    "a jaxpr of casts in a jit": attempt(replayed(_jitted_matmul), X, W),
    "a jaxpr of a gradient": attempt(replayed(_gradient), X, W),
    "a jaxpr under jit": attempt(sh.jit(replayed(_in_jit)), P),
    "a jaxpr under jax.jit": attempt(jax.jit(replayed(_in_jit)), P),
    "a jaxpr under vmap": attempt(lambda p: sh.vmap(replayed(_in_jit))(sh.stack([p, p])), P),
    "a jaxpr in a loop": attempt(lambda p: sh.scan(lambda c, _: (c, replayed(_in_jit)(p)), 0, None, 2)[1], P),
    "a jaxpr in a checkpoint": attempt(sh.checkpoint(replayed(_in_jit)), P),
    "jaxpr_as_fun": attempt(lambda p: jax.extend.core.jaxpr_as_fun(traced_before(_in_jit, P))(p)[0], P),
    "closure_convert": attempt(_converted, P),
    "linearize": attempt(lambda p: sh.linearize(replayed(_in_jit), p)[1](p), P),
    "jvp": attempt(lambda p: sh.jvp(replayed(_in_jit), (p,), (p,))[1], P),
    "a backward pass that is there": attempt(_pulled_back, X),
    "a function that was jitted before": attempt(before, P),
}


# functions of every kind


class Module:
    """What people write models as."""

    def __init__(self, w: Any = None) -> None:
        self.w = w

    def __call__(self, p: Any) -> Any:
        return reduced(p)

    @property
    def layer(self) -> Callable[..., Any]:
        return reduced

    @staticmethod
    def static(p: Any) -> Any:
        return reduced(p)


def _recursive(p: Any, n: int = 3) -> Any:
    return _recursive(p, n - 1) if n else reduced(p)


def _captures(x: Any, w: Any) -> Any:
    inner = sh.jit(lambda x: x @ w)
    return inner(x)


def _generated(p: Any) -> Iterator[Any]:
    yield p
    yield reduced(p)


def _delegated(p: Any) -> Iterator[Any]:
    yield from _generated(p)


def _wrapped(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def call(*args: Any) -> Any:
        return f(*args)

    return call


CLOSURES: dict[str, Attempt] = {
    "a closure over an invariant": attempt(_captures, X, W),
    "a callable object": attempt(Module(), P),
    "a property": attempt(lambda p: Module().layer(p), P),
    "a static method": attempt(Module.static, P),
    "a partial": attempt(functools.partial(lambda axis, p: sh.all_reduce(p, axis), "tp"), P),
    "recursion": attempt(_recursive, P),
    "a decorated function": attempt(_wrapped(reduced), P),
    "map": attempt(lambda p: next(iter(map(reduced, [p]))), P),
    "a comprehension": attempt(lambda p: next(reduced(q) for q in [p]), P),
    "a generator that is consumed": attempt(lambda p: list(_generated(p))[1], P),
    "a generator that delegates": attempt(lambda p: list(_delegated(p))[1], P),
    "another policy inside": attempt(sh.policy("jax")(_matmul), X, W),
    "another scope inside": attempt(sh.comm_budget(launches=9)(reduced), P),
    "implicit_comm inside": attempt(sh.implicit_comm(sh.sin), P),
    "implicit_comm, of integers": attempt(
        lambda x: sh.astype(sh.implicit_comm(lambda x: sh.argmax(x, 0))(x), "f32"), X
    ),
    "out=": attempt(lambda x: sh.sum(x, 0, out="[4]"), X),
    "a tree": attempt(lambda p: jax.tree.map(reduced, {"a": [p]})["a"][0], P),
    "associative_scan": attempt(
        lambda p: (
            sh.lax.associative_scan(sh.add, reduced(p))
            if hasattr(sh.lax, "associative_scan")
            else sh.associative_scan(sh.add, reduced(p))
        ),
        P,
    ),
    "a ring": attempt(lambda x: sh.einsum("bi,bj->ij", x, x, out="[_@dp,_]", overlap=True), X),
    "a collective": attempt(sh.shard_map(lambda x: sh.lax.psum(x, "dp"), out_specs="[_,_]"), X),
    "a permutation": attempt(
        sh.shard_map(lambda x: sh.lax.ppermute(x, "dp", [(0, 1), (1, 0)]), out_specs="[_@dp,_]"), X
    ),
    "a maximum": attempt(lambda x: sh.max(x, 0, out="[4]"), X),
}


# derivatives of the user's own


def own_backward(kind: Any, bwd: Callable[..., Any]) -> Callable[..., Any]:
    f = kind(sh.sin)
    f.defvjp(lambda x: (sh.sin(x), None), lambda _, ct: (bwd(ct),))
    found: Callable[..., Any] = f
    return found


def there_and_back(ct: Any) -> Any:
    return sh.reshard(sh.reshard(ct, dp="R"), dp=0)


def _own_forward(kind: Any) -> Callable[..., Any]:
    f = kind(reduced)
    f.defvjp(lambda p: (reduced(p), None), lambda _, ct: (sh.reshard(ct, tp="R"),))
    found: Callable[..., Any] = f
    return found


def _own_tangent(x: Any) -> Any:
    f = jax.custom_jvp(sh.sin)
    f.defjvp(lambda x, t: (sh.sin(x[0]), sh.reshard(2 * sh.reshard(t[0], dp="R"), dp=0)))
    return f(x)


def _of_shards_with_backward(x: Any, w: Any) -> Any:
    f = jax.custom_vjp(lambda s, w: s @ w)
    f.defvjp(lambda s, w: (s @ w, (s, w)), lambda r, ct: (ct @ r[1].T, r[0].T @ ct))
    return sh.local_map(f, out="[_@dp,_]")(x, w)


replay_back = replayed(sh.jit(there_and_back))

DERIVATIVES: dict[str, Attempt] = {
    "custom_vjp, forward": attempt(_own_forward(sh.custom_vjp), P),
    "JAX's custom_vjp, forward": attempt(_own_forward(jax.custom_vjp), P),
    "custom_vjp, backward": attempt(own_backward(sh.custom_vjp, there_and_back), X),
    "JAX's custom_vjp, backward": attempt(own_backward(jax.custom_vjp, there_and_back), X),
    "custom_vjp that replays backward": attempt(own_backward(sh.custom_vjp, replay_back), X),
    "JAX's custom_vjp that replays backward": attempt(own_backward(jax.custom_vjp, replay_back), X),
    "custom_vjp in a jit": attempt(sh.jit(own_backward(sh.custom_vjp, there_and_back)), X),
    "custom_vjp in a loop": attempt(
        lambda x: sh.scan(lambda c, _: (own_backward(sh.custom_vjp, replay_back)(c), None), x, None, 2)[0], X
    ),
    "custom_vjp in a checkpoint": attempt(sh.checkpoint(own_backward(sh.custom_vjp, there_and_back)), X),
    "custom_jvp": attempt(_own_tangent, X),
    "local_map with a backward pass of its own": attempt(_of_shards_with_backward, X, W),
    "checkpoint": attempt(sh.checkpoint(lambda p: sh.sin(reduced(p))), P),
    "JAX's checkpoint": attempt(jax.checkpoint(lambda p: sh.sin(reduced(p))), P),
    "checkpoint that keeps": attempt(sh.checkpoint(reduced, policy=sh.checkpoint_policies.everything_saveable), P),
    "a gradient inside": attempt(lambda x, w: sh.grad(lambda w: sh.sum(sh.sin(x @ w)))(w), X, W),
    "a gradient of a gradient": attempt(
        lambda x, w: sh.grad(lambda w: sh.sum(sh.grad(lambda w: sh.sum(sh.sin(x @ w)))(w)))(w), X, W
    ),
}

ATTEMPTS: dict[str, Attempt] = INSERTED | REPLAYED | CLOSURES | DERIVATIVES


# what runs in steps


def in_steps(scope: Callable[[], CommScope], p: Any) -> dict[str, Callable[[], Any]]:
    """Generators and coroutines that a scope decorates, each of which communicates."""

    @scope()
    def generator() -> Iterator[Any]:
        yield 0
        yield reduced(p)

    @scope()
    def delegating() -> Iterator[Any]:
        yield from _generated(p)

    @scope()
    async def coroutine() -> Any:
        await asyncio.sleep(0)
        return reduced(p)

    @scope()
    async def stream() -> AsyncIterator[Any]:
        yield 0
        await asyncio.sleep(0)
        yield reduced(p)

    async def consumed() -> list[Any]:
        return [item async for item in stream()]

    async def beside() -> Any:
        async def silent() -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        return await asyncio.gather(silent(), coroutine(), silent())

    @scope()
    def returns_a_generator() -> Iterator[Any]:
        return _generated(p)

    def thrown() -> Any:
        @scope()
        def catches() -> Generator[Any, Any, None]:
            try:
                yield 0
            except KeyError:
                yield reduced(p)

        steps = catches()
        next(steps)
        return steps.throw(KeyError())

    def closed() -> Any:
        @scope()
        def cleans_up() -> Generator[Any, Any, None]:
            try:
                yield 0
            finally:
                reduced(p)

        steps = cleans_up()
        next(steps)
        steps.close()

    return {
        "a generator": lambda: list(generator()),
        "a generator that delegates": lambda: list(delegating()),
        "what is thrown in": thrown,
        "what is closed": closed,
        "a function that returns a generator": lambda: list(returns_a_generator()),
        "a coroutine": lambda: asyncio.run(coroutine()),
        "a coroutine beside others": lambda: asyncio.run(beside()),
        "an asynchronous generator": lambda: asyncio.run(consumed()),
    }


def host(text: str, seed: int = 0) -> Any:
    """A value of a type, with data."""
    t = sh.ShType.parse(text)
    values = np.random.default_rng(seed).uniform(0.5, 1.5, t.shape).astype(np.float32)
    return sh.reshard(sh.array(values, "[" + ",".join(map(str, t.shape)) + "]"), t)


__all__ = ["ATTEMPTS", "AXES", "host", "in_steps"]
