"""Claims of `local_map` that the function cannot keep: which results may vary is derived as `jax.shard_map` does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import shtypes as sh
from tests.end_to_end import close, host

SHARDED = "f32[8@x]"
WHOLE = "f32[4]"


pytestmark = pytest.mark.mesh({"x": 2, "y": 2})


@jax.custom_vjp
def swap(a: Any, b: Any) -> Any:
    return b, a


swap.defvjp(lambda a, b: (swap(a, b), None), lambda _, cts: (cts[1], cts[0]))


@jax.custom_jvp
def second(a: Any, b: Any) -> Any:
    return b


second.defjvp(lambda xs, ts: (xs[1], ts[1]))


def moved_along(a: Any, b: Any) -> Any:
    """A carry whose last place gets what was in the first after two steps."""
    carry, _ = lax.scan(lambda c, _: ((c[0], c[0], c[1]), None), (a, b, b), None, length=3)
    return carry[2]


def references(a: Any, b: Any) -> Any:
    ref = jax.new_ref(b)
    ref[...] += a
    return ref[...]


#: Functions of a sharded and of a whole operand.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "the sharded one": lambda a, b: a,
    "the whole one": lambda a, b: b,
    "sum": lambda a, b: a + b,
    "reduction": lambda a, b: jnp.sum(a),
    "shape": lambda a, b: b * a.shape[0],
    "constant": lambda a, b: jnp.arange(4.0),
    "jit": lambda a, b: jax.jit(lambda a, b: (a, b))(a, b)[1],
    "jit of the other": lambda a, b: jax.jit(lambda a, b: (a, b))(a, b)[0],
    "where": lambda a, b: jnp.where(b > 0, b, 0),
    "where of the other": lambda a, b: jnp.where(a > 0, b, 0),
    "cond": lambda a, b: lax.cond(b[0] > 0, lambda b: b, lambda b: 2 * b, b),
    "scan": lambda a, b: lax.scan(lambda c, x: (2 * c, x), b, a)[0],
    "scan's outputs": lambda a, b: lax.scan(lambda c, x: (c, x), b, a)[1],
    "while": lambda a, b: lax.while_loop(lambda c: jnp.sum(c) < 9, lambda c: c + 1, b),
    "checkpoint": jax.checkpoint(lambda _, b: b * 2),
    "checkpoint of both": jax.checkpoint(lambda a, b: b * a),
    "custom_vjp": lambda a, b: swap(a, b)[0],
    "custom_vjp, the other": lambda a, b: swap(a, b)[1],
    "custom_jvp": second,
    "vmap": lambda a, b: jax.vmap(lambda b: b * 2)(b),
    "key": lambda a, b: jax.random.normal(jax.random.key(0), (4,)),
    "gradient": lambda a, b: jax.grad(lambda b: jnp.sum(b * b))(b),
    "gradient beside": lambda a, b: jax.grad(lambda a: jnp.sum(b * a * a))(a),
}


def jax_refuses(f: Callable[..., Any]) -> bool:
    """Whether `jax.shard_map` refuses that the result is one value along `x`."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    mapped = jax.shard_map(f, mesh=mesh, in_specs=(jax.P("x"), jax.P()), out_specs=jax.P())
    with jax.set_mesh(mesh):
        try:
            jax.eval_shape(mapped, *[jax.ShapeDtypeStruct((n,), jnp.float32) for n in (8, 4)])
        except ValueError as error:
            return "out_specs" in str(error)
    return False


@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_claim_of_one_value_is_refused_where_shard_map_refuses_it(f: Callable[..., Any], policy: Any) -> None:
    with sh.policy(policy):
        operands = [sh.abstract_array(t, sh.abstract_mesh({"x": 2, "y": 2})) for t in (SHARDED, WHOLE)]
        ours = None
        try:
            sh.local_map(f, out="[...]", differentiable=False)(*operands)
        except sh.ShardingTypeError as error:
            ours = str(error)
    assert (ours is not None) == jax_refuses(f)
    if ours is not None:
        assert "may differ along mesh axis `x`" in ours
        assert "it is computed from lhs, f32[8@x], of which each device holds its own part" in ours


def refusal(f: Callable[..., Any], out: Any, *types: str, **options: Any) -> sh.ShardingTypeError:
    operands = [sh.abstract_array(t) for t in types]
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.local_map(f, out=out, name="f", **options)(*operands)
    return caught.value


# what JAX refuses before it looks at the claim, and what it does not find


