"""Each fix of a lifted program, written into its text where it says, types there and sends what its price says."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shtypes as sh
from shtypes.traced.program import with_gradient, zero_cotangent

X, W1, W2 = "f32[8@dp, 16]", "f32[16, 32@tp]", "f32[32@tp, 16]"
#: By name: the program, in which ``run`` is called, and the types of its arguments.
PROGRAMS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "an expression of several lines": (
        """
def run(x, w1, w2):
    return (
        jnp.tanh(
            x
            @ w1
            @ w2
        )
    )
""",
        (X, W1, W2),
    ),
    "what a call gives unpacked": (
        """
def run(x, w):
    a, b = jnp.split(x @ w, 2, axis=-1)
    return jax.nn.silu(a), b
""",
        ("f32[8@dp, 16@tp]", "f32[16@tp, 16]"),
    ),
    "an array unpacked": (
        """
def run(x, w):
    a, b = (x @ w).reshape(2, 4, 16)
    return jnp.tanh(a), b
""",
        ("f32[8, 16@tp]", "f32[16@tp, 16]"),
    ),
    "a loop over an array": (
        """
def run(x, w):
    total = 0.0
    for row in x @ w:
        total = total + jnp.tanh(row)
    return total
""",
        ("f32[4, 16@tp]", "f32[16@tp, 16]"),
    ),
    "a loop that is written out": (
        """
def run(x, w):
    y = x @ w
    total = 0.0
    for i in range(4):
        total = total + jnp.tanh(y[i])
    return total
""",
        ("f32[4, 16@tp]", "f32[16@tp, 16]"),
    ),
    "a maximum": (
        """
def run(x):
    return jnp.max(x, axis=1)
""",
        ("f32[8@dp, 16@tp]",),
    ),
    "a maximum that keeps its dims": (
        """
def run(x):
    return jnp.max(x, axis=1, keepdims=True)
""",
        ("f32[8@dp, 16@tp]",),
    ),
    "the place of a maximum, by a method": (
        """
def run(x):
    return x.argmax(1, keepdims=True)
""",
        ("f32[8@dp, 16@tp]",),
    ),
    "an argument that a helper calls otherwise": (
        """
def helper(w, x):
    return w + x

def run(x, w):
    return helper(x, w)
""",
        ("f32[16@tp, 16]", "f32[16, 16@tp]"),
    ),
    "an argument of which `vmap` takes rows by the same name": (
        """
def run(x, w):
    def both(x, w):
        return jnp.concatenate([x, w])

    return jax.vmap(both)(x, w)
""",
        ("f32[16@tp, 16]", "f32[16, 16@tp]"),
    ),
    "an argument where an inner function closes over another of its name": (
        """
def helper(y, x):
    def inner(a):
        return jnp.arctan2(a, x)
    return inner(y)

def run(x, w):
    return helper(x, w)
""",
        ("f32[16, 16]{U:tp}", "f32[16, 16]"),
    ),
    "what an unnamed value is made of, where that is read": (
        """
def run(x, y):
    pair = jax.tree.map(lambda t: -t, [x, y])
    both = [t * 2 for t in pair]
    return jnp.sort(both[1], 1), both[0], y[0] * 2
""",
        ("f32[16]", "f32[8, 8@tp]"),
    ),
    "an argument that a loop closes over": (
        """
def run(x, i):
    def one(row):
        return jnp.zeros(4).at[i].set(0.5) * row
    return jax.lax.map(one, x)
""",
        ("f32[8]", "i32[4@tp]"),
    ),
    "an argument that only a loop's body reads": (
        """
def run(w, x):
    return jax.lax.map(lambda r: jnp.sin(w) * r, x)
""",
        ("f32[16, 16]{U:tp}", "f32[5]"),
    ),
    "an argument that only a loop in a loop's body reads": (
        """
def run(w, x):
    return jax.lax.map(lambda row: jax.lax.map(lambda r: jnp.sin(w) * r, row), x)
""",
        ("f32[16, 16]{U:tp}", "f32[5, 3]"),
    ),
    "what a branch closes over, and what it is given": (
        """
def run(p, x):
    def one(a):
        return jnp.sum(jnp.maximum(x, a))

    return jax.lax.cond(p[0], one, lambda b: b * 2, x[0, 0])
