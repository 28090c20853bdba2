"""Arithmetic, contractions, reductions, selection, and what arranges elements."""

from __future__ import annotations

import numpy as np

from tests.random_choices import Choices, Expression, broadcasts, op

#: Smooth functions, or kinked at 0 only, of values between -4 and 4.
UNARY = (
    "sin", "cos", "tanh", "silu", "gelu", "sigmoid", "relu", "softplus", "abs", "square", "arctan", "erf", "elu",
    "leaky_relu", "arcsinh", "expit", "log_sigmoid", "sinc", "nan_to_num", "cbrt" "",
)[:-1]  # fmt: skip


@op(3)
def unary(d: Choices) -> Expression:
    v = d.value()
    return f"m.{d.one(UNARY)}({v.name})", max(v.bound, 1) ** 2


@op(1)
def positive(d: Choices) -> Expression:
    v = d.value()
    inner = d.one(
        ["m.sqrt(m.abs({}) + 0.5)", "m.log(1.5 + m.square({}))", "1.0 / (1 + m.square({}))", "m.exp(-m.abs({}))"]
    )
    return inner.format(v.name), 3.0


@op(2)
def linear(d: Choices) -> Expression:
    v = d.value()
    text = d.one(
        ["-{}", "{} * 0.5", "2 * {}", "{} / 4", "m.negative({})", "m.real({})", "m.positive({})", "m.conj({})"]
    )
    return text.format(v.name), 2 * v.bound


@op(5)
def binary(d: Choices) -> Expression:
    v = d.value()
    w = v if d.flip(0.1) else d.partner(v)
    a, b = (v, w) if d.flip() else (w, v)
    form, bound = d.one(
        [
            ("{a} + {b}", a.bound + b.bound),
            ("{a} - {b}", a.bound + b.bound),
            ("{a} * {b}", a.bound * b.bound),
            ("m.maximum({a}, {b})", a.bound + b.bound),
            ("m.minimum({a}, {b})", a.bound + b.bound),
            ("{a} / (1.5 + m.square({b}))", a.bound),
            ("m.hypot({a}, {b} + 0.5)", a.bound + b.bound),
            ("m.arctan2({a}, 2.5 + m.abs({b}))", 2.0),
            ("m.logaddexp({a}, {b})", a.bound + b.bound + 1),
        ]
    )
    return form.format(a=a.name, b=b.name), bound


@op(3)
def with_constant(d: Choices) -> Expression:
    v = d.value()
    form = d.one(["{v} + {c}", "{c} + {v}", "{v} - {c}", "m.subtract({c}, {v})", "{v} * {c}", "m.multiply({c}, {v})",
                  "m.maximum({v}, {c})", "m.minimum({c}, {v})", "m.add({c}, {v})"])  # fmt: skip
    return form.format(v=v.name, c=d.constant(v)), 2 * v.bound + 2


@op(1)
def power(d: Choices) -> Expression:
    v = d.value()
    return f"{v.name} ** {d.one([2, 3, 1, 0])}", max(v.bound, 1) ** 3


@op(1)
def clip(d: Choices) -> Expression:
    v = d.value()
    return d.one(["m.clip({v}, -0.5, 0.75)", "m.clip({v}, None, 0.3)", "m.clip({v}, -0.4)"]).format(v=v.name), v.bound


EQUATIONS = {
    (1, 1): ("i,i->", "i,j->ij", "i,i->i"),
    (2, 1): ("ij,j->i", "ij,j->ij", "ij,i->j", "ij,j->"),
    (2, 2): ("ij,jk->ik", "ij,kj->ik", "ij,ij->", "ij,ij->i", "ij,jk->ijk", "ij,ij->ji"),
    (3, 2): ("abi,ij->abj", "abi,bj->aij", "abi,bi->ab"),
    (3, 3): ("abi,abi->ab", "abi,abj->aij", "abi,acj->bcij"),
    (3, 1): ("abi,i->ab", "abi,a->bi"),
}


@op(4)
def einsum(d: Choices) -> Expression:
    (n, m), equations = d.one(list(EQUATIONS.items()))
    equation = d.one(equations)
    left, right = equation.split("->")[0].split(",")
    v = d.value("f", lambda x: x.ndim == n)
    sizes = dict(zip(left, v.shape, strict=True))
    w = d.value("f", lambda x: x.ndim == m and all(sizes.get(k, n) == n for k, n in zip(right, x.shape, strict=True)))
    summed = set(left + right) - set(equation.split("->")[1])
    sizes |= dict(zip(right, w.shape, strict=True))
    count = int(np.prod([sizes[k] for k in summed], dtype=int))
    return f'm.einsum("{equation}", {v.name}, {w.name})', v.bound * w.bound * max(1, count) ** 0.7