@pytest.mark.parametrize(
    ("f", "varies"),
    [
        (moved_along, True),
        (lambda a, b: lax.fori_loop(0, 3, lambda i, c: c + a, jnp.zeros(4)), True),
        (lambda a, b: lax.while_loop(lambda c: jnp.sum(c[0]) < 9, lambda c: (c[0] + a, c[1] * 2), (a, b))[1], True),
        (lambda a, b: lax.fori_loop(0, 3, lambda i, c: c + b, jnp.zeros(4)), False),
        (references, True),
        (lambda a, b: references(b, b), False),
        (lambda a, b: io_callback(np.sin, b, b), True),
        (lambda a, b: jax.pure_callback(np.sin, b, b), False),
        (lambda a, b: jax.pure_callback(np.sin, a, a), True),
        (lambda a, b: a[:0], False),
        (lambda a, b: jnp.zeros_like(a), False),
        (lambda a, b: lax.cond(a[0] > 0, lambda b: b, lambda b: 2 * b, b), True),
        (lambda a, b: lax.cond(b[0] > 0, lambda a, b: b, lambda a, b: a, a, b), True),
    ],
    ids=["carries", "zeros", "steps", "other zeros", "references", "other references", "io", "host", "host of shards",
         "no elements", "zeros like", "predicate", "branch"],
)  # fmt: skip
def test_what_a_result_is_computed_from_is_found(f: Callable[..., Any], varies: bool) -> None:
    operands = [sh.abstract_array(t) for t in (SHARDED, WHOLE)]
    op = sh.local_map(f, out="[_]", differentiable=False)
    if varies:
        with pytest.raises(sh.ShardingTypeError, match="may differ along mesh axis `x`"):
            op(*operands)
    else:
        assert not op(*operands).type.axes(sh.State.SHARDED)


def test_the_message_names_operand_axis_and_what_to_do() -> None:
    error = refusal(lambda x: x * 2, "[_]", SHARDED)
    assert re.sub(r"test_claims.py:\d+ in \w+", "here", str(error)) == (
        "`f` makes a result that may differ along mesh axis `x`, and it is claimed to be reduced there\n"
        "  where: here: f(f32[8@x])\n"
        "  why:   it is computed from the operand, f32[8@x], of which each device holds its own part\n"
        '  fix:   sh.reshard(x, "[8]")   [forward: all-gather over `x`, 16 B/device; '
        "backward: reduce-scatter over `x`, 16 B/device]\n"
        "  try:   `_@x` at a dim of `out`, if the devices' results are the parts of it\n"
        '  try:   `{U:x}` in `out`, if they are the terms of a sum, and sh.all_reduce(y, "x") to add them\n'
        '  try:   sh.shard_map, and a collective in the function: sh.lax.psum(y, "x")'
    )


@pytest.mark.parametrize("operand", ["f32[8@x]", "f32[4]{V:x}"])
@pytest.mark.parametrize("claim", ["[_]{R:x}", "[_]{I:x}"])
def test_no_replicated_state_is_claimed_of_what_varies(operand: str, claim: str) -> None:
    assert "may differ along mesh axis `x`" in refusal(lambda x: x, claim, operand).what


@pytest.mark.parametrize("claim", ["[_@x]", "[_]{U:x}", "[_]{V:x}"])
def test_other_states_may_be_claimed_of_it(claim: str) -> None:
    found = sh.local_map(lambda x: x, out=claim)(sh.abstract_array(SHARDED))
    assert found.type.state("x") is not sh.State.REDUCED


# one value as a term of a sum


@pytest.mark.parametrize("operand", ["f32[4]{R:x}", "f32[4]{I:x}"])
def test_one_value_is_no_term_of_a_sum(operand: str) -> None:
    error = refusal(lambda x: 3 * x, "[_]{U:x}", operand)
    assert error.what.endswith("the same on all devices of mesh axis `x`, and it is claimed to be unreduced")
    assert "the sum of the terms has 2 times the value" in error.why
    assert error.fixes[0].code == 'sh.reshard(x, "[4]{U:x}")'
    x = sh.array(np.arange(4.0), operand)
    kept = sh.local_map(lambda x: 3 * x, out="[_]{U:x}")(sh.reshard(x, x="U"))
    counted = sh.local_map(lambda x: 3 * x, out="[_]{U:x}")(sh.lax.pvary(x, "x"))
    np.testing.assert_array_equal(host(kept), 3 * np.arange(4.0))
    np.testing.assert_array_equal(host(counted), 6 * np.arange(4.0))