""",
        ("bool[1]", "f32[8, 16]{U:tp}"),
    ),
    "one of two results that are unpacked": (
        """
def run(x, w):
    top, _ = jax.lax.top_k(x, 16)
    return top @ w
""",
        ("f32[16@tp, 16]", "f32[16, 16@tp]"),
    ),
    "one of two results by its index": (
        """
def run(x, w):
    return jax.lax.top_k(x, 16)[0] @ w
""",
        ("f32[16@tp, 16]", "f32[16, 16@tp]"),
    ),
    "one of several results of a loop that are unpacked": (
        """
def run(x):
    last, (rows, sums) = jax.lax.scan(lambda c, row: (c * 2, (row, c.sum())), x[0], x)
    return jnp.max(last), rows
""",
        ("f32[4, 16@tp]",),
    ),
    "the only result of a loop that is read": (
        """
def run(x, w):
    last, _ = jax.lax.scan(lambda c, _: (c + w, None), x, None, length=3)
    return jnp.sort(last, -1)
""",
        ("f32[4, 16@tp]", "f32[4, 16@tp]"),
    ),
    "a part of a loop's result": (
        """
def run(x, w):
    end = jax.lax.fori_loop(0, 3, lambda i, c: {"a": c["b"], "b": c["a"] + w}, {"a": x, "b": x})
    return jnp.sort(end["b"], -1)
""",
        ("f32[4, 16@tp]", "f32[4, 16@tp]"),
    ),
    "an argument of a loop's body, along an axis below zero": (
        """
def run(x):
    def body(carry, row):
        return carry + jax.nn.one_hot(jnp.argmax(row, -1), 16), None
    return jax.lax.scan(body, jnp.zeros(16), x)[0]
""",
        ("f32[8, 16]{U:tp}",),
    ),
    "an argument of a function that is mapped": (
        """
def run(x):
    def one(row):
        return jnp.sum(jnp.greater(row, 0.5))
    return jax.lax.map(one, x)
""",
        ("f32[8, 16]{U:tp}",),
    ),
    "an argument of a branch": (
        """
def run(p, x):
    _, y = jax.lax.top_k(x, 2)[0], x * 2
    return jax.lax.cond(p[0], lambda a: jnp.sort(a, 1).sum(), lambda b: b.sum(), y)
""",
        ("bool[1]", "f32[8@dp, 16@tp]"),
    ),
    "results of branches": (
        """
def run(p, x, y):
    def first(x, y):
        return {"a": y, "b": x * 2}

    def other(x, y):
        return {"a": y * 2, "b": jnp.sin(y)}

    return jax.lax.cond(p[0], first, other, x, y)
""",
        ("bool[1]", "f32[8, 8@dp]", "f32[8@dp, 8]"),
    ),
    "what is mapped, by a name that is unpacked": (
        """
def run(x, w):
    last, _ = jax.lax.scan(lambda c, _: (c + w, None), x, None, length=3)

    def one(row, other):
        return jnp.argmax(row, -1)

    return jax.vmap(one, in_axes=(0, None))(last, w)
""",
        ("f32[8, 16@tp]", "f32[8, 16@tp]"),
    ),
    "a function with a derivative of its own": (
        """
@jax.custom_jvp
def centered(row):
    return row - jnp.mean(row, 0)

@centered.defjvp
def _(primals, tangents):
    return centered(*primals), tangents[0]

def run(x):
    return centered(x * x)
""",
        ("f32[8@dp]",),
    ),
    "what a function with a derivative of its own is given": (
        """
@jax.custom_jvp
def ordered(rows):
    return jnp.sort(rows, 1)

@ordered.defjvp
def _(primals, tangents):
    return ordered(*primals), tangents[0]

def run(x):
    return ordered(x * x)
""",
        ("f32[8@dp, 16@tp]",),
    ),
    "a function of JAX that has a derivative of its own": (
        """
def run(x):
    y = jnp.transpose(x, (1, 0))
    return jnp.logaddexp(y, 0.0)
""",
        ("f32[8, 16@dp]{U:tp}",),
    ),
    "a method with a dtype, of a value that a function closes over": (
        """
def run(x):
    y = x * 2
    def one(row):
        return jnp.tanh(y.astype(jnp.bfloat16).astype(jnp.float32)) * row
    return jax.lax.map(one, jnp.ones(4))
