"""Local mode: functions of one device's part, whole or with collectives, and the user's own kernels."""

from __future__ import annotations

import shtypes as sh
from tests.random_choices import Choices, Expression, Value, op


def _target(t: sh.ShType) -> str:
    return t.canonical().removeprefix(t.dtype_name)


@op(2)
def kernels(d: Choices) -> Expression:
    v = d.value()
    same = d.value("f", lambda w: w.type == v.type)
    forms = [
        "m.local_map(lambda a: a * 0.5 - 2 * a, out={t!r})({v})",
        "m.local_map(lambda a, b: 0.5 * a + b, out={t!r})({v}, {w})",
    ]
    if not v.type.axes(sh.State.UNREDUCED):
        forms += [
            "m.local_map(lambda a, b: jnp.tanh(a) * b, out={t!r})({v}, {w})",
            "m.local_map(lambda a: jnp.sin(a), out={t!r}, residuals='save')({v})",
        ]
    return d.one(forms).format(v=v.name, w=same.name, t=_target(v.type)), (v.bound + 1) * (same.bound + 1)


def _braces(states: list[str]) -> str:
    return "{" + ", ".join(states) + "}" if states else ""


@op(3)
def shards(d: Choices) -> Expression:
    v = d.value()
    t, sharded = v.type, v.type.axes(sh.State.SHARDED)
    states = zip(t.mesh.axis_names, t.states, strict=True)
    others = [f"{s.value}:{a}" for a, s in states if a not in sharded]
    inner = d.one(["m.tanh(a) * 2", "a * 0.5", "a + 0.25", "-a", "m.sin(a) - a", "a * a"])
    bodies = [(inner, _target(t))]
    if sharded:
        names = sharded[0] if len(sharded) == 1 else sharded
        scalar = "[]" + _braces(others)
        bodies += [
            (f"m.lax.psum(m.sum(a * 0.5), {names!r})", scalar),
            (f"m.lax.pmean(m.mean(a), {names!r})", scalar),
            (f"m.lax.pmax(m.max(a), {names!r})", scalar),
            ("m.sum(a)", "[]" + _braces([*(f"U:{a}" for a in sharded), *others])),
        ]
    for k, dim in enumerate(t.dims):
        if dim.axes and dim.axes == sharded:
            bodies += _along(d, v, k, inner, _braces(others))
    body, out = d.one(bodies)
    return f"m.shard_map(lambda a: {body}, out_specs={out!r})({v.name})", (v.bound + 1) ** 2 * 4


def _along(d: Choices, v: Value, k: int, inner: str, states: str) -> list[tuple[str, str]]:
    """Bodies that communicate along the only sharded dim, and the specs of their results."""
    axes = v.type.dims[k].axes
    names = axes[0] if len(axes) == 1 else axes
    gathered = f"m.lax.all_gather({inner}, {names!r}, axis={k}, tiled=True, to={d.one(['R', 'I'])!r})"
    bodies = [(gathered, f"[{', '.join(map(str, v.shape))}]{states}")]
    if len(axes) == 1:
        n = v.type.mesh.shape[axes[0]]
        bodies.append((f"shifted(m, {inner}, {names!r}, {n}, {k})", _target(v.type)))
        for e, size in enumerate(v.shape):
            if e != k and size % n == 0:
                sizes = [f"{s}@{names}" if i == e else str(s) for i, s in enumerate(v.shape) if i != k]
                options = f"scatter_dimension={e - (e > k)}, tiled=True"
                body = f"m.lax.psum_scatter(m.sum({inner}, axis={k}), {names!r}, {options})"
                bodies.append((body, f"[{', '.join(sizes)}]{states}"))
    return bodies


@op(1)
def implicit(d: Choices) -> Expression:
    """What an op refuses, with the cheapest reshards inserted."""
    v = d.value()
    w = d.value("f", lambda x: x.shape == v.shape)
    inner = d.one(
        ["a * b", "m.tanh(a) + b", "m.maximum(a, b)", "m.sum(a) * b", "m.exp(-m.abs(a)) * b", "a / (2 + m.abs(b))"]
    )
    return f"m.implicit_comm(lambda a, b: {inner})({v.name}, {w.name})", (v.bound + 2) * (w.bound + 2) * 4


@op(0.7)
def forbidden(d: Choices) -> Expression:
    """What communicates is refused."""
    v = d.value()
    w = d.value("f", lambda x: x.shape == v.shape)
    inner = d.one(["a + b", "a * b", f'm.reshard(a, "{d.type(v.shape)}")', "m.sum(a * 0.5)"])
    way = d.one(["", "'forward'", "'backward'"])
    return f"m.no_comm({way})(lambda a, b: {inner})({v.name}, {w.name})", (v.bound + 1) * (w.bound + 1) * 4
