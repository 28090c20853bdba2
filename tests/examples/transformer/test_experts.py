"""The mixture of experts: in every layout that of one device, and sent as its formulas say."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from examples.transformer import experts, model, training
from examples.transformer.layouts import Layout, read
from tests.end_to_end import host
from tests.tolerance import assert_within, computed
from tests.traced.compiled import assert_compiled_as_said

pytestmark = pytest.mark.one_in(9)

BATCH, SEQ, GROUP, EXPERTS, CHOSEN = 8, 16, 8, 8, 2
SIZES = model.Sizes(
    vocab=32,
    layers=2,
    hidden=16,
    heads=8,
    key_heads=4,
    head=4,
    inner=16,
    experts=EXPERTS,
    chosen=CHOSEN,
    group=GROUP,
    balance=1.0,
    dtype="f32",
)
TOKENS = np.random.default_rng(0).integers(0, SIZES.vocab, (BATCH, SEQ)).astype(np.int32)
TARGETS = np.roll(TOKENS, -1, 1)
LAYOUTS = {name: layout for name, layout in read().items() if "expert" in layout.dims and not layout.schedule}
PIPELINES = {name: layout for name, layout in read().items() if "expert" in layout.dims and layout.schedule}
#: A factor that leaves tokens out, one by which each expert has room for a whole group, and dropless.
CAPACITIES = {"capacity": 1.0, "room for all": EXPERTS / CHOSEN, "dropless": None}


def plain_mixture(h: Any, w: Any, capacity: float | None) -> tuple[Any, Any]:
    """All experts on all tokens, masked; beside it how unevenly tokens are spread, margins, and who is left out."""
    p = jax.nn.softmax(h @ w["router"])
    best, choice = jax.lax.top_k(p, CHOSEN + 1)
    weight = best[..., :CHOSEN] / best[..., :CHOSEN].sum(-1, keepdims=True)
    chosen = jax.nn.one_hot(choice[..., :CHOSEN], EXPERTS)  # sequence, token, choice, expert
    grouped = (BATCH, SEQ // GROUP, GROUP)
    part = chosen.reshape(*grouped, CHOSEN, EXPERTS).sum((2, 3)) / (CHOSEN * GROUP)
    uneven = EXPERTS * (part * p.reshape(*grouped, EXPERTS).mean(2)).sum(-1).mean()
    left_out = jnp.zeros((), int)
    if capacity is not None:
        queue = chosen.astype(np.int32).reshape(*grouped, CHOSEN, EXPERTS)
        first = queue[..., 0, :]
        places = [jnp.cumsum(first, 2), first.sum(2, keepdims=True) + jnp.cumsum(queue[..., 1, :], 2)]
        room = int(np.ceil(capacity * CHOSEN * GROUP / EXPERTS))
        fits = (jnp.stack(places, -2) <= room).reshape(chosen.shape)
        left_out = (queue.reshape(chosen.shape) * ~fits).sum()
        chosen = chosen * fits
    inner = jax.nn.silu(jnp.einsum("bsh,ehi->bsei", h, w["gate"])) * jnp.einsum("bsh,ehi->bsei", h, w["up"])
    each = jnp.einsum("bsei,eih->bseh", inner, w["down"])
    made = jnp.einsum("bske,bsk,bseh->bsh", chosen, weight, each)
    return made, (uneven, (best[..., :-1] - best[..., 1:]).min(), left_out)


def plain_loss(weights: Any, capacity: float | None) -> Any:
    """The same model in plain JAX, written for one device."""

    def norm(x: Any, scale: Any) -> Any:
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    def rope(x: Any) -> Any:
        half = x.shape[-1] // 2
        angles = np.arange(SEQ)[:, None, None] * 10_000.0 ** (-np.arange(half, dtype=np.float32) / half)
        cos, sin, first, second = np.cos(angles), np.sin(angles), x[..., :half], x[..., half:]
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)

    def layer(x: Any, w: Any) -> tuple[Any, Any]:
        h = norm(x, w["attention_norm"])
        q, k, v = (jnp.einsum("bsh,hnd->bsnd", h, w[name]) for name in ("query", "key", "value"))
        mixed = jax.nn.dot_product_attention(rope(q), rope(k), v, is_causal=True)
        x = x + jnp.einsum("bsnd,ndh->bsh", mixed, w["output"])
        made, facts = plain_mixture(norm(x, w["mlp_norm"]), w, capacity)
        return x + made, facts

    x, (uneven, margin, left_out) = jax.lax.scan(layer, weights["embedding"][TOKENS], weights["layers"])
    logits = jax.nn.log_softmax(norm(x, weights["norm"]) @ weights["embedding"].T)
    value = -jnp.take_along_axis(logits, TARGETS[..., None], -1).mean() + SIZES.balance * uneven.mean()
    return value, (uneven.mean(), margin.min(), left_out.sum())


def weights_on_host() -> Any:
    """Weights of one device; the router's are large, so that no two experts are nearly as good."""
    rng = np.random.default_rng(SEED)
    scale = {"router": 0.5, "norm": 1.0, "attention_norm": 1.0, "mlp_norm": 1.0}
    with LAYOUTS["ep"].use(abstract=True):
        return jax.tree.map_with_path(
            lambda path, t: (rng.normal(size=t.shape) * scale.get(path[-1].key, 0.25)).astype(np.float32),
            model.types(SIZES),
        )


