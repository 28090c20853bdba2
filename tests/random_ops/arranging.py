"""Shapes, indexing, reshards, casts and integers."""

from __future__ import annotations

import itertools

import numpy as np

from tests.random_choices import Choices, Expression, broadcasts, op


@op(4)
def shape(d: Choices) -> Expression:
    v = d.value("fi" if d.flip(0.1) else "f")
    size = int(np.prod(v.shape, dtype=int))
    shapes = [
        s for n in range(4) for s in itertools.product((1, 2, 4, 8, 16), repeat=n) if np.prod(s, dtype=int) == size
    ]
    perm = list(map(int, d.rng.permutation(v.ndim)))
    target = tuple(d.one([1, 4]) if n == 1 and d.flip() else n for n in v.shape)
    target = (*((d.one([1, 4, 8]),) if v.ndim < 3 and d.flip() else ()), *target)
    target = tuple(t if n == 1 else n for t, n in zip(target[len(target) - v.ndim :], v.shape, strict=True))
    forms = [
        *(f"m.reshape({v.name}, {d.one(shapes) if shapes else (-1,)})", f"m.transpose({v.name}, {perm})"),
        *(f"m.expand_dims({v.name}, {d.one(range(-v.ndim - 1, v.ndim + 1))})", f"m.squeeze({v.name})"),
        *(f"m.ravel({v.name})", f"m.broadcast_to({v.name}, {(*((4,) if v.ndim < 3 and d.flip() else ()), *target)})"),
        f"{v.name}.T",
    ]
    return d.one(forms), v.bound


@op(1)
def softmax(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1)
    name = d.one(["softmax", "log_softmax", "standardize"])
    return f"m.{name}({v.name}, axis={d.dim(v)}{', epsilon=0.1' if name == 'standardize' else ''})", 4.0


@op(2)
def index(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1)
    ids = d.one([None, *[w for w in d.pool if w.kind == "i" and w.ndim <= 1]])
    dim = d.dim(v)
    size = max(v.shape[dim], 1)  # positions stay in range: out of it, the gradient differs from JAX's on purpose
    rest = ["0", "-1", "1:3", "::2", "None", "...", "::-1", f"COUNTS % {size}", f"{ids.name} % {size}" if ids else "2:"]
    if ids and d.flip(0.3):
        return f"m.take({v.name}, {ids.name} % {size}, axis={dim})", v.bound
    return f"{v.name}[{':, ' * dim}{d.one(rest)}]", v.bound


@op(1)
def scatter(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1)
    where = d.one(["0", "1:3", ":", f"COUNTS % {max(v.shape[0], 1)}"])
    return f"{v.name}.at[{where}].{d.one(['add', 'set'])}({d.one(['1.5', '0', '-0.25'])})", v.bound + 6


@op(6)
def reshard(d: Choices) -> Expression:
    v = d.value("fffffi")
    if v.kind == "f" and d.flip(0.2):
        axis = d.one(d.mesh.axis_names)
        form = d.one(["m.all_reduce({v})", "m.all_reduce({v}, {a!r}, to='I')", "m.all_gather({v}, {a!r})",
                      "m.reduce_scatter({v}, {a!r}, 0)", "m.shard({v}, {a!r}, 0)",
                      "m.all_to_all({v}, {a!r}, 0)"])  # fmt: skip
        return form.format(v=v.name, a=axis), v.bound
    return f'm.reshard({v.name}, "{d.type(v.shape)}")', v.bound


@op(1)
def like(d: Choices) -> Expression:
    v = d.value()
    return d.one(
        ["m.zeros_like({v})", "m.ones_like({v})", "m.full_like({v}, -0.75)", "m.stop_gradient({v})", "m.constant({v})"]
    ).format(v=v.name), v.bound + 1


@op(2)
def integers(d: Choices) -> Expression:
    v = d.value("i")
    w = d.value("i", lambda x: broadcasts(v.shape, x.shape))
    forms = ["{v} + {w}", "{v} * 2", "{v} - {w}", "m.maximum({v}, {w})", "m.sum({v}, axis=0)", "{v} // 3",
             "{v} + COUNTS", "m.mean({v})",
             "{v} * {w}", "{v} % 5 + 1", "m.cumsum({v})", "-{v}", "{v} / 2"]  # fmt: skip
    return d.one(forms).format(v=v.name, w=w.name), 8.0


@op(2)
def casts(d: Choices) -> Expression:
    v = d.value("ib" if d.flip(0.6) else "f")
    if v.kind == "f":
        form = d.one(["m.astype(m.astype({v}, 'bf16'), 'f32')", "m.astype({v} * 3.1, 'i32')", "{v} > 0.1171"])
        if "x" not in v.name:  # a rounded value may differ in its last bits
            form = "m.astype({v}, 'f32')"
        return form.format(v=v.name), v.bound
    return d.one(["m.astype({v}, 'f32') * 0.125", "{v} * 0.25", "m.astype({v}, 'i32')"]).format(v=v.name), 4.0


@op(2)
def mixed(d: Choices) -> Expression:
    v = d.value("ib")
    w = d.partner(v)
    return d.one(["{w} * {v}", "{w} + {v}", "{v} - {w}", "m.where({v} == 1, {w}, 0)"]).format(
        v=v.name, w=w.name
    ), w.bound * 8