@op(2)
def matmul(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1)
    w = d.value("f", lambda x: x.ndim in (1, 2) and x.shape[0] == v.shape[-1])
    form = d.one(["{} @ {}", "m.matmul({}, {})", "m.dot({}, {})", "m.tensordot({}, {}, 1)"])
    return form.format(v.name, w.name), v.bound * w.bound * v.shape[-1] ** 0.7


@op(1)
def single(d: Choices) -> Expression:
    """Einsums of one operand, diagonals among them."""
    v = d.value("f", lambda x: x.ndim == 2)
    square = v.shape[0] == v.shape[1]
    equation = d.one(["ij->ji", "ij->i", "ij->", *(("ii->i", "ii->") if square else ())])
    return f'm.einsum("{equation}", {v.name})', v.bound * 8


@op(4)
def reduction(d: Choices) -> Expression:
    v = d.value()
    name = d.one(["sum", "sum", "mean", "max", "min", "logsumexp", "var", "sum", "mean"])
    return f"m.{name}({v.name}, axis={d.dims(v)!r}, keepdims={d.flip(0.3)})", v.bound * 6 + 4


@op(2)
def where(d: Choices) -> Expression:
    p = d.value("bf", lambda v: v.kind == "b" or v.name.startswith("x"))
    condition = p.name if p.kind == "b" else d.one(["{} > 0.2071", "{} <= -0.1033", "{} > 0.3119"]).format(p.name)
    a = d.partner(p)
    b = d.value("f", lambda w: broadcasts(p.shape, w.shape) and broadcasts(a.shape, w.shape))
    if d.flip(0.4):
        pair = [a.name, d.one(["0", "1.5", "-0.5", "0.0", "-0.0", "SCALAR", "ZERO_D"])]
        first, second = pair if d.flip() else pair[::-1]
        return f"m.where({condition}, {first}, {second})", a.bound + 1.5
    return f"m.where({condition}, {a.name}, {b.name})", a.bound + b.bound


@op(2)
def join(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1 and x.ndim <= 2)
    w = d.value("f", lambda x: x.shape == v.shape)
    if d.flip(0.5):
        return f"m.stack([{v.name}, {w.name}], axis={d.one(range(-v.ndim - 1, v.ndim + 1))})", v.bound + w.bound
    return f"m.concatenate([{v.name}, {w.name}], axis={d.dim(v)})", v.bound + w.bound


@op(1)
def split(d: Choices) -> Expression:
    v = d.value("f", lambda x: any(n % 4 == 0 for n in x.shape))
    dim = d.one([i for i, n in enumerate(v.shape) if n % 4 == 0])
    form = d.one(
        ["m.split({v}, 2, axis={d})[{i}]", "m.array_split({v}, 3, axis={d})[{i}]", "m.split({v}, [1], axis={d})[{i}]"]
    )
    return form.format(v=v.name, d=dim, i=d.one([0, 1])), v.bound


@op(3)
def arrange(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1)
    k = d.dim(v)
    forms = [
        *(f"m.flip({v.name}, {k})", f"m.roll({v.name}, {d.one([1, -3])}, {k})", f"m.roll({v.name}, 2)"),
        *(f"m.cumsum({v.name}, axis={k}) * 0.25", f"m.repeat({v.name}, 2, axis={k})", f"m.repeat({v.name}, 2)"),
        f"m.tile({v.name}, {d.one([1, 2, (2, 1), (1,) * v.ndim])})",
        f"m.pad({v.name}, {d.one(['1', '((0, 2),) + ((0, 0),) * ' + str(v.ndim - 1)])})",
        *(f"m.pad({v.name}, 1, constant_values={d.one([1.5, -2])})", f"m.diff({v.name}, axis={k})"),
        *(f"m.sort({v.name} + 0.3, axis={k})", f"m.cummax({v.name}, axis={k})"),
    ]
    if v.ndim >= 2:
        forms += [
            f"m.tril({v.name}, {d.one([-1, 0, 2])})",
            f"m.triu({v.name}, {d.one([-1, 0, 2])})",
            f"m.trace({v.name}, {d.one([0, 1])})",
            f"m.diagonal({v.name}, {d.one([0, 0, 1])})",
        ]
    if v.ndim == 1:
        forms += [f"m.diag({v.name}, {d.one([0, 0, 1])})"]
    return d.one(forms), v.bound * 2