SEED = 105
WEIGHTS = weights_on_host()


@pytest.fixture(scope="module")
def wanted() -> Any:
    """Loss, gradients and facts of one device, with what rounding explains, of a capacity."""
    known: dict[Any, Any] = {}

    def of(capacity: float | None) -> Any:
        if capacity not in known:
            f = jax.value_and_grad(lambda w: plain_loss(w, capacity), has_aux=True)
            known[capacity] = computed(f, WEIGHTS)
        return known[capacity]

    return of


def batch() -> tuple[Any, Any]:
    return sh.array(TOKENS, "i32[batch, seq]"), sh.array(TARGETS, "i32[batch, seq]")


def some(daily: set[tuple[str, ...]], *choices: Any) -> Any:
    """All combinations; those that are not of each day are for the night."""
    cases: list[tuple[str, ...]] = [()]
    for choice in choices:
        cases = [(*case, value) for case in cases for value in choice]
    return [pytest.param(*case, marks=() if case in daily else pytest.mark.nightly) for case in cases]


@pytest.mark.parametrize(
    ("name", "kind", "policy"),
    some(
        {("pp_ep", "capacity", "partial")},
        ["one", *LAYOUTS, *PIPELINES],
        CAPACITIES,
        ["partial", "jax"],
    ),
)
def test_loss_and_gradients_are_those_of_one_device(name: str, kind: str, policy: str, wanted: Any) -> None:
    (value, grads), (error, errors) = wanted(CAPACITIES[kind])
    (value, (_, margin, left_out)), (error, (_, off, _)) = value, error
    assert margin > 2 * off, "rounding decides who goes where"
    assert (left_out > 0) == (kind == "capacity")
    sizes, layout = dataclasses.replace(SIZES, capacity=CAPACITIES[kind]), read()[name]
    with sh.policy(policy), layout.use():
        with layout.as_weights():
            weights = jax.tree.map(sh.array, WEIGHTS, model.types(sizes))
        run = training.Run(layout, sizes, batch=BATCH, seq=SEQ)
        found = sh.jit(training.loss_and_gradients(run))(weights, *batch())
        assert_within(host(found[0]), value, error, "loss")
        for path, grad in jax.tree.leaves_with_path(grads):
            typed, weight, most = found[1], weights, errors
            for key in path:
                typed, weight, most = typed[key.key], weight[key.key], most[key.key]
            assert typed.type == weight.type.cotangent()
            assert_within(host(typed), grad, most, jax.tree_util.keystr(path))