def test_a_number_of_local_rows_is_a_term_of_their_number() -> None:
    rows = sh.local_map(lambda x: jnp.float32(x.shape[0]), out="[]{U:x}")(sh.ones(SHARDED))
    assert host(rows) == 8


# operands that go into some of the results


def both(x: Any, w: Any) -> Any:
    return x * 2, w + 1


@pytest.mark.one_in(7)
@pytest.mark.parametrize("residuals", ["save", "recompute"])
@pytest.mark.parametrize(
    ("x", "w", "out"),
    [
        ("f32[4]{U:x}", "f32[4]", ("[_]{U:x}", "[_]")),
        ("f32[8@x]", "f32[4]{I:x}", ("[_@x]", "[_]{I:x}")),
        ("f32[4]{R:x}", "f32[4]{I:x}", ("[_]{R:x}", "[_]{I:x}")),
    ],
    ids=["terms", "slices", "reduced"],
)
def test_a_result_answers_for_the_operands_that_go_into_it(x: str, w: str, out: Any, residuals: Any) -> None:
    op = sh.local_map(both, out=out, residuals=residuals)
    args = [sh.array(np.arange(float(sh.ShType.parse(t).shape[0]), dtype=np.float32), t) for t in (x, w)]

    def loss(x: Any, w: Any) -> Any:
        left, right = op(x, w)
        return sh.add(sh.all_reduce(sh.sum(sh.sin(sh.all_reduce(left)))), sh.sum(right * right))

    found = sh.grad(loss, argnums=(0, 1))(*args)
    assert [g.type for g in found] == [a.type.cotangent() for a in args]
    wanted = jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.sin(2 * x)) + jnp.sum((w + 1) ** 2), argnums=(0, 1)))(
        *map(host, args)
    )
    for mine, theirs in zip(found, wanted, strict=True):
        close(host(mine), theirs, "gradient")


# gradients


@jax.custom_vjp
def scaled_back(x: Any, by: Any) -> Any:
    return x * 1


scaled_back.defvjp(lambda x, by: (x * 1, by), lambda by, ct: (ct * by, None))


@pytest.mark.parametrize(
    ("f", "types", "out", "why"),
    [
        (lambda x: x * x, ["f32[4]{U:x}"], "[_]{U:x}", "the operand itself: the function is not linear in it"),
        (lambda x, y: x * y, ["f32[4]{U:x}", "f32[8@x]"], "[_]{U:x}", "rhs, f32[8@x]"),
        (scaled_back, ["f32[4]{I:x}", "i32[8@x]"], "[_]{I:x}", "rhs, i32[8@x]"),
    ],
    ids=["square", "product", "custom_vjp"],
)
def test_a_gradient_that_varies_is_refused_where_its_type_says_one_value(
    f: Any, types: list[str], out: str, why: str
) -> None:
    error = refusal(f, out, *types)
    assert re.match(r"the gradient of \w+( operand)? of `f` may differ along mesh axis `x`", error.what)
    assert error.why.endswith(f"is computed from {why}")
    assert ("{U:x}" in types[0]) == any("all-reduce over `x`" in fix.forward for fix in error.fixes)


def test_a_product_with_one_value_is_linear_in_the_terms() -> None:
    op = sh.local_map(lambda x, y: x * y, out="[_]{U:x}")
    x, y = sh.reshard(sh.ones(WHOLE), x="U"), sh.array(np.arange(4.0), WHOLE)
    np.testing.assert_array_equal(host(op(x, y)), np.arange(4.0))
    np.testing.assert_array_equal(host(sh.grad(lambda x: sh.sum(op(x, y)))(x)), np.arange(4.0))


# what JAX does to scalars on a mesh is not the author's


@pytest.mark.parametrize("residuals", ["save", "recompute"])
def test_a_scalar_that_meets_a_shard_places_nothing(residuals: Any) -> None:
    relu = sh.local_map(lambda x: jnp.where(x > 0, x, 0), out="[_@x]", residuals=residuals)
    value = np.arange(-4.0, 4.0, dtype=np.float32)
    x = sh.array(value, SHARDED)
    np.testing.assert_array_equal(np.asarray(relu(x)), np.maximum(value, 0))
    np.testing.assert_array_equal(np.asarray(sh.grad(lambda x: sh.sum(relu(x)))(x).type.shape), (8,))
    np.testing.assert_array_equal(host(sh.grad(lambda x: sh.sum(relu(x)))(x)), value > 0)
