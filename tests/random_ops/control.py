"""Loops, branches and JAX's transformations, of bodies that are generated too."""

from __future__ import annotations

from collections.abc import Sequence

from tests.random_choices import Choices, Expression, op


def _body(d: Choices, names: Sequence[str], depth: int = 2) -> str:
    """An elementwise expression of names of one shape."""
    if not depth or d.flip(0.2):
        return str(d.one(names))
    a, b = _body(d, names, depth - 1), _body(d, names, depth - 1)
    form = d.one(["({a} + {b})", "({a} - {b})", "({a} * {b})", "m.tanh({a})", "({a} * 0.5)", "m.maximum({a}, {b})",
                  "-({a})", "m.where({a} > 0.1931, {a}, {b})" if a.startswith("x") else "m.sin({a})",
                  "({a} + 0.5)"])  # fmt: skip
    return str(form).format(a=a, b=b)


@op(1.5)
def checkpointed(d: Choices) -> Expression:
    v = d.value()
    w = d.value("f", lambda x: x.shape == v.shape)
    inner = _body(d, ["a", "b", w.name], 3)
    if d.flip(0.4):
        inner = f'm.reshard({inner}, "{d.type(v.shape)}")'
    return f"m.checkpoint(lambda a, b: {inner})({v.name}, {w.name})", (v.bound + w.bound + 1) ** 2


@op(1.5)
def scanned(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1)
    w = d.value("f", lambda x: x.shape == v.shape[1:])
    outer = [w.name]
    carry = (
        f"(c + {_body(d, ['x', *outer], 1)}) * 0.5"
        if d.flip()
        else f"m.tanh({_body(d, ['c', 'x', *outer], 2)}) + 0 * c"
    )
    which, result = d.one([(0, "c"), (1, _body(d, ["c", "x"], 1))])
    return (
        f"m.scan(lambda c, x: ({carry}, {result}), {w.name}, {v.name}, reverse={d.flip(0.3)})[{which}]",
        v.bound + w.bound,
    )


@op(1)
def nested(d: Choices) -> Expression:
    """A loop in a loop, with a carry that the body makes."""
    v = d.value("f", lambda x: x.ndim >= 2)
    w = d.value("f", lambda x: x.shape == v.shape[2:])
    inner = f"m.scan(lambda e, y: ((e + {d.one(['y', 'y * y', w.name])}) * 0.5, None), c, x)[0]"
    start = d.one([w.name, f"m.zeros_like({w.name})", f"{v.name}[0, 0]"])
    return f"m.scan(lambda c, x: ({inner}, c), {start}, {v.name})[{d.one([0, 1])}]", v.bound + w.bound


@op(1)
def branched(d: Choices) -> Expression:
    v = d.value()
    w = d.value("f", lambda x: x.shape == v.shape)
    a, b = _body(d, ["a", "b", w.name], 1), _body(d, ["a", "b", v.name], 1)
    return f"m.cond({d.one(['YES', 'NO', 'True'])}, lambda a, b: {a}, lambda a, b: {b}, {v.name}, {w.name})", (
        v.bound + w.bound
    ) ** 2


@op(1)
def mapped(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1)
    w = d.value("f", lambda x: x.shape == v.shape[1:])
    u = d.value("f", lambda x: x.shape == v.shape)
    inner = _body(d, ["a", "b", w.name], 2)
    if d.flip(0.3):
        inner = f"m.sum({inner})"
    if d.flip(0.2):
        inner = f'm.reshard({_body(d, ["a", "b"], 1)}, "{d.type(w.shape)}")'
    return f"m.vmap(lambda a, b: {inner}, {d.one(['0', '(0, 0)', '(0, 0), -1'])})({v.name}, {u.name})", (
        v.bound + w.bound + 1
    ) ** 2


@op(1)
def looped(d: Choices) -> Expression:
    v = d.value()
    return f"m.fori_loop(0, 3, lambda i, c: ({_body(d, ['c', v.name], 1)}) * 0.5, {v.name})", v.bound * 2


@op(1.5)
def chosen(d: Choices) -> Expression:
    v = d.value()
    w = d.value("f", lambda x: x.shape == v.shape)
    branches = ", ".join(f"lambda a, b: {_body(d, ['a', 'b', w.name], 1)}" for _ in range(3))
    return f"m.switch({d.one([0, 1, 2, 'jnp.asarray(1)'])}, [{branches}], {v.name}, {w.name})", (v.bound + w.bound) ** 2


@op(1)
def repeated(d: Choices) -> Expression:
    """A loop with a predicate, which has no reverse mode: of a constant."""
    v = d.value()
    inner = f"({_body(d, ['c', 'c'], 1)}) * 0.5"
    start = f"(0, m.constant({v.name}))"
    return f"m.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, (lambda c: {inner})(s[1])), {start})[1]", v.bound + 1


@op(1.5)
def wrapped(d: Choices) -> Expression:
    """Functions inside: jitted, checkpointed with a policy, with a backward pass of their own."""
    v = d.value()
    w = d.value("f", lambda x: x.shape == v.shape)
    inner = _body(d, ["a", "b", w.name], 2)
    forms = [
        f"m.jit(lambda a, b: {inner})({v.name}, {w.name})",
        f"own_backward(m)({v.name})",
        f"m.checkpoint(lambda a, b: m.checkpoint_name({inner}, 'kept') * b)({v.name}, {w.name})",
        f"m.vmap(lambda a: own_backward(m)(a))({v.name})" if v.ndim else f"own_backward(m)({v.name})",
        f"m.checkpoint(lambda a: own_backward(m)(a) * a)({v.name})",
    ]
    return d.one(forms), (v.bound + w.bound + 1) ** 3


@op(2)
def derived(d: Choices) -> Expression:
    """A derivative as a value, whose own derivative is then of the second order."""
    v = d.value()
    w = d.value("f", lambda x: x.shape == v.shape)
    inner = _body(d, ["a", "a", w.name], 3)
    if d.flip(0.3):
        inner = f'm.reshard({inner}, "{d.type(v.shape)}")'
    forms = [
        f"m.grad(lambda a: m.sum({inner}))({v.name})",
        f"m.jvp(lambda a: {inner}, ({v.name},), ({w.name},))[1]",
        f"m.vjp(lambda a: {inner}, {v.name})[1](m.ones_like({v.name}))[0]",
        f"m.vjp(lambda a: {inner}, {v.name})[1]({w.name})[0]",
        f"m.linearize(lambda a: {inner}, {v.name})[1]({w.name})",
        f"m.value_and_grad(lambda a: m.sum({inner}))({v.name})[{d.one([0, 1])}]",
        f"m.jvp(lambda a: m.grad(lambda b: m.sum(m.sin(b) * b))(a), ({v.name},), ({v.name},))[1]",
    ]
    return d.one(forms), (v.bound + w.bound + 1) ** 3
