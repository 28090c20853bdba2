"""Plans are typed before they are returned: each sends what it says, and what does not type is dropped."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import shtypes as sh
from shtypes.errors import ShardingTypeError
from shtypes.solver.option import FORBIDDEN
from shtypes.solver.tables import Costs
from shtypes.suggestions import front
from shtypes.suggestions.plan import Plan
from tests.end_to_end import host
from tests.solver.models import f32

MESH = {"x": 4, "y": 2}


def of_sine(f: Any) -> Any:
    return lambda *args: jnp.sum(jnp.sin(f(*args)) * 1.3)


def solve(a: Any) -> Any:
    m = a + 6 * jnp.eye(16)
    return jnp.linalg.solve(m, jnp.ones(16)) + jnp.linalg.inv(m)[0]


def places_in_what_is_not_sorted(x: Any) -> Any:
    r = jnp.round(jax.lax.stop_gradient(x[:, 0]))
    u = jnp.unique(r, size=6, fill_value=0.0)
    return jax.nn.one_hot(jnp.searchsorted(u, r), 6).T @ x


def recurrence(x: Any, w: Any, out: Any) -> Any:
    gate = jnp.exp(-jax.nn.softplus(x @ w))
    states = jax.lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (gate, x * gate), axis=1)[1]
    return states @ out


def contrastive(x: Any, w: Any) -> Any:
    scores, own = x @ w, jnp.arange(8)
    return jax.nn.log_softmax(scores, 1)[own, own] + jax.nn.log_softmax(scores, 0)[own, own]


def histogram(x: Any, e: Any) -> Any:
    return jnp.histogram(x, bins=8, range=(-2.0, 2.0))[0] * e + x[:8]


def alignment(x: Any) -> Any:
    def step(carry: Any, xt: Any) -> Any:
        stay, move = carry
        moved = jnp.logaddexp(stay[:, 1:], jnp.logaddexp(stay[:, :-1], move))
        stay = jnp.concatenate([stay[:, :1], jnp.logaddexp(stay[:, 1:], moved)], 1)
        return (stay + xt, moved + xt[:, 1:]), stay

    return jax.lax.scan(step, (jnp.zeros((8, 6)), jnp.zeros((8, 5))), x)[1]


MODELS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "places in what is not sorted": (places_in_what_is_not_sorted, (f32(16, 8),)),
    "a solver's tangent": (solve, (f32(16, 16),)),
    "a recurrence": (recurrence, (f32(4, 8, 32), f32(32, 32), f32(32, 32))),
    "each row's own score": (contrastive, (f32(8, 64), f32(64, 8))),
    "counts without a gradient": (histogram, (f32(32), f32(8))),
    "a scan that shifts its carry": (alignment, (f32(20, 8, 6),)),
}
CHEAP_TO_COMPILE = {"places in what is not sorted", "each row's own score", "counts without a gradient"}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", MODELS)
def test_each_plan_types_and_sends_what_it_says_and_the_smallest_computes_what_one_device_does(name: str) -> None:
    f, shapes = MODELS[name]
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(x.shape).astype(np.float32) for x in shapes]
    with sh.use_mesh(sh.make_mesh(MESH)):
        plans = sh.suggest(of_sine(f), *shapes, mesh=MESH)
        for plan in plans:
            assert plan.bytes == pytest.approx(plan.ledger.total.bytes, rel=2e-3)
        if name in CHEAP_TO_COMPILE:
            typed = [sh.array(x, t) for x, t in zip(args, plan.arguments, strict=True)]
            got, back = sh.jit(sh.value_and_grad(sh.apply(of_sine(f), plan)))(*typed)
            value, grad = jax.jit(jax.value_and_grad(of_sine(f)))(*args)
            np.testing.assert_allclose(host(got), value, rtol=1e-5, atol=1e-5)
            rounding = 64 * np.finfo(np.float32).eps * np.abs(grad).max()  # of sums of up to 64 terms
            np.testing.assert_allclose(host(back), grad, atol=rounding)


@pytest.mark.nightly
def test_after_the_time_limit_costs_are_corrected_until_a_plan_types() -> None:
    f, args = MODELS["a solver's tangent"]
    (plan, *_) = found = sh.suggest(of_sine(f), *args, mesh={"x": 2, "y": 2, "z": 2}, time_limit=0)
    assert not found.settled
    assert plan.bytes == pytest.approx(plan.ledger.total.bytes, rel=2e-3)


def print_first(x: Any) -> None:
    jax.debug.print("{}", x[0])


def print_and_return(x: Any) -> Any:
    jax.debug.print("{}", x[0])
    return x


@pytest.mark.parametrize("fixed", ["[_@x, _@y]", "[_@(y,x), _]"])
def test_places_that_count_are_known_in_what_is_written_out_of_several_equations(fixed: str) -> None:
    def diagonal(x: Any) -> Any:
        own = jnp.arange(16)
        return jnp.sin(x[own, own])

    for plan in sh.suggest(of_sine(diagonal), f32(16, 16), mesh=MESH, fixed={"0": fixed}):
        assert plan.bytes == plan.ledger.total.bytes


@pytest.mark.parametrize("printed", [jax.jit(print_first), jax.jit(print_and_return)])
def test_equations_that_only_print_have_no_places_that_count(printed: Any) -> None:
    def model(x: Any) -> Any:
        printed(jnp.arange(16))
        jax.debug.print("{}", x[0, 0])
        return jnp.sum(x)

    for plan in sh.suggest(model, f32(16, 16), mesh=MESH):
        assert plan.bytes == plan.ledger.total.bytes


def nucleus(x: Any) -> Any:
    p = jax.nn.softmax(x, -1)
    falling = jnp.sort(p, -1)[:, ::-1]
    least = jnp.take_along_axis(falling, jnp.sum(jnp.cumsum(falling, -1) < 0.9, -1, keepdims=True), -1)
    return jnp.where(p >= least, p, 0.0)


def sampled(w: Any, x: Any, noise: Any) -> Any:
    mean, spread = jnp.split(x @ w, 2, -1)
    return mean + jnp.exp(0.5 * spread) * noise


WHOLE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "nucleus": (nucleus, (f32(16, 64),)),
    "sampled": (sampled, (f32(16, 8), f32(32, 16), f32(32, 4))),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mesh", [{"x": 8}, MESH], ids=["8", "4x2"])
@pytest.mark.parametrize("name", WHOLE)
def test_the_gradient_of_a_whole_argument_is_gathered_from_parts_where_it_is_used_in_parts(
    name: str, mesh: Any
) -> None:
    f, shapes = WHOLE[name]
    fixed = {str(i): "[_, _]" for i in range(len(shapes))}
    for plan in sh.suggest(of_sine(f), *shapes, mesh=mesh, fixed=fixed):
        assert plan.bytes == pytest.approx(plan.ledger.total.bytes, rel=2e-3)


def distances(a: Any, b: Any) -> Any:
    return jnp.exp(-jnp.sum((a[:, None] - b[None]) ** 2, -1))


@pytest.mark.parametrize("fixed", [{"0": "[_@x, _]"}, {"0": "[_, _@y]"}], ids=str)
def test_of_two_ways_to_a_gradient_as_long_to_read_the_one_that_sends_less_is_taken(fixed: Any) -> None:
    compute = sh.Device({"f32": 1e9}, 1e9)
    for plan in sh.suggest(of_sine(distances), f32(16, 4), f32(24, 4), mesh=MESH, fixed=fixed, compute=compute):
        assert plan.bytes == plan.ledger.total.bytes


def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) + x


def checkpointed_steps(x: Any, w: Any) -> Any:
    return jax.lax.scan(jax.checkpoint(lambda x, _: (layer(x, w), None)), x, None, length=3)[0]


def checkpointed_scans(x: Any, w: Any) -> Any:
    run = jax.checkpoint(lambda x: jax.lax.scan(lambda x, _: (layer(x, w), None), x, None, length=3)[0])
    return run(run(x))


def scans_of_checkpointed_steps(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda x, _: (checkpointed_steps(x, w), None), x, None, length=2)[0]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("f", [checkpointed_steps, checkpointed_scans, scans_of_checkpointed_steps])
@pytest.mark.parametrize("argnums", [(0,), (0, 1)], ids=["data", "weights too"])
def test_what_no_step_changes_is_brought_once_before_a_scan_and_as_often_again_as_jax_does(
    f: Any, argnums: Any
) -> None:
    fixed = {"0": "[_@x, _]", "1": "[_@x, _]"}
    rows = 16 * len(argnums)
    found = sh.suggest(of_sine(f), f32(rows, 64), f32(64, 64), mesh={"x": 4}, fixed=fixed, grad=argnums)
    assert len(found) > 1  # one of which gathers in each step
    for plan in found:
        assert plan.bytes == plan.ledger.total.bytes


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("fixed", [{}, {"p/*": "[_, _]"}, {"p/*": "[_, _]", "x": "[_@b, _]"}], ids=str)
def test_gradients_are_priced_as_one_sum_over_all_axes_where_two_would_start_sooner(
    fixed: Any, recomputes: bool
) -> None:
    def f(x: Any, p: Any) -> Any:
        return jnp.tanh(x @ p["up"]) @ p["down"]

    def loss(p: Any, x: Any) -> Any:
        return jnp.mean((jax.checkpoint(f) if recomputes else f)(x, p) ** 2)

    links, p = sh.Link(1e9, latency=1e-6), {"up": f32(8, 32), "down": f32(32, 8)}
    for plan in sh.suggest(loss, p, f32(64, 8), mesh={"a": 4, "b": 2}, fixed=fixed, links=links):
        assert plan.bytes == plan.ledger.total.bytes


def test_a_gradient_that_each_device_computes_whole_sends_nothing() -> None:
    def loss(w: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    args, fixed = (f32(8, 8), f32(8, 8), f32(8, 8)), {"w": "[_@x, _]", "y": "[_, _]"}
    links = sh.Link(1e9, latency=1e-3)
    plan = sh.suggest(loss, *args, mesh={"x": 8}, fixed=fixed, grad=(0, 2), links=links, overlap=1.0)[0]
    assert plan.bytes == plan.ledger.total.bytes == 7 * 8 * 4  # to gather the weights


def repeated(body: Any, x: Any, n: int) -> Any:
    return jax.lax.scan(lambda x, _: (body(x), None), x, None, length=n)[0]


def squared_and_before(x: Any) -> Any:
    return jax.checkpoint(lambda x: x @ x)(x), x


#: Loops in whose steps something is computed that does not change there, or changes in some of them only.
UNCHANGED: dict[str, Any] = {
    "computed in each step": lambda x, w: repeated(lambda x: layer(x, jnp.sin(w).T), x, 3),
    "with its own sums": lambda x, w: repeated(lambda x: layer(x, jax.nn.softmax(w.T, 0)), x, 3),
    "in a loop of a loop": lambda x, w: repeated(lambda x: repeated(lambda y: layer(y, jnp.sin(w).T), x, 2), x, 3),
    "for the inner loop": lambda x, w: repeated(lambda x: repeated(lambda y: layer(y, (w * x[:16]).T), x, 2), x, 3),
    "by a loop": lambda x, w: repeated(lambda x: layer(x, repeated(lambda d: jnp.sin(d) @ w, w, 2)), x, 3),
    "checkpointed": lambda x, w: repeated(jax.checkpoint(lambda x: layer(x, jnp.sin(w).T)), x, 3),
    "without a cotangent": lambda x, w: repeated(lambda x: layer(x, jax.lax.stop_gradient(jnp.sin(w).T)), x, 3),
    "of one branch or another": lambda x, w: repeated(
        lambda x: layer(x, jax.lax.cond(jnp.sum(w) > 0, lambda: jnp.sin(w).T, lambda: w)), x, 3
    ),
    "what passes through": lambda x, w: (
        jnp.stack(jax.lax.scan(lambda x, _: jax.checkpoint(lambda x: (jnp.tanh(x @ w), w))(x), x, None, length=2)[1])[0]
        @ w
    ),
    "made inside and used there and around": lambda x, w: (
        x
        @ jnp.sum(
            jax.lax.scan(jax.checkpoint(lambda c, _: squared_and_before(jnp.sin(c @ w))), w, None, length=2)[1], 0
        )
    ),
    "carries of which one changes": lambda x, w: jax.lax.scan(
        lambda c, _: ((c[0], jnp.tanh(c[1] @ jnp.sin(c[0] @ c[0]))), None), (w, x), None, length=3
    )[0][1],
    "whose type alone is read": lambda x, w: jax.lax.cond(
        jnp.sum(x) > 0, lambda x, w: jnp.full_like(w @ x.T, 2.0) + (w @ w)[:, :1], lambda x, w: w @ w @ x.T, x, w
    ),
}


@pytest.mark.one_in(49)
@pytest.mark.parametrize("argnums", [(0,), (1,), (0, 1), False], ids=["data", "weights", "both", "forward"])
@pytest.mark.parametrize("mesh", [{"x": 4}, MESH], ids=["4", "4x2"])
@pytest.mark.parametrize("name", UNCHANGED)
def test_what_a_step_does_not_change_is_priced_as_often_as_it_runs(name: str, mesh: Any, argnums: Any) -> None:
    for fixed in ({}, {"0": "[_, _@x]", "1": "[_, _@x]"}):
        for plan in sh.suggest(
            of_sine(UNCHANGED[name]), f32(64, 16), f32(16, 16), mesh=mesh, fixed=fixed, grad=argnums
        ):
            assert plan.bytes == pytest.approx(plan.ledger.total.bytes, rel=1e-12)


@pytest.mark.parametrize("argnums", [(0,), (1,), False], ids=["data", "weights", "forward"])
@pytest.mark.parametrize("steps", [1, 2])
def test_the_cotangent_of_a_carry_is_priced_where_a_step_before_reads_it(steps: int, argnums: Any) -> None:
    def f(x: Any, w: Any) -> Any:
        def step(carry: Any, w: Any) -> Any:
            y = layer(carry[0], w)
            return (y, carry[0]), jnp.sum(carry[1])

        (_, before), sums = jax.lax.scan(step, (x, x), jnp.broadcast_to(w, (steps, *w.shape)))
        return before @ w + jnp.sum(sums)

    for fixed in ({"0": "[_, _@x]"}, {"0": "[_@x, _]", "1": "[_@x, _]"}):
        for plan in sh.suggest(of_sine(f), f32(64, 16), f32(16, 16), mesh={"x": 4}, fixed=fixed, grad=argnums):
            assert plan.bytes == pytest.approx(plan.ledger.total.bytes, rel=1e-12)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("reads", ["the carry", "the sums", "both"])
@pytest.mark.parametrize("steps", [1, 2])
def test_the_next_carry_of_a_single_step_is_recomputed_for_the_final_one_alone(steps: int, reads: str) -> None:
    @jax.checkpoint
    def f(x: Any, w: Any) -> Any:
        def step(carry: Any, w: Any) -> Any:
            y = jnp.tanh(carry[0] @ w)
            return (y, carry[1] + jnp.sum(y)), jnp.mean(y)

        (x, total), means = jax.lax.scan(step, (x, jnp.float32(0)), w)
        sums = total * 1e-3 + jnp.sum(means)
        return {"the carry": x, "the sums": sums, "both": x + sums}[reads]

    def loss(w: Any, x: Any, y: Any) -> Any:
        return jnp.mean((f(x, w) - y) ** 2)

    args, links = (f32(steps, 8, 8), f32(24, 4, 8), f32(24, 4, 8)), sh.Link(1e9, latency=1e-6)
    fixed = {"w": "[_, _@x, _@y]", "x": "[_@x, _, _@y]", "y": "[_@(x,y), _, _]"}
    for plan in sh.suggest(loss, *args, mesh={"x": 2, "y": 4}, memory=50e3, links=links, fixed=fixed):
        assert plan.bytes == pytest.approx(plan.ledger.total.bytes, rel=1e-12)


@pytest.mark.parametrize("op", [lambda x: jnp.roll(x, 1, 0), lambda x: jnp.cumsum(x, 0)], ids=["roll", "cumsum"])
def test_equal_ops_across_shards_of_one_value_are_one(op: Any) -> None:
    def with_one(x: Any, w: Any) -> Any:
        y = op(x)
        return jnp.sin(y @ w) * jnp.cos(x + y)

    first = []
    for f in (with_one, lambda x, w: jnp.sin(op(x) @ w) * jnp.cos(x + op(x))):
        found = sh.suggest(of_sine(f), f32(64, 4), f32(4, 4), mesh={"x": 4}, fixed={"0": "[_@x, _]"})
        assert [plan.bytes for plan in found] == [plan.ledger.total.bytes for plan in found]
        first.append(found[0].bytes)
    assert first[0] == first[1]


@pytest.mark.mesh({"x": 4})
def test_equal_ops_across_shards_of_equal_slices_of_one_value_are_one() -> None:
    @sh.implicit_comm
    def sums(x: Any) -> Any:
        return [sh.cumsum(sh.reshard(x, "[16@x, 8]"), 0) for _ in range(2)]

    sent = [sh.ledger(f, sh.abstract_array("f32[16, 8]")).total.bytes for f in (sums, lambda x: sums(x)[:1])]
    assert sent == [96, 96]


@pytest.mark.nightly
def test_a_cotangent_is_resharded_from_what_it_is_a_free_cast_of() -> None:
    """The codebook of a vector-quantized autoencoder, by moving averages."""

    def loss(x: Any, codes: Any, w: Any) -> Any:
        z = x @ w
        i = jnp.argmin(jnp.sum((z[:, None] - codes[None]) ** 2, -1), -1)
        chosen = jax.nn.one_hot(i, 16)
        n = jnp.sum(chosen, 0)
        mean = 0.9 * codes + 0.1 * (chosen.T @ z) / jnp.maximum(n, 1)[:, None]
        mean = jnp.where((n < 1)[:, None], jnp.roll(jnp.tile(z, (2, 1)), 1, 0), mean)
        decoded = z + jax.lax.stop_gradient(codes[i] - z)
        return jnp.sum(decoded * np.ones((8, 8), "f4")) + jnp.sum(jax.lax.stop_gradient(mean) * np.ones((16, 8), "f4"))

    mesh = {"x": 2, "y": 2, "z": 2}
    for plan in sh.suggest(loss, f32(8, 8), f32(16, 8), f32(8, 8), mesh=mesh, grad=(0, 1, 2)):
        assert plan.bytes == plan.ledger.total.bytes


def _named(x: Any) -> Any:
    return checkpoint_name(x, "product")


POLICIES: dict[str, Any] = {
    "none": None,
    "everything": jax.checkpoint_policies.everything_saveable,
    "products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "named": jax.checkpoint_policies.save_only_these_names("product"),
}


KEPT: dict[str, Any] = {
    "two products": lambda x, w: jnp.sin(jnp.sin(x @ w) @ w),
    "its last is linear": lambda x, w: jax.nn.softmax(_named(jnp.sin(x @ w))) @ w.T,
    "a named product": lambda x, w: jnp.tanh(_named(x @ w)),
    "a loop": lambda x, w: repeated(lambda x: jnp.tanh(_named(x @ w)), x, 3),
    "nothing": lambda x, w: jax.checkpoint(lambda x: x)(x) @ w,
    "a scaled argument": jax.checkpoint(lambda x, w: x + w * 0.5),
    "a checkpoint in a checkpoint": lambda x, w: jax.checkpoint(
        lambda x: jnp.sin(jax.checkpoint(lambda x: jnp.tanh(jnp.sin(x @ w)))(x) @ w)
    )(x),
    "one in another that keeps all": lambda x, w: jax.checkpoint(
        lambda x: jnp.sin(jax.checkpoint(lambda x: jnp.tanh(jnp.sin(x @ w)))(x) @ w), policy=POLICIES["everything"]
    )(x),
    "loops in loops": lambda x, w: jax.checkpoint(
        lambda x: repeated(lambda x: layer(x, repeated(lambda y: y @ y, w, 2)), x, 3)
    )(x),
    "steps whose carry stops the gradient": lambda x, w: repeated(lambda x: jax.lax.stop_gradient(x @ w), x, 2),
    "branches that stop the gradient": lambda x, w: (
        x + jax.lax.cond(jnp.sum(x) > 0, lambda w: jax.lax.stop_gradient(w @ w), jax.lax.stop_gradient, w)
    ),
    "types alone": lambda x, w: x @ w + jnp.zeros_like(jax.nn.softmax(x @ w) @ w),
    "a sum of differences": lambda x, w: x * jnp.sum(w - jnp.mean(w), 0, keepdims=True),
}


@pytest.mark.one_in(101)
@pytest.mark.parametrize("argnums", [(0,), (1,), (0, 1), False], ids=["data", "weights", "both", "forward"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", KEPT)
def test_of_a_checkpoint_is_sent_again_what_the_backward_pass_needs_and_its_policy_does_not_keep(
    name: str, policy: str, argnums: Any
) -> None:
    f = jax.checkpoint(KEPT[name], policy=POLICIES[policy])
    for fixed in ("[_, _@x]", "[_@x, _]"), ("[_@x, _]", "[_, _@x]"), ("[_, _]", "[_, _]"):
        types = dict(zip("01", fixed, strict=True))
        for plan in sh.suggest(of_sine(f), f32(16, 16), f32(16, 16), mesh={"x": 4}, fixed=types, grad=argnums):
            assert plan.bytes == pytest.approx(plan.ledger.total.bytes, rel=1e-12)


def test_the_gradient_of_an_argument_of_a_checkpoint_is_summed_after_its_reshard() -> None:
    f = jax.checkpoint(lambda x, w: x @ w + jnp.zeros_like(x @ w))
    fixed = {"0": "[_, _]", "1": "[_, _]"}
    (plan,) = sh.suggest(of_sine(f), f32(16, 16), f32(16, 16), mesh={"x": 4}, fixed=fixed, grad=(0,))
    assert plan.bytes == plan.ledger.total.bytes == 1536 + 6


def _refusing(monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    """Lets plans not type of which something is true."""
    signature: Any = vars(Plan)["signature"]

    def refusing(plan: Plan) -> Any:
        if refused(plan):
            raise ShardingTypeError("it does not type")
        return signature.func(plan)

    replaced: Any = functools.cached_property(refusing)
    replaced.__set_name__(Plan, "signature")
    monkeypatch.setattr(Plan, "signature", replaced)


def test_a_plan_that_does_not_type_is_dropped_while_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    f, args = MODELS["places in what is not sorted"]
    every = sh.suggest(of_sine(f), *args, mesh=MESH)
    _refusing(monkeypatch, lambda plan: plan.rules == every[0].rules)
    assert all(plan.rules != every[0].rules for plan in sh.suggest(of_sine(f), *args, mesh=MESH))


def test_where_no_plan_types_the_error_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    f, args = MODELS["places in what is not sorted"]
    _refusing(monkeypatch, lambda plan: True)
    with pytest.raises(ShardingTypeError, match=r"no plan that was found types(.|\n)*it does not type"):
        sh.suggest(of_sine(f), *args, mesh=MESH)


def test_a_function_without_a_gradient_is_said_to_have_none() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(jax.lax.while_loop(lambda x: jnp.max(x) < 3, lambda x: x * 2, x))

    with pytest.raises(ShardingTypeError, match=r"`f` has no gradient(.|\n)*Reverse-mode"):
        sh.suggest(f, f32(8), mesh={"x": 4})
    assert sh.suggest(f, f32(8), mesh={"x": 4}, grad=False)


def test_where_the_front_does_not_type_another_plan_that_was_found_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    f, args = WHOLE["sampled"]
    every = sh.suggest(of_sine(f), *args, mesh=MESH, memory="1GiB")
    _refusing(monkeypatch, lambda plan: plan.rules in [each.rules for each in every])
    found = sh.suggest(of_sine(f), *args, mesh=MESH, memory="1GiB")
    assert found[0].rules not in [each.rules for each in every]
    assert found[0].bytes == pytest.approx(found[0].ledger.total.bytes, rel=2e-3)


def test_where_no_costs_are_those_of_a_typed_plan_it_has_the_communication_of_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An op sends what no option of it does, and there is no time to look for other plans."""

    def corrected(self: Costs, assignment: Any, *, types: bool) -> bool:
        self._row_comm.update((n.id, {assignment[n.id]: FORBIDDEN}) for n in self.graph.decisions if n.op is not None)
        self._changes.update([*self._row_comm])
        return True

    def wrong(self: Plan) -> bool:
        return self.problem.costs.correct(self.point.assignment, types=True)

    monkeypatch.setattr(Costs, "correct", corrected)
    monkeypatch.setattr(Plan, "correct_costs", wrong)
    monkeypatch.setattr(front, "_MOST_CORRECTIONS", 1)
    f, args = MODELS["places in what is not sorted"]
    (plan,) = sh.suggest(of_sine(f), *args, mesh=MESH)
    assert plan.bytes == plan.ledger.total.bytes
    assert plan.communication == plan.ledger.time(plan.problem.model)
