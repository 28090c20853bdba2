"""Layers, norms, attention and losses of `sh.nn`."""

from __future__ import annotations

import shtypes as sh
from tests.random_choices import Choices, Expression, Value, op


def _asked(d: Choices, shape: tuple[int, ...], chance: float = 0.5) -> str:
    return f", out={d.type(shape)!r}" if d.flip(chance) else ""


@op(2)
def normed(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: x.ndim >= 1))
    axis = d.one([-1, -1, d.dim(v), tuple(range(v.ndim))])
    name = d.one(["layer_norm", "rms_norm"])
    options = f", axis={axis!r}" if axis != -1 else ""
    if axis == -1 and d.flip():
        scale = d.value("f", lambda x: x.ndim == 1 and x.shape[0] in (1, v.shape[-1]))
        options += f", {scale.name}" if name == "rms_norm" else f", {scale.name}, bias={scale.name}"
    return f"m.nn.{name}({v.name}{options}, epsilon=0.1{_asked(d, v.shape, 0.6)})", v.bound * 4


@op(2)
def weighed(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: x.ndim >= 1))
    k = d.one([-1, d.dim(v)])
    name = d.one(["softmax", "log_softmax", "standardize"])
    text = f"m.{d.one(['', 'nn.'])}{name}({v.name}, axis={k}{_asked(d, v.shape, 0.7)}"
    if name == "softmax" and d.flip(0.3):
        text += f", where={_seen(d, v)}"
    text += ", epsilon=0.1" if name == "standardize" else ""  # of equal elements, it is what rounding is multiplied by
    return text + ")", 4.0


def _seen(d: Choices, v: Value) -> str:
    p = d.value("bf", lambda w: w.shape == v.shape and (w.kind == "b" or w.name[0] == "x"))
    return p.name if p.kind == "b" else f"({p.name} > -0.4103)"


@op(2)
def losses(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: x.ndim >= 1))
    k = d.one([v.ndim - 1, d.dim(v)])
    rows = tuple(n for i, n in enumerate(v.shape) if i != k)
    if d.flip(0.3):
        w = d.summed(d.value("f", lambda x: x.shape == v.shape))
        return f"m.nn.cross_entropy({v.name}, m.abs({w.name}), axis={k}{_asked(d, rows, 0.7)})", v.bound * 8
    ids = d.value("i", lambda w: w.shape == rows and not w.type.axes(sh.State.UNREDUCED))
    labels = f"m.mod({ids.name}, {max(v.shape[k], 1)})"
    return f"m.nn.cross_entropy({v.name}, {labels}, axis={k}{_asked(d, rows, 0.7)})", v.bound * 4


def _heads(d: Choices, v: Value) -> tuple[str, tuple[int, ...]]:
    """A value as (..., positions, heads, size)."""
    if v.ndim == 3:
        if d.flip():
            return v.name, v.shape
        return f"m.swapaxes({v.name}, 0, 1)", (v.shape[1], v.shape[0], v.shape[2])
    k = d.one([0, 1, 1, 2])
    return f"m.expand_dims({v.name}, {k})", (*v.shape[:k], 1, *v.shape[k:])


@op(3)
def attention(d: Choices) -> Expression:
    fits = lambda x: 2 <= x.ndim <= 3 and x.type.size and x.type.dtype_name == "f32"  # noqa: E731  # used three times
    q, k, v = (d.summed(d.value("f", fits), 0.9) for _ in range(3))
    for _ in range(30):
        (a, sa), (b, sb), (c, sc) = (_heads(d, x) for x in (q, k, v))
        if sa[-1] == sb[-1] and sb == sc and sa[-2] % sb[-2] == 0:
            break
        if d.flip():
            k = v = q if d.flip() else k
    options = ""
    if d.flip():
        options += ", is_causal=True"
    if d.flip(0.2):
        options += f", local_window_size={d.one([1, (2, 1), (0, 3)])}"
    scores = (sa[1], sa[0], sb[0])
    if d.flip(0.3):
        shape = tuple(d.one([n, 1]) if i == 0 else n for i, n in enumerate(scores))
        options += f", bias=m.random.normal(m.random.key(8), {'f32' + d.type(shape)!r})"
    if d.flip(0.3):
        shape = tuple(d.one([n, 1]) for n in scores)
        options += f", mask=m.random.bernoulli(m.random.key(8), 0.7, {d.type(shape)!r})"
    if d.flip(0.3):
        a, b = f"m.nn.rotary_embedding({a})", f"m.nn.rotary_embedding({b})"
    options += _asked(d, (*sa[:-1], sc[-1]), 0.6)
    return f"m.nn.dot_product_attention({a}, {b}, {c}{options})", v.bound * 2


@op(1)
def turned_by_position(d: Choices) -> Expression:
    text, shape = _heads(d, d.value("f", lambda x: 2 <= x.ndim <= 3))
    at = ""
    if d.flip():
        ids = d.value("i", lambda w: w.shape in (shape[:1], (1,)) and not w.type.axes(sh.State.UNREDUCED))
        at = f", {ids.name}"
    return f"m.nn.rotary_embedding({text}{at})", 8.0


@op(2)
def layers(d: Choices) -> Expression:
    v = d.value()
    w = d.value("f", lambda x: x.shape == v.shape)
    forms = [
        *(f"m.nn.swiglu({v.name}, {w.name})", f"m.nn.geglu({v.name}, {w.name}, approximate={d.flip()})"),
        *(f"m.nn.dropout({v.name}, 0.25, m.random.key(4))", f"m.nn.gelu({v.name}, approximate=False)"),
        f"m.nn.logsumexp({v.name}, axis={d.dims(v)!r})",
    ]
    if v.ndim:
        forms += [f"m.nn.dropout({v.name}, 0.5, m.random.key(5), broadcast_dims=({d.dim(v)},))"]
        forms += [f"m.nn.glu({v.name}, {k})" for k, n in enumerate(v.shape) if n % 2 == 0]
        dims = d.one([1, 1, min(2, v.ndim)])
        k = d.value("f", lambda x: x.ndim >= dims and x.shape[:dims] == v.shape[v.ndim - dims :])
        shape = (*v.shape[: v.ndim - dims], *k.shape[dims:])
        bias = ""
        if k.ndim > dims and d.flip(0.4):
            b = d.value("f", lambda x: x.ndim == 1 and x.shape[0] == k.shape[-1])
            bias = f", {b.name}"
        forms += [f"m.nn.linear({v.name}, {k.name}{bias}, dims={dims}{_asked(d, shape)})"] * 3
        return d.one(forms), (v.bound + 1) * (k.bound + w.bound + 1) * 4
    return d.one(forms), (v.bound + 1) * (w.bound + 1)