@pytest.mark.parametrize("kind", ["room for all", "dropless"])
@pytest.mark.parametrize("name", ["ep_dp", pytest.param("ep", marks=pytest.mark.nightly)])
def test_all_tokens_may_choose_the_experts_of_one_device(name: str, kind: str) -> None:
    h = np.random.default_rng(2).normal(size=(BATCH, SEQ, SIZES.hidden)).astype(np.float32)
    h[..., 0] = 4
    w = {name: WEIGHTS["layers"][name][0] for name in experts.WEIGHTS}
    w["router"] = w["router"] + 4 * (np.arange(EXPERTS) < CHOSEN) * (np.arange(SIZES.hidden) == 0)[:, None]
    assert (jax.lax.top_k(h @ w["router"], CHOSEN)[1] < CHOSEN).all()
    value, error = computed(lambda h, w: plain_mixture(h, w, None)[0], h, w)
    with LAYOUTS[name].use(), sh.dims(**SIZES.dims()):
        typed = {name: sh.array(w[name].astype(np.float32), "f32" + dims) for name, dims in experts.WEIGHTS.items()}
        x = sh.array(h, "f32[batch, seq, hidden]")
        made, _ = sh.jit(lambda x, w: experts.mixture(x, w, CHOSEN, CAPACITIES[kind], GROUP))(x, typed)
        assert_within(host(made), value, error)


@pytest.mark.one_in(13)
@pytest.mark.parametrize(
    ("name", "kind"),
    some({("ep_tp", "capacity"), ("ep_cp", "dropless"), ("dp_ep_tp", "dropless")}, LAYOUTS, ["capacity", "dropless"]),
)
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_the_balance_is_that_of_one_device_and_counts_once(name: str, kind: str, policy: str) -> None:
    """Whole tokens on several devices: the mean over groups is of the groups, and no device's is added to another's."""
    h = np.random.default_rng(1).normal(size=(BATCH, SEQ, SIZES.hidden)).astype(np.float32)
    w = jax.tree.map(lambda x: x[0], WEIGHTS["layers"])

    def plain(router: Any) -> Any:
        return plain_mixture(h, {**w, "router": router}, CAPACITIES[kind])[1][0]

    (value, grad), (error, most) = computed(jax.value_and_grad(plain), w["router"])
    with sh.policy(policy), LAYOUTS[name].use(), sh.dims(**SIZES.dims()):
        typed = {name: sh.array(w[name], "f32" + dims) for name, dims in experts.WEIGHTS.items()}
        x = sh.array(h, "f32[batch, seq, hidden]")

        def uneven(router: Any) -> Any:
            return experts.mixture(x, {**typed, "router": router}, CHOSEN, CAPACITIES[kind], GROUP)[1]

        found = sh.jit(sh.value_and_grad(uneven))(typed["router"])
        assert_within(host(found[0]), value, error, "value")
        assert_within(host(found[1]), grad, most, "gradient")


def ledger_of(layout: Layout, sizes: model.Sizes) -> Any:
    """What loss and gradients send, from abstract values."""
    with layout.use(abstract=True), sh.dims(batch=BATCH, seq=SEQ):
        with layout.as_weights():
            weights = jax.tree.map(sh.abstract_array, model.types(sizes))
        tokens = sh.abstract_array("i32[batch, seq]")
        found = sh.ledger(sh.value_and_grad(lambda w, x, y: model.loss(w, x, y, sizes)), weights, tokens, tokens)
    assert not found.not_covered
    return found


def moves(found: Any) -> Counter[Any]:
    """How often each collective runs."""
    times: Counter[Any] = Counter()
    for e in found:
        times[e.direction, e.kind, e.axes, e.bytes] += e.times
    return times


def masters_moved(layout: Layout, sizes: model.Sizes, names: Any) -> Counter[Any]:
    """Weights of layers to where they are used, and their gradients back."""
    times: Counter[Any] = Counter()
    with layout.use(abstract=True):
        used = model.types(sizes)["layers"]
        with layout.as_weights():
            kept = model.types(sizes)["layers"]
    for name in names:
        parts = used[name].local_bytes // kept[name].local_bytes
        axes = tuple(a for a in layout.mesh if a not in {b for dim in used[name].dims for b in dim.axes})
        if parts > 1:
            size = used[name].local_bytes // sizes.layers * (parts - 1) // parts
            times["forward", "all-gather", axes, size] += sizes.layers
            times["backward", "reduce-scatter", axes, size] += sizes.layers
    return times


def each_day(name: str) -> Any:
    """All layouts of experts, one of them each day."""
    return [pytest.param(n, marks=() if n == name else pytest.mark.nightly) for n in LAYOUTS]


