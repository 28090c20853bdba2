"""Models in plain JAX that act along dims sharded for their size: rows, sequences, planes, vocabularies, experts."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax

IMAGES: Final = ("NHWC", "HWIO", "NHWC")


def _conv(x: Any, k: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, k, (stride, stride), "SAME", dimension_numbers=IMAGES)


def _norm(x: Any, groups: int = 4) -> Any:
    """Groups of channels, normalised over the image."""
    y = x.reshape(*x.shape[:3], groups, -1)
    mean, variance = y.mean((1, 2, 4), keepdims=True), y.var((1, 2, 4), keepdims=True)
    return ((y - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)


def _block(p: Any, x: Any, t: Any) -> Any:
    h = _conv(jax.nn.silu(_norm(x)), p["a"]) + (t @ p["t"])[:, None, None]
    return _conv(jax.nn.silu(_norm(h)), p["b"]) + (_conv(x, p["skip"]) if "skip" in p else x)


def unet(p: Any, x: Any, t: Any) -> Any:
    """The noise in an image at a time: a diffusion U-Net of two levels."""
    angles = t[:, None] * jnp.arange(1.0, 9.0)
    t = jax.nn.silu(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], 1) @ p["time"])
    first = _block(p["first"], _conv(x, p["in"]), t)
    h = _block(p["inner"], _conv(first, p["down"], 2), t)
    h = _conv(jnp.repeat(jnp.repeat(h, 2, 1), 2, 2), p["up"])
    return _conv(jax.nn.silu(_norm(_block(p["last"], jnp.concatenate([h, first], -1), t))), p["out"])


def unet_weights(d: int = 8) -> Any:
    """The types of its weights."""

    def block(inputs: int, outputs: int) -> Any:
        p = {"a": f"[3,3,{inputs},{outputs}]", "b": f"[3,3,{outputs},{outputs}]", "t": f"[16,{outputs}]"}
        return p if inputs == outputs else p | {"skip": f"[1,1,{inputs},{outputs}]"}

    ends = {"time": "[16,16]", "in": f"[3,3,3,{d}]", "out": f"[3,3,{d},3]"}
    levels = {"down": f"[3,3,{d},{2 * d}]", "up": f"[3,3,{2 * d},{d}]"}
    return ends | levels | {"first": block(d, d), "inner": block(2 * d, 2 * d), "last": block(2 * d, d)}


def mamba(p: Any, x: Any) -> Any:
    """A block with a causal convolution and a state that decays: the scan is `jax.lax.associative_scan`."""
    u, gate = jnp.split(x @ p["in"], 2, -1)
    u = lax.conv_general_dilated(
        u, p["conv"], (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=u.shape[-1]
    )
    u = jax.nn.silu(u)
    step, write, read = jax.nn.softplus(u @ p["step"]), u @ p["write"], u @ p["read"]
    decay = jnp.exp(-step[..., None] * jnp.exp(p["decay"]))
    _, state = lax.associative_scan(
        lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (decay, (step * u)[..., None] * write[:, :, None]), axis=1
    )
    return (((state * read[:, :, None]).sum(-1) + u * p["skip"]) * jax.nn.silu(gate)) @ p["out"]


def mamba_weights(d: int = 8, inner: int = 16, state: int = 4) -> Any:
    """The types of its weights."""
    maps = {"in": f"[{d},{2 * inner}]", "conv": f"[4,1,{inner}]", "out": f"[{inner},{d}]"}
    inside = {"step": f"[{inner},{inner}]", "write": f"[{inner},{state}]", "read": f"[{inner},{state}]"}
    return maps | inside | {"decay": f"[{inner},{state}]", "skip": f"[{inner}]"}


def linear_attention(p: Any, x: Any) -> Any:
    """A block with a causal convolution and a state that grows: the scan is a running sum."""
    x = lax.conv_general_dilated(
        x, p["conv"], (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=x.shape[-1]
    )
    q, k, v = jnp.split(jax.nn.silu(x) @ p["qkv"], 3, -1)
    state = jnp.cumsum(k[..., :, None] * v[..., None, :], 1)
    return jnp.einsum("bsd,bsde->bse", q, state) @ p["out"]


def fno(p: Any, x: Any, modes: int = 4) -> Any:
    """A layer of a Fourier neural operator: the lowest modes of both signs are mixed."""
    spectrum = jnp.fft.rfft2(x, axes=(1, 2))
    out = jnp.zeros_like(spectrum)
    for rows, name in ((slice(None, modes), "low"), (slice(-modes, None), "high")):
        weights = lax.complex(p[name]["real"], p[name]["imag"])
        mixed = jnp.einsum("bhwi,hwio->bhwo", spectrum[:, rows, :modes], weights)
        out = out.at[:, rows, :modes].set(mixed)
    return jax.nn.gelu(jnp.fft.irfft2(out, s=x.shape[1:3], axes=(1, 2)) + x @ p["skip"])


def fno_weights(d: int = 8, modes: int = 4) -> Any:
    """The types of its weights."""
    each = dict.fromkeys(("real", "imag"), f"[{modes},{modes},{d},{d}]")
    return {"low": each, "high": each, "skip": f"[{d},{d}]"}


def top_p(logits: Any, uniform: Any, p: float = 0.9) -> Any:
    """Tokens of the most probable ones that have together a part of the probability."""
    order = jnp.argsort(-logits, -1)
    ordered = jnp.take_along_axis(logits, order, -1)
    probabilities = jax.nn.softmax(ordered, -1)
    allowed = jnp.cumsum(probabilities, -1) - probabilities < p
    at = jnp.argmax(jnp.where(allowed, ordered, -jnp.inf) - jnp.log(-jnp.log(uniform)), -1)
    return jnp.take_along_axis(order, at[:, None], -1)[:, 0]


def router(p: Any, x: Any, k: int = 2) -> Any:
    """A layer of experts, of which each token takes the best few."""
    probabilities = jax.nn.softmax(x @ p["router"], -1)
    gates, chosen = lax.top_k(probabilities, k)
    weights = jnp.einsum("tk,tke->te", gates / gates.sum(-1, keepdims=True), jax.nn.one_hot(chosen, p["up"].shape[0]))
    h = jax.nn.relu(jnp.einsum("td,edf->tef", x, p["up"]))
    return jnp.einsum("tef,efd,te->td", h, p["down"], weights)