""",
        ("f32[8, 16]{U:tp}",),
    ),
    "a method of a value": (
        """
def run(x):
    def one(row):
        return jnp.negative(row).astype(jnp.bfloat16)
    return jax.lax.map(one, x)
""",
        ("f32[8, 16]{U:tp}",),
    ),
    "a value that is read twice in an expression": (
        """
def run(x):
    y = x * 2
    return y @ y
""",
        ("f32[16@tp, 16]",),
    ),
    "an expression in a compiled function that several lines call": (
        """
@jax.jit
def helper(a):
    return jnp.tanh(a * 2)

def run(x):
    y = helper(x)
    return y + helper(x * 3)
""",
        ("f32[16, 16]{U:tp}",),
    ),
    "a value that another expression of the line reads": (
        """
def run(x, w):
    y = x @ w
    return y * 2, jnp.tanh(y)
""",
        ("f32[4, 16@tp]", "f32[16@tp, 16]"),
    ),
    "a value that an operand reads, too": (
        """
def run(x):
    y = x * 2
    return y - jnp.sum(y, 0)
""",
        ("f32[8@dp, 16]",),
    ),
    "a chain of methods, each on a line": (
        """
def run(x, w):
    y = (
        (x @ w)
        .reshape(4, 2, 8)
        .sum(1)
    )
    return jnp.tanh(y)
""",
        ("f32[4, 16@tp]", "f32[16@tp, 16]"),
    ),
    "two values, of which the line reads one elsewhere, too": (
        """
def run(x, y):
    return jnp.sin(x), x * y + 1
""",
        ("f32[8, 16@dp]", "f32[8@dp, 16]"),
    ),
    "one of two values that a line binds": (
        """
def run(x, w, v):
    mean, scale = x @ w, x @ v
    return mean + 1, jnp.exp(scale)
""",
        ("f32[4, 16@tp]", "f32[16@tp, 16]", "f32[16@tp, 16]"),
    ),
    "a part of a carry that the body unpacks": (
        """
def run(x):
    def body(carry, _):
        (hidden, total), step = carry
        return ((hidden + 1, total), step + 1), jnp.sort(hidden, 1) + 1
    return jax.lax.scan(body, ((x, jnp.sum(x)), 0), None, length=3)[1]
""",
        ("f32[16, 16@dp]",),
    ),
    "a part of an argument that the program takes": (
        """
def run(p, x):
    w, b = p["w"], p["b"]
    return (x @ w) * b
""",
        ({"w": "f32[16@tp, 16]", "b": "f32[16@tp]"}, "f32[4, 16@tp]"),
    ),
    "a leaf by a key that varies": (
        """
def run(p, x):
    return [x @ p[name] for name in ("a", "b")]
""",
        ({"a": "f32[16, 16@tp]", "b": "f32[16@tp, 16]"}, "f32[4, 16@tp]"),
    ),
    "an argument of a function that a line calls for several values": (
        """
def helper(a):
    return jnp.cumsum(a, 1)

def run(x, y):
    return helper(jnp.cos(y)), helper(x)
""",
        ("f32[4, 16@dp]", "f32[4, 16]"),
    ),
    "a body of scan": (
        """
def run(x, w):
    def body(carry, row):
        return carry + jnp.tanh(row @ w), None
    return jax.lax.scan(body, jnp.zeros(16), x)[0]
""",
        ("f32[4, 16@tp]", "f32[16@tp, 16]"),
    ),
    "what scan runs over": (
        """
def run(x):
    def body(carry, row):
        return carry + row, None
    return jax.lax.scan(body, jnp.zeros(16), x)[0]
""",
        ("f32[8@dp, 16@tp]",),
    ),
    "a reduction in a body of scan": (
        """
def run(x):
    def body(carry, row):
        return carry + jnp.max(row, 1), None
    return jax.lax.scan(body, jnp.zeros(4), x)[0]
""",
        ("f32[3, 4, 16@tp]",),
    ),
    "a function of JAX that has a typed form": (
        """
def run(x):
    return sum(jnp.linalg.norm(jnp.sin(x * i), axis=1) * (i + 1.5) for i in range(3))
""",
        ("f32[4, 16@tp]",),
    ),
    "one result of several": (
        """