def bytes_to_experts(layout: Layout, factor: float | None) -> int:
    """What one all-to-all, or one gather, of f32 sends by its formula."""
    tokens = BATCH * SEQ
    for axis in (*layout.dims["batch"], *layout.dims.get("seq", ())):
        tokens //= layout.mesh[axis]
    size, devices = tokens * SIZES.hidden * 4, layout.mesh["ep"]
    return size * (devices - 1) if factor is None else int(factor * CHOSEN * size * (devices - 1) / devices)


MLP = ("gate", "up", "down")


@pytest.mark.parametrize("name", each_day("ep_tp"))
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_with_capacity_two_all_to_alls_are_sent_each_way_and_nothing_else(name: str, factor: float) -> None:
    """All else is what the model without experts sends, and the way of the weights."""
    sizes = dataclasses.replace(SIZES, capacity=factor, remat="none", gather_again=False)
    dense = dataclasses.replace(sizes, experts=0)
    found, less = (moves(ledger_of(LAYOUTS[name], each)) for each in (sizes, dense))
    less -= masters_moved(LAYOUTS[name], dense, MLP)
    less += masters_moved(LAYOUTS[name], sizes, (*MLP, "router"))
    each = bytes_to_experts(LAYOUTS[name], factor)
    assert found - less == {(way, "all-to-all", ("ep",), each): 2 * SIZES.layers for way in ("forward", "backward")}
    assert not less - found


@pytest.mark.parametrize("name", each_day("ep_tp_sp"))
def test_dropless_gathers_tokens_and_scatters_their_sums_each_way(name: str) -> None:
    """With another axis to gather or sum over it is one collective over both, so bytes are compared, not kinds."""
    sizes = dataclasses.replace(SIZES, remat="none", gather_again=False)
    dense = dataclasses.replace(sizes, experts=0)
    more = masters_moved(LAYOUTS[name], sizes, (*MLP, "router"))
    more.subtract(masters_moved(LAYOUTS[name], dense, MLP))
    found, less = (moves(ledger_of(LAYOUTS[name], each)) for each in (sizes, dense))
    for way in ("forward", "backward"):
        sent, before, weights = (sum(n * m[3] for m, n in c.items() if m[0] == way) for c in (found, less, more))
        assert sent == before + weights + 2 * SIZES.layers * bytes_to_experts(LAYOUTS[name], None)


@pytest.mark.parametrize("kind", ["capacity", "dropless"])
def test_what_goes_to_the_experts_is_narrow_and_what_is_added_is_not(kind: str) -> None:
    sizes = dataclasses.replace(SIZES, capacity=CAPACITIES[kind], dtype="bf16")
    wide = bytes_to_experts(LAYOUTS["ep"], CAPACITIES[kind])
    found = Counter((e.direction, e.kind, e.dtype, e.bytes) for e in ledger_of(LAYOUTS["ep"], sizes))
    ways = ("forward", "recomputed", "backward")
    if kind == "capacity":
        assert found == {(way, "all-to-all", "bf16", wide // 2): 2 for way in ways}
    else:
        sums = {(way, "reduce-scatter", "f32", wide): 1 for way in ("forward", "backward")}
        tokens = {(way, "all-gather", "bf16", wide // 2): 1 for way in ("forward", "recomputed")}
        assert found == {**sums, **tokens, ("backward", "all-gather", "f32", wide): 1}


@pytest.mark.parametrize(
    ("name", "kind"), some({("zero3_ep", "capacity")}, [*LAYOUTS, *PIPELINES], ["capacity", "dropless"])
)
@pytest.mark.nightly
@pytest.mark.parametrize("remat", ["none", pytest.param("everything", marks=pytest.mark.nightly)])
def test_the_compiled_program_sends_what_the_ledger_says(name: str, kind: str, remat: Any) -> None:
    sizes, layout = dataclasses.replace(SIZES, capacity=CAPACITIES[kind], remat=remat), read()[name]
    with layout.use():
        with layout.as_weights():
            weights = jax.tree.map(sh.array, WEIGHTS, model.types(sizes))
        step = training.loss_and_gradients(training.Run(layout, sizes, batch=BATCH, seq=SEQ))
        assert_compiled_as_said(step, weights, *batch())
