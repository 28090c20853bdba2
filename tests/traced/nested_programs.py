"""Programs nested in one another: bodies that communicate, and what is put around them, in every combination."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import shtypes as sh

Layer = Callable[..., Any]
BATCH, HIDDEN, INNER = 8, 8, 16
X, W_IN, W_OUT = "f32[8@dp,8]", "f32[8,16@tp]", "f32[16@tp,8]"


def values() -> tuple[Any, ...]:
    """The arguments of a layer, with data."""
    rng = np.random.default_rng(0)
    shapes = ((BATCH, HIDDEN), (HIDDEN, INNER), (INNER, HIDDEN))
    hosts = [np.asarray(rng.standard_normal(s) / s[-1] ** 0.5, np.float32) for s in shapes]
    return tuple(sh.array(host, t) for host, t in zip(hosts, (X, W_IN, W_OUT), strict=True))


# bodies: from `values()` to a value of the type of x


def mlp(x: Any, w_in: Any, w_out: Any) -> Any:
    return sh.tanh(sh.checkpoint_name(sh.all_reduce(sh.silu(x @ w_in) @ w_out, "tp"), "reduced"))


def sequence_parallel(x: Any, w_in: Any, w_out: Any) -> Any:
    x = sh.all_gather(sh.tanh(sh.reshard(x, tp=1)), "tp")
    return sh.all_gather(sh.sin(sh.reduce_scatter(sh.silu(x @ w_in) @ w_out, "tp", 1)), "tp")


def narrow(x: Any, w_in: Any, w_out: Any) -> Any:
    """Sends in a narrower dtype: forward, backward, or both ways. CPU devices have f16, and no bf16."""
    x = sh.all_gather(sh.tanh(sh.reshard(x, tp=1)), "tp", comm_dtype="f16")
    h = sh.reduce_scatter(sh.silu(x @ w_in) @ w_out, "tp", 1, ct_comm_dtype="f16")
    return sh.all_gather(sh.sin(h), "tp", comm_dtype="f16", ct_comm_dtype="f16", narrow_sums=True)


def permuted(x: Any, w_in: Any, w_out: Any) -> Any:
    x = sh.sin(sh.all_to_all(sh.sin(x * sh.sum(w_in, 1, out="[8]")), "dp", 1))
    return sh.reshard(sh.cos(sh.reshard(x, "[8@(tp,dp),8]")), X) + sh.sum(w_out, 0, out="[8]")


def mapped(x: Any, w_in: Any, w_out: Any) -> Any:
    """In local mode."""

    def local(x: Any, w_in: Any, w_out: Any) -> Any:
        h = sh.tanh(x @ w_in)
        h = sh.lax.ppermute(h, "tp", [(i, (i + 1) % 4) for i in range(4)])
        return sh.lax.psum(sh.sin(h) @ w_out, "tp", to="R") + x

    specs = (jax.P("dp"), jax.P(None, "tp"), jax.P("tp"))
    found: Any = sh.shard_map(local, in_specs=specs, out_specs=jax.P("dp"))(x, w_in, w_out)
    return found


@sh.custom_vjp
def scaled(x: Any) -> Any:
    return sh.all_gather(x, "dp", to="R")


scaled.defvjp(lambda x: (sh.all_gather(x, "dp", to="R"), None), lambda _, ct: (sh.reduce_scatter(ct, "dp", 0) * 0.5,))


def custom(x: Any, w_in: Any, w_out: Any) -> Any:
    """A backward function that communicates itself."""
    whole = sh.sin(scaled(sh.sin(x)))
    return sh.reshard(whole, X) * sh.sum(w_in, 1, out="[8]") + sh.sum(w_out, 0, out="[8]")


def of_shards(x: Any, w_in: Any, w_out: Any) -> Any:
    """A user's own function of shards."""
    h = sh.local_map(lambda a, b: jax.nn.gelu(a @ b), out="[8@dp,16@tp]")(x, w_in)
    return sh.all_reduce(h @ w_out, "tp")


BODIES: dict[str, Layer] = {
    "mlp": mlp,
    "sequence": sequence_parallel,
    "narrow": narrow,
    "permuted": permuted,
    "mapped": mapped,
    "custom": custom,
    "of shards": of_shards,
}

# what is put around a layer: a layer again


def scanned(f: Layer) -> Layer:
    return lambda x, *ws: sh.scan(lambda c, _: (f(c, *ws), None), x, None, 3)[0]


def over_weights(f: Layer) -> Layer:
    """A scan whose weights are stacked, one for each step, with results that are stacked too."""

    def call(x: Any, *ws: Any) -> Any:
        stacked = [sh.stack([w, w * 0.5], 0) for w in ws]
        last, ys = sh.scan(lambda c, w: (lambda y: (y, sh.sum(y, 1)))(f(c, *w)), x, tuple(stacked))
        return last + sh.sum(ys, 0)[:, None]

    return call


def looped(f: Layer) -> Layer:
    return lambda x, *ws: sh.fori_loop(0, 2, lambda _, c: f(c, *ws), x)


def chosen(f: Layer) -> Layer:
    def call(x: Any, *ws: Any) -> Any:
        positive = sh.all_reduce(sh.sum(sh.stop_gradient(ws[0]))) > 0
        return sh.cond(positive, f, lambda x, *ws: sh.sin(x), x, *ws)

    return call


def jitted(f: Layer) -> Layer:
    found: Layer = jax.jit(f)
    return found


def batched(f: Layer) -> Layer:
    def call(x: Any, *ws: Any) -> Any:
        return sh.sum(sh.vmap(f, (0, *[None] * len(ws)))(sh.stack([x, sh.sin(x)], 0), *ws), 0)

    return call


def differentiated(f: Layer) -> Layer:
    """A step along the gradient of the layer's own loss: backward passes inside, and backward passes of these."""

    def call(x: Any, *ws: Any) -> Any:
        gradient = sh.grad(lambda x: sh.sum(sh.sin(f(x, *ws))))(x)
        return x - sh.reshard(gradient, sh.typeof(x)) * 0.1

    return call


_policies = sh.checkpoint_policies
AROUND: dict[str, Callable[[Layer], Layer]] = {
    "scan": scanned,
    "scan over weights": over_weights,
    "fori_loop": looped,
    "cond": chosen,
    "jit": jitted,
    "vmap": batched,
    "step": differentiated,
    "checkpoint": sh.checkpoint,
    "checkpoint in a loop": functools.partial(sh.checkpoint, prevent_cse=False),
    "checkpoint dots": functools.partial(sh.checkpoint, policy=_policies.dots_saveable),
    "checkpoint names": functools.partial(sh.checkpoint, policy=_policies.save_only_these_names("reduced")),
    "checkpoint nothing": functools.partial(sh.checkpoint, policy=_policies.nothing_saveable),
    "checkpoint everything": functools.partial(sh.checkpoint, policy=_policies.everything_saveable),
}


def nested(names: tuple[str, ...], body: str) -> Callable[..., Any]:
    """The loss of a body with layers around it, outermost first, and its gradients."""
    layer = BODIES[body]
    for name in reversed(names):
        layer = AROUND[name](layer)

    def loss(*args: Any) -> Any:
        return sh.sum(sh.sin(layer(*args)))

    found: Callable[..., Any] = sh.value_and_grad(loss, argnums=(0, 1, 2))
    return found
