"""What is asked to communicate: by `out=`, round a ring, or within a scope."""

from __future__ import annotations

from typing import Any

import numpy as np

import shtypes as sh
from tests.random_choices import OPS, Choices, Expression, NothingFits, Step, Value, chances, op, typed_step
from tests.random_ops.arithmetic import EQUATIONS


@op(3)
def reduced_to(d: Choices) -> Expression:
    """Reductions along dims that may be sharded, to any type."""
    v = d.summed(d.value(), 0.8)
    axis, keep = d.dims(v), d.flip(0.3)
    one = None if not v.ndim else d.one([None, d.dim(v)])
    where = ""
    if d.flip(0.2):
        p = d.value("bf", lambda w: w.shape == v.shape and (w.kind == "b" or w.name[0] == "x"))
        where = ", where=" + (p.name if p.kind == "b" else f"({p.name} > -0.9103)")
    plain = d.one(
        ["sum", "mean", "max", "min", "amax", "amin", "logsumexp", "var", "std", "nansum", "nanmax", "nanmin", "ptp",
         "prod", "nanmean", "nanvar", "nanprod"]
    )  # fmt: skip
    options = f"axis={axis!r}, keepdims={keep}"
    shape = _reduced(v, axis, keep)
    if where and plain in ("sum", "mean", "max", "min"):
        options += where + (", initial=-2.0" if plain == "max" else ", initial=2.0" if plain == "min" else "")
    operand = {
        "prod": f"(0.5 + 0.3 * m.tanh({v.name}))",
        "std": f"({v.name} + LONG[0] * m.cumsum(m.ones_like({v.name})))",
    }
    forms = [f"m.{plain}({operand.get(plain, v.name)}, {options}, out={d.type(shape)!r})"] * 5
    if plain in ("std", "nanprod"):  # the root has no derivative at 0
        forms = [f"m.var({v.name}, {options}, out={d.type(shape)!r})"]
    single, order, norm = _reduced(v, one, False), d.one(["1", "2", "jnp.inf"]), d.one(["norm", "vector_norm"])
    forms += [
        f"m.linalg.{norm}(1.5 + m.abs({v.name}), axis={one!r}, ord={order}, out={d.type(single)!r})"
        if one is not None
        else f"m.linalg.vector_norm(1.5 + m.abs({v.name}), ord={order}, out={d.type(single)!r})",
        f"m.average({v.name}, axis={one!r}, out={d.type(single)!r})",
        f"m.median({v.name}, axis={one!r})",
        f"m.quantile({v.name}, 0.3, axis={one!r})",
    ]
    if v.name[0] == "x":
        forms += [f"m.{d.one(['argmax', 'argmin', 'nanargmax'])}({v.name}, axis={one!r}, out={d.type(single)!r})"] * 3
        forms += [f"m.count_nonzero({v.name}, axis={axis!r}, keepdims={keep}, out={d.type(shape)!r})"]
        forms += [f"m.{d.one(['all', 'any'])}({v.name} > 0.2017, {options.split(', where')[0]}, out={d.type(shape)!r})"]
    return d.one(forms), v.bound * 8 + 4


def _reduced(v: Value, axis: Any, keep: bool) -> tuple[int, ...]:
    given = range(v.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    gone = [k % v.ndim for k in given]
    return tuple(1 if k in gone else n for k, n in enumerate(v.shape) if keep or k not in gone)


@op(2)
def product_to(d: Choices) -> Expression:
    (n, m), equations = d.one([e for e in EQUATIONS.items() if e[0] != (1, 1)])
    equation = d.one(equations)
    (left, right), made = equation.split("->")[0].split(","), equation.split("->")[1]
    v = d.value("f", lambda x: x.ndim == n)
    sizes = dict(zip(left, v.shape, strict=True))
    w = d.value("f", lambda x: x.ndim == m and all(sizes.get(k, n) == n for k, n in zip(right, x.shape, strict=True)))
    w = d.summed(w, 0.7)
    sizes |= dict(zip(right, w.shape, strict=True))
    summed = [sizes[k] for k in set(left + right) - set(made)]
    out = d.type([sizes[k] for k in made])
    bound = v.bound * w.bound * max(1, int(np.prod(summed))) ** 0.7
    if {n, m} == {2} and equation == "ij,jk->ik" and d.flip(0.3):
        return f"m.{d.one(['matmul', 'dot'])}({v.name}, {w.name}, out={out!r})", bound
    return f'm.einsum("{equation}", {v.name}, {w.name}, out={out!r})', bound


#: Equations of two operands of which each has labels of its own, so that one may go round.
RINGED = ("ij,jk->ik", "ij,kj->ik", "ij,jk->ki", "abi,ij->abj", "abi,bj->aij", "abi,abj->aij", "ij,j->i")


@op(2)
def ringed(d: Choices) -> Expression:
    """The gather or the scatter that `out` asks for, between the products."""
    equation = d.one(RINGED)
    (left, right), made = equation.split("->")[0].split(","), equation.split("->")[1]
    v = d.value("f", lambda x: x.ndim == len(left))
    sizes = dict(zip(left, v.shape, strict=True))
    fits = [x for x in d.pool if x.kind == "f" and x.ndim == len(right)]
    w = d.summed(
        d.one([x for x in fits if all(sizes.get(k, n) == n for k, n in zip(right, x.shape, strict=True))]), 0.9
    )
    v = d.summed(v, 0.9)
    sizes |= dict(zip(right, w.shape, strict=True))
    bound = v.bound * w.bound * max(sizes.values()) ** 0.7
    way = d.one(["True", "True", "'bidirectional'"])
    text = ""
    for _ in range(6):
        text = f'm.einsum("{equation}", {v.name}, {w.name}, out={d.type([sizes[k] for k in made])!r}, overlap={way})'
        if typed_step(Step("", text), d.pool) is not None:
            break
    return text, bound


@op(2)
def scoped(d: Choices) -> Expression:
    """A stretch of two ops, with the cheapest reshards inserted where they are refused."""
    weights = chances()
    with sh.implicit_comm():
        text, bound = _other(d, weights)
        first = typed_step(Step("", text), d.pool)
        if not hasattr(first, "dims") or first.size > 2048:
            raise NothingFits
        if bound > 4:
            text, bound = f"({text}) * {4 / bound:.3g}", 4.0
            first = typed_step(Step("", text), d.pool)
        pool = [*d.pool, Value("first", first, bound)]
        again, bound = _other(Choices(d.rng, d.mesh, pool), weights)
    return f"m.implicit_comm(lambda: (lambda first: {again})({text}))()", bound


def _other(d: Choices, weights: Any) -> Expression:
    for _ in range(20):
        generate = OPS[int(d.rng.choice(len(OPS), p=weights))][1]
        if generate.__name__ in ("scoped", "forbidden", "implicit"):
            continue
        try:
            text, bound = generate(d)
        except NothingFits:
            continue
        if "own_backward" not in text:  # backward the scope would leave another type than the argument asks for
            return text, bound
    raise NothingFits