def run(x):
    return jnp.split(x, 4, axis=1)[2] * 2
""",
        ("f32[4, 16@tp]",),
    ),
    "a function under vmap": (
        """
def run(x, w1, w2):
    def one(row):
        return jnp.tanh(row @ w1 @ w2)
    return jax.vmap(one)(x)
""",
        (X, W1, W2),
    ),
    "a function under vmap, of an argument": (
        """
def run(x):
    def one(row):
        return jnp.tanh(row)
    return jax.vmap(one)(x)
""",
        ("f32[8@dp, 16]{U:tp}",),
    ),
    "a branch that is chosen for each row": (
        """
def run(x, i):
    branches = [
        lambda row: row * 2 + 1,
        lambda row: jnp.sin(row),
    ]
    return jax.vmap(lambda row, i: jax.lax.switch(i, branches, row))(x, i)
""",
        ("f32[8@dp, 16]{U:tp}", "i32[8@dp]"),
    ),
    "a sum over the mapped dim": (
        """
def run(x):
    def one(row):
        return row / jax.lax.psum(row, "rows")
    return jax.vmap(one, axis_name="rows")(x)
""",
        ("f32[8@dp, 16]",),
    ),
    "the backward pass by one weight": (
        """
def loss(w1, w2, x):
    return jnp.sum(jnp.square(x @ w1 @ w2))

run = jax.grad(loss)
""",
        (W1, W2, X),
    ),
    "the backward pass by the other weight": (
        """
def loss(w2, w1, x):
    y = x @ w1 @ w2
    return jnp.sum(y ** 2)

run = jax.grad(loss)
""",
        (W2, W1, X),
    ),
    "a gradient that an optimizer reads": (
        """
def run(w, x):
    g = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
    return w - 0.1 * jnp.sign(g)
""",
        ("f32[16, 8]", "f32[64@dp, 16]"),
    ),
    "the loss and its backward pass": (
        """
def loss(w1, w2, x):
    h = x @ w1
    y = h @ w2
    return jnp.sum(y * y)

run = jax.value_and_grad(loss)
""",
        (W1, W2, X),
    ),
    "a mean of some elements": (
        """
def run(x, y):
    return jnp.mean(x, axis=1, where=y)
""",
        ("f32[8@dp, 16@tp]", "bool[8@dp, 16@tp]"),
    ),
    "a roll": (
        """
def run(x):
    return jnp.roll(x, 1, axis=1)
""",
        ("f32[8@dp, 16@tp]",),
    ),
    "a running sum by a method": (
        """
def run(x):
    return x.cumsum(0) * 2
""",
        ("f32[64@tp, 16]",),
    ),
    "a product whose typed form does not reshard operands": (
        """
def run(x, w):
    return jnp.linalg.matmul(x, w)
""",
        ("f32[8@tp, 16]", "f32[16, 8@tp]"),
    ),
    "an argument of `vmap` that a compiled function reads twice": (
        """
def run(x):
    return jax.vmap(lambda row: jnp.roll(row, 1))(x)
""",
        ("f32[8, 16@tp]",),
    ),
    "two results, of which the second is computed first": (
        """
def run(x):
    return jnp.histogram(x, 2)
""",
        ("f32[8@tp]",),
    ),
    "one of several results of a compiled function": (
        """
def run(x):
    return jnp.linalg.svd(x, full_matrices=False)[1]
""",
        ("f32[16@tp, 4]",),
    ),
    "one of several results of a function": (
        """
def run(x):
    rows, counts = jnp.unique(x, size=4, return_counts=True)
    return rows
""",
        ("i32[16@tp]",),
    ),
    "a roll by a constant of the program": (
        """
def run(x):
    shift = jnp.max(jnp.arange(3))
    return jnp.roll(x, shift, axis=1)
""",
        ("f32[8@dp, 16@tp]",),
    ),
    "positions in a key, read before": (
        """
def run(x, i):
    def body(table, inputs):
        row, i = inputs
        table = table.at[sh.reshard(i, "[]")].set(row)
        return table, table[i] * 2.0
    return jax.lax.scan(body, x, (x, i))
