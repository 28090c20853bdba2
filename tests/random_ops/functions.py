"""Elementwise functions of JAX's modules, each on operands in its domain; comparisons, logic and bits."""

from __future__ import annotations

from tests.random_choices import Choices, Expression, broadcasts, op

#: By the domain that they need: how an operand is brought there.
BY_DOMAIN = {
    "{v}": "i0e i1e ndtr relu6 hard_sigmoid hard_silu hard_swish hard_tanh celu selu soft_sign squareplus mish swish "
    "sparse_plus sparse_sigmoid deg2rad rad2deg radians degrees absolute fabs conjugate asinh atan logistic",
    "m.tanh({v})": "sinh cosh exp2 expm1 i0 i1 log_ndtr tan",
    "0.9 * m.tanh({v})": "arcsin arccos arctanh asin acos atanh erfinv erf_inv erfc",
    "1.5 + m.abs({v})": "log10 log2 log1p reciprocal rsqrt digamma gammaln lgamma entr arccosh acosh cbrt log1mexp",
    "0.5 + 0.4 * m.tanh({v})": "logit ndtri",
}


@op(3)
def function(d: Choices) -> Expression:
    v = d.value()
    domain, names = d.one(list(BY_DOMAIN.items()))
    return f"m.{d.one(names.split())}({domain.format(v=v.name)})", max(v.bound, 4.0) * 2


@op(1)
def steps(d: Choices) -> Expression:
    """Piecewise constant functions, of inputs alone: what was computed may be rounded to the other side."""
    v = d.value("f", lambda v: v.name.startswith("x"))
    name = d.one(["floor", "ceil", "trunc", "rint", "round", "sign", "around"])
    return f"m.{name}({v.name} * 3.1 + 0.0713)", 4.0


@op(2)
def pairs(d: Choices) -> Expression:
    v = d.value()
    w = d.partner(v)
    form = d.one(
        [
            *("m.fmax({a}, {b})", "m.fmin({b}, {a})", "m.logaddexp2({a}, {b})"),
            *("m.power(1.5 + m.abs({a}), 0.25 * {b})", "m.float_power(1.5 + m.abs({a}), 2)"),
            *("m.xlogy({a}, 1.5 + m.abs({b}))", "m.xlog1py({a}, m.abs({b}) + 0.5)"),
            *("m.rel_entr(0.5 + m.abs({a}), 0.5 + m.abs({b}))", "m.kl_div(0.5 + m.abs({a}), 0.5 + m.abs({b}))"),
            *("m.betaln(1.5 + m.abs({a}), 1.5 + m.abs({b}))", "m.true_divide({a}, 1.5 + m.abs({b}))"),
            *("m.divide({a}, 2.5)", "m.atan2({a}, 2.5 + m.abs({b}))", "m.ldexp({a}, 2)"),
            "m.heaviside({a} * 0 + 1.0, {b})",
        ]
    )
    return form.format(a=v.name, b=w.name), 3 * (max(v.bound, 1) + max(w.bound, 1)) + 4


@op(1.5)
def predicates(d: Choices) -> Expression:
    v = d.value("f", lambda v: v.name.startswith("x"))
    w = d.value("f", lambda w: w.name.startswith("x") and broadcasts(v.shape, w.shape))
    name = d.one(["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
    form = d.one(
        [
            *(f"m.{name}({{a}}, {{b}} + 0.0107)", f"m.{name}({{a}}, 0.1071)", "m.isfinite({a})", "m.isnan({a})"),
            *("m.isclose({a}, {b} + 0.0107)", "m.signbit({a} + 0.0107)", "m.isinf({a})"),
        ]
    )
    return form.format(a=v.name, b=w.name), 1.0


@op(1.5)
def logic(d: Choices) -> Expression:
    v = d.value("b")
    w = d.partner(v, "b")
    form = d.one(
        ["m.logical_and({a}, {b})", "{a} | {b}", "m.logical_xor({a}, {b})", "m.logical_not({a})", "{a} & {b}", "~{a}"]
    )
    reduced = [f"m.{n}({v.name}, axis={d.dims(v)!r})" for n in ("any", "all", "count_nonzero", "sum")]
    return (d.one(reduced) if d.flip(0.4) else form.format(a=v.name, b=w.name)), 1.0


@op(2)
def bits(d: Choices) -> Expression:
    v = d.value("i")
    w = d.partner(v, "i")
    form = d.one(
        [
            *("{a} & {b}", "{a} | {b}", "{a} ^ {b}", "~{a}", "{a} << 1", "{a} >> 1", "m.gcd({a}, {b})"),
            *("m.mod({a}, 3)", "m.remainder({a}, 4)", "m.fmod({a}, 3)", "m.bitwise_count({a})"),
            *("m.floor_divide({a}, 2)", "m.abs({a})", "m.sign({a})", "m.minimum({a}, {b})", "m.equal({a}, {b})"),
            *("m.less({a}, {b})", "{a} ** 2", "m.square({a})", "m.prod({a} % 3)"),
            "m.cumsum({a}, axis=-1)" if v.ndim else "{a}",
            "m.max({a}, axis=0)" if v.ndim else "{a}",
            "m.argsort({a}, axis=-1)" if v.ndim else "{a}",
            "m.sort({a}, axis=0)" if v.ndim else "{a}",
            "m.reshape({a}, -1)",
            "m.concatenate([{a}, {a}], axis=-1)" if v.ndim else "{a}",
        ]
    )
    return form.format(a=v.name, b=w.name), 16.0


@op(2)
def reductions(d: Choices) -> Expression:
    """The reductions that the plainer family leaves out."""
    v = d.value()
    axis = d.dims(v)
    one = None if not v.ndim else d.one([None, d.dim(v)])
    options = f"axis={axis!r}, keepdims={d.flip(0.3)}"
    forms = [
        f"m.std({v.name} + LONG[0] * m.cumsum(m.ones_like({v.name})), {options})"
        if v.ndim == 1
        else f"m.ptp({v.name})",
        *(f"m.ptp({v.name}, axis={one!r})", f"m.prod(0.5 + 0.3 * m.tanh({v.name}), {options})"),
        *(f"m.amax({v.name}, {options})", f"m.amin({v.name}, {options})", f"m.nansum({v.name}, axis={axis!r})"),
        *(f"m.nanmax({v.name}, axis={axis!r})", f"m.average({v.name}, axis={one!r})"),
        *(f"m.median({v.name}, axis={one!r})", f"m.linalg.vector_norm(1.5 + m.abs({v.name}), axis={one!r})"),
        f"m.sum({v.name}, axis={axis!r}, out={d.type(())!r})" if axis is None else f"m.mean({v.name}, axis={axis!r})",
    ]
    if v.name.startswith("x") and v.ndim:
        forms += [f"m.{n}({v.name}, axis={one!r})" for n in ("argmax", "argmin")]
        forms += [f"m.count_nonzero({v.name}, axis={axis!r})", f"m.argsort({v.name}, axis={d.dim(v)})"]
    return d.one(forms), v.bound * 8 + 4
