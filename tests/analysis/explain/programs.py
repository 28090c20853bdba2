"""Programs whose listings are kept: written as users write, since listings quote them."""

from __future__ import annotations

from typing import Any

import jax

import shtypes as sh
from tests.analysis.explain.neighbour import halve


class Block:
    """A layer with two weights."""

    def __init__(self, w_in: Any, w_out: Any) -> None:
        self.w_in, self.w_out = w_in, w_out

    def __call__(self, x: Any) -> Any:
        hidden = sh.silu(x @ self.w_in)
        return sh.all_reduce(hidden @ self.w_out, "tp")


def layer(x: Any, w: Any) -> tuple[Any, None]:
    q = sh.einsum("bsd,dhk->bshk", x, w["q"])
    scores = sh.einsum("bshk,bthk->bhst", q, q)
    mixed = sh.einsum("bhst,bthk->bshk", sh.softmax(scores, axis=-1), q)
    attended = sh.all_reduce(sh.einsum("bshk,hkd->bsd", mixed, w["o"]), "tp")
    x = x + attended
    return x + Block(w["in"], w["out"])(x), None


def transformer(layers: Any, x: Any) -> Any:
    """Scanned layers, computed again in the backward pass."""
    x, _ = sh.scan(sh.checkpoint(layer), x, layers)
    return sh.sum(x * x)


@sh.custom_vjp
def clipped(x: Any) -> Any:
    return x * 2.0


def clipped_forward(x: Any) -> tuple[Any, Any]:
    twice = x * 2.0
    return twice, twice


def clipped_backward(twice: Any, ct: Any) -> tuple[Any]:
    smaller = sh.clip(twice, -1.0, 1.0)
    return (ct * smaller,)


clipped.defvjp(clipped_forward, clipped_backward)


def custom(x: Any, w: Any) -> Any:
    """A function with a backward pass of its own, between two others."""
    h = clipped(x @ w)
    a, b = sh.sin(h), halve(h)
    return sh.sum(a - b)


def branches(x: Any, w: Any, flag: Any) -> Any:
    """A conditional whose branches communicate differently, and loops."""
    y = sh.cond(flag, lambda a: sh.all_reduce(a @ w, "tp"), lambda a: sh.reshard(a @ w, "[8@dp, 16]") * 2.0, x)
    _, z = sh.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2.0), (0, sh.stop_gradient(y)))
    for _ in range(2):
        y = sh.sin(y) * z
    return sh.sum(sh.fori_loop(0, 3, lambda i, s: sh.cos(s), y))


@sh.shard_map(in_specs=("[_@dp, _@tp]", "[_@tp, _]"), out_specs="[_@dp, _]")
def block_product(a: Any, b: Any) -> Any:
    partial = a @ b
    return sh.lax.psum(partial, "tp")


def local(x: Any, w: Any) -> Any:
    """Local mode: every collective is written."""
    y = block_product(x, w)
    return sh.sum(y * y)


def microbatches(w: Any, batches: Any) -> tuple[Any, Any]:
    """A step of training that sums gradients in a loop and reduces them once."""

    def loss(w: Any, x: Any) -> Any:
        return sh.sum(sh.tanh(x @ w))

    def add(total: Any, x: Any) -> tuple[Any, Any]:
        value, g = sh.value_and_grad(loss)(w, x)
        return total + g, value

    summed, values = sh.scan(add, sh.zeros_like(w), batches)
    gradient = sh.reshard(summed, "[16, 16]")
    return w - 0.1 * gradient, values


def mapped(x: Any, w: Any) -> Any:
    """A mapped function, jitted inside and called twice."""
    inner = jax.jit(lambda row: row * 2.0)
    y = sh.vmap(lambda row: inner(inner(row)) @ w)(x)
    return sh.sum(y)


def arguments(name: str) -> tuple[Any, ...]:
    """The types of the arguments of a program."""
    t = sh.ShType.parse
    if name == "transformer":
        stacked = {
            "q": t("f32[3, 16, 4@tp, 8]"),
            "o": t("f32[3, 4@tp, 8, 16]"),
            "in": t("f32[3, 16, 32@tp]"),
            "out": t("f32[3, 32@tp, 16]"),
        }
        return stacked, t("f32[8@dp, 4, 16]")
    if name == "branches":
        return t("f32[8@dp, 16@tp]"), t("f32[16@tp, 16]"), t("bool[]")
    if name == "local":
        return t("f32[8@dp, 16@tp]"), t("f32[16@tp, 16]")
    if name == "microbatches":
        return t("f32[16, 16]"), t("f32[4, 8@dp, 16]")
    if name == "mapped":
        return t("f32[4, 8@dp, 16]"), t("f32[16, 16]")
    return t("f32[8@dp, 16]"), t("f32[16, 16@tp]")