""",
        ("f32[4, 6]", "i32[4]{U:dp}"),
    ),
}


@pytest.mark.nightly
def test_a_fix_never_names_a_line_inside_jax_and_is_there_for_each_program() -> None:
    for name in PROGRAMS:
        error = _refusal(*PROGRAMS[name])
        assert error.fixes, name
        assert not re.search(r"(?<!program)\.py:\d|\b(lhs|rhs|operand\w*|result_\d|xs\[\d\])\b", str(error.fixes)), (
            error
        )


#: Programs that use an invariant result among replicated values themselves, and send what comes later.
USED_WITHIN = {"an argument that only a loop's body reads", "an argument that only a loop in a loop's body reads"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fix_written_where_it_says_types_and_sends_what_its_price_says(name: str) -> None:
    text, types = PROGRAMS[name]
    error = _refusal(text, types)
    line = int(re.match(r"program\.py:(\d+)", error.where)[1])  # type: ignore[index]
    for fix in error.fixes:
        edited = _written(text, fix.code, line)
        book = _ledger(edited, types)
        backward = fix.bytes_backward + (fix.bytes_later if name in USED_WITHIN else 0)
        sent = book.forward().bytes, book.backward().bytes
        assert sent == (fix.bytes_forward, backward), f"{error}\n{edited}\n{book}"


@pytest.mark.parametrize(
    "name", [name for name in PROGRAMS if name.startswith(("a mean of", "a roll", "a running sum"))]
)
def test_a_call_that_has_a_way_across_shards_has_a_fix_that_asks_for_its_result(name: str) -> None:
    assert any("out=" in fix.code for fix in _refusal(*PROGRAMS[name]).fixes)


def test_an_argument_whose_name_is_of_another_value_by_then_is_resharded_where_the_function_begins() -> None:
    text = """
def run(x, w):
    first = x
    x = jnp.sin(w)
    return x + first
"""
    error = _refusal(text, ("f32[16@tp, 16]", "f32[16, 16@tp]"))
    assert 'sh.reshard(x, "[16,16@tp]")  # program.py:2' in {fix.code for fix in error.fixes}


#: Programs with values that two lines want in two types.
WANTED_TWICE = {
    "sorted along both dims": (
        """
def run(x):
    y = x * 2
    return jnp.sort(y, 0), jnp.sort(y, 1), jnp.sort(y, 0)
""",
        ("f32[8@dp, 16]",),
    ),
    "linear and not": (
        """
def run(x):
    y = x - x
    z = jnp.clip(y, -1, 1)
    return z, y - jnp.sum(z, axis=0)
""",
        ("f32[8@(dp, tp)]",),
    ),
    "an argument of a checkpoint": (
        """
@jax.checkpoint
def layer(x, w):
    h = (x + x.mean(1, keepdims=True)) @ w
    return x * jnp.tanh(x)

def run(x, w):
    y = x * 2
    return layer(y, w)
""",
        ("f32[8, 16]{U:tp}", "f32[16, 16]"),
    ),
    "a variable that is bound again": (
        """
def run(x):
    y = x * 2
    y = (y - y.mean(1, keepdims=True)) * y.var(1, keepdims=True)
    return y
""",
        ("f32[8, 16@tp]",),
    ),
    "a variable of a loop that is written out": (
        """
def run(x):
    total = 0.0
    for _ in range(2):
        y = x * 2
        total = total + (y + y.mean(1, keepdims=True)) + jnp.square(y)
    return total
""",
        ("f32[8, 16]{U:tp}",),
    ),
    "two of three": (
        """
def run(x):
    y = jnp.sqrt(x * x + 1)
    return jax.nn.sigmoid(y[1:]) + y[:-1], jnp.cumsum(y, 0), jnp.exp(y)
""",
        ("f32[16@tp, 4]",),
    ),
    "two positions in a key": (
        """
def run(x, i):
    j = i + 1
    return x.at[i, j].add(2.0), x[i, 2 * j]
""",
        ("f32[4, 6]", "i32[]{U:dp}"),
    ),
    "positions in a key, and a slice": (
        """
def run(x, i):
    k = i * 2
    return x[1:3, i], x[i, :-1], k
""",
        ("f32[4, 6]", "i32[2]{U:dp}"),
    ),
}


@pytest.mark.parametrize("name", WANTED_TWICE)
def test_a_fix_leaves_what_was_typed_before_so_that_fixes_end(name: str) -> None:
    text, types = WANTED_TWICE[name]
    for _ in range(6):
        try:
            _ledger(text, types)
            return
        except sh.ShardingTypeError as error:
            line = int(re.match(r"program\.py:(\d+)", error.where)[1])  # type: ignore[index]
            text = _written(text, error.fixes[0].code, line)
    pytest.fail(text)


#: Programs with an expression that runs for values of several shapes, and a pattern of it.
SHAPES = {
    "by a function of JAX": (
        """
def run(x):
    return jax.lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (x, x))
""",
        r"[pq]\[",
    ),
    "in two calls of a compiled function": (
        """
@jax.jit
def halved(x):
    y = x * 2
    return jnp.sin(y)[::2]

def run(x):
    return halved(halved(x))
""",
        r"y,|\*",
    ),
    "for rows and for all of them": (
        """
def helper(rows):
    return jnp.sin(rows * 2)

def run(x):
    return helper(x), jax.vmap(helper)(x)
""",
        r"rows",
    ),
    "of operands of one shape": (
        """
def padded(x, width):
    return jnp.pad(x, [(0, width), (0, 0)], "wrap")

def several(x):
    first = padded(x, 1)
    for width in (0, 1):
        x = padded(x * 1, width)
    return x, first

def run(x):
    return jnp.tanh(several(x)[0])
""",
        r"jnp\.pad",
    ),
    "by one function for some shapes, and by another for others": (
        """
def run(x):
    return [f(part * 2) for f, part in ((jax.nn.silu, x), (jax.nn.relu, x[:4]))]
""",
        "part",
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_an_expression_that_runs_for_values_of_other_shapes_is_not_resharded(name: str) -> None:
    text, pattern = SHAPES[name]
    codes = [fix.code for fix in _refusal(text, ("f32[8, 16]{U:tp}",)).fixes]
    assert not any(re.search(pattern, code) for code in codes)  # though the argument of the program may be


def test_fixes_are_ordered_by_their_prices_where_one_is_of_a_value_that_is_not_differentiated() -> None:
    text = """
@jax.custom_jvp
def product(x, y):
    return x * jnp.exp(y)

product.defjvps(lambda t, out, x, y: t * jnp.exp(y), None)

def run(x, y):
    return product(x, y)
"""
    inside, outside = _refusal(text, ("f32[8, 16@tp]", "f32[8@tp, 16]")).fixes
    assert inside.bytes < outside.bytes


def test_a_call_without_a_derivative_has_a_fix_with_the_price_of_its_forward_pass() -> None:
    text = """
def run(x, i):
    return x.at[i].apply(jnp.sin)
"""
    (fix,) = _refusal(text, ("f32[8@tp, 16]", "i32[4@tp]")).fixes
    assert (fix.code, fix.bytes_forward, fix.bytes_backward) == ('sh.reshard(i, "[4]")', 12, 0)


def test_there_are_fixes_where_a_function_of_jax_is_differentiated() -> None:
    text, types = PROGRAMS["a function of JAX that has a derivative of its own"]
    with pytest.raises(sh.ShardingTypeError) as caught:
        _ledger(text, types)
    fixes = {str(fix) for fix in caught.value.fixes}
    assert fixes
    assert fixes <= {str(fix) for fix in _refusal(text, types).fixes}


def test_the_rule_of_a_custom_derivative_is_placed_at_its_own_line() -> None:
    text = """
@jax.custom_jvp
def f(x):
    return x * 2

@f.defjvp
def rule(primals, tangents):
    return f(*primals), jnp.exp(tangents[0])

def run(x):
    return f(x)
"""
    with pytest.raises(sh.ShardingTypeError) as caught:
        _ledger(text, ("f32[8]{U:dp}",))
    assert caught.value.where.startswith("program.py:8 in rule")


NONLINEAR = """
def loss(w1, w2, x):
    h = jnp.tanh(x @ w1)
    y = h @ w2
    return jnp.sum(jnp.square(y))

run = jax.grad(loss)
"""


def test_the_first_fix_of_a_backward_pass_is_one_with_which_the_equations_after_it_type() -> None:
    """A gathered weight sends less, and leaves a pending cotangent for the derivative of `tanh`, which is refused."""
    types = (W1, W2, "f32[64@dp, 16]")
    finishes, gathers = _refusal(NONLINEAR, types).fixes
    assert finishes.code == 'sh.reshard(h @ w2, "[64@dp,16]{I:tp}")'
    assert gathers.code == 'sh.reshard(w2, "[32,16]{I:tp}")'
    assert gathers.bytes < finishes.bytes
    book = _ledger(_written(NONLINEAR, finishes.code, 4), types)
    assert (book.forward().bytes, book.backward().bytes) == (finishes.bytes_forward, finishes.bytes_backward)
    with pytest.raises(sh.ShardingTypeError):
        _ledger(_written(NONLINEAR, gathers.code, 4), types)


def _program(text: str) -> Callable[..., Any]:
    """``run`` of a program, whose lines errors can read."""
    linecache.cache["program.py"] = len(text), None, text.splitlines(keepends=True), "program.py"
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "sh": sh}
    exec(compile(text, "program.py", "exec"), names)
    run: Callable[..., Any] = names["run"]
    return run


def _types(texts: tuple[Any, ...]) -> list[Any]:
    return [jax.tree.map(sh.ShType.parse, text) for text in texts]


@pytest.fixture(autouse=True)
def _mesh() -> Any:
    with sh.use_mesh(sh.abstract_mesh({"dp": 2, "tp": 4})):
        yield


def _refusal(text: str, types: tuple[Any, ...]) -> sh.ShardingTypeError:
    with pytest.raises(sh.ShardingTypeError) as caught:
        jax.eval_shape(sh.lift(_program(text)), *jax.tree.map(sh.abstract_array, _types(types)))
    return caught.value


def _ledger(text: str, types: tuple[Any, ...]) -> sh.Ledger:
    """What a program sends; of one that takes no backward pass itself, that by all of its arguments too."""
    lifted = sh.lift(_program(text))
    return sh.ledger(lifted if "grad(" in text else with_gradient(lifted, zero_cotangent), *_types(types))


def _written(text: str, code: str, line: int) -> str:
    """A program with a fix written into it: at the line that it names, else at the one that fails."""
    code, _, named = code.partition("  # ")
    tree = ast.parse(text)
    parts = code.split("; ")
    places = [int(place.rpartition(":")[2]) for place in named.split(", ") if place] or [0]
    for part, place in zip(parts, places * (len(parts) if len(places) == 1 else 1), strict=True):
        edited = ast.parse(part.replace("(..., ", "("), mode="eval").body
        call = next(n for n in ast.walk(edited) if isinstance(n, ast.Call) and ast.unparse(n.func).startswith("sh."))
        if "(..., " in part:
            tree = _Called(call).visit(tree)
            continue
        spoken = ast.unparse(_Plain().visit(edited))  # around the reshards, if they are in an expression
        edited = ast.parse(part, mode="eval").body
        nodes = [n for n in ast.walk(tree) if isinstance(n, ast.expr) and ast.unparse(n) == spoken]
        loads = [n for n in nodes if not isinstance(getattr(n, "ctx", None), ast.Store)]
        lines = [place] if named else [line, *(n.lineno for n in loads)]
        read = next((n for at in lines for n in loads if n.lineno <= at <= (n.end_lineno or at)), None)
        if read is None:  # where the function begins
            function = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.lineno == place)
            function.body[:0] = ast.parse(f"{spoken} = {part}").body
        else:
            tree = _Replaced(read, edited).visit(tree)
    return ast.unparse(tree)


class _Plain(ast.NodeTransformer):
    """An expression without its reshards."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return node.args[0] if ast.unparse(node.func) == "sh.reshard" else self.generic_visit(node)


class _Called(ast.NodeTransformer):
    """The calls of a function, with another's name and more keywords."""

    def __init__(self, call: ast.Call) -> None:
        self.call, self.name = call, ast.unparse(call.func).removeprefix("sh.")

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == self.name.rpartition(".")[2]:
            of = [] if re.fullmatch(r"(jnp|jax)[\w.]*", ast.unparse(node.func.value)) else [node.func.value]
            return ast.Call(self.call.func, [*of, *node.args], [*node.keywords, *self.call.keywords])
        return node


class _Replaced(ast.NodeTransformer):
    """One node of a tree replaced by another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)
