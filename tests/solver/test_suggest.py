"""`sh.suggest` and `sh.apply`: what they find for models whose best layouts are known, and what a reader gets."""

from __future__ import annotations

import functools
import itertools
import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.solver.search import size
from shtypes.suggestions.plan import Plan
from tests.end_to_end import host
from tests.solver import models
from tests.solver.models import f32, i32

LINK = sh.Link(50e9)
DEVICE = sh.Device({"f32": 400e12}, 2.4e12)
SETTINGS: dict[str, Any] = {"links": LINK, "compute": DEVICE}


def loss(params: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(jnp.tanh(x @ params["up"]) @ params["down"]))


def params(d: int, f: int) -> Any:
    return {"up": f32(d, f), "down": f32(f, d)}


def sent(types: Any, f: Any, *args: Any, mesh: dict[str, int], **options: Any) -> float:
    """Bytes that a step sends where the arguments have some types, with the best reshards for them."""
    return sh.suggest(f, *args, mesh=mesh, fixed=types, **{**SETTINGS, **options})[0].ledger.total.bytes


# what is known to be best


def test_few_weights_and_much_data_are_data_parallel() -> None:
    plan = sh.suggest(loss, params(64, 256), f32(65536, 64), mesh={"dp": 8}, **SETTINGS)[0]
    assert plan.rules == {"params/down": "[256,64]", "params/up": "[64,256]", "x": "[65536@dp,64]"}
    assert [(e.kind, e.direction) for e in plan.ledger if e.src.size > 1] == [("all-reduce", "backward")] * 2


@pytest.mark.parametrize("mesh", [{"dp": 1, "tp": 4}, {"tp": 4, "dp": 1}, {"dp": 1, "tp": 1}])
def test_a_dim_of_one_may_be_on_an_axis_of_one_device(mesh: dict[str, int]) -> None:
    fixed = {"x": "[1@dp, _]", "params/up": "[_, _@tp]"}
    plan = sh.suggest(loss, params(16, 32), f32(1, 16), mesh=mesh, fixed=fixed, **SETTINGS)[0]
    assert plan.rules["x"] == "[1@dp,16]"
    assert plan.bytes == plan.ledger.total.bytes


def test_many_weights_and_little_data_are_tensor_parallel_as_in_megatron() -> None:
    plan = sh.suggest(loss, params(1024, 8192), f32(64, 1024), mesh={"tp": 8}, inputs={"x": "[_, _]"}, **SETTINGS)[0]
    assert plan.rules["params/up"] == "[1024,8192@tp]"
    assert plan.rules["params/down"] == "[8192@tp,1024]"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("share", [0.5, 0.25])
def test_a_bound_on_memory_shards_what_is_kept(share: float) -> None:
    p = {"layers": models.stacked(8, params(512, 2048))}

    def scanned(p: Any, x: Any) -> Any:
        step = jax.checkpoint(lambda x, q: (x + jnp.tanh(x @ q["up"]) @ q["down"], None))
        return jnp.mean(jnp.square(jax.lax.scan(step, x, p["layers"])[0]))

    free = sh.suggest(scanned, p, f32(4096, 512), mesh={"dp": 8}, **SETTINGS)
    limit = share * free[0].memory
    found = sh.suggest(scanned, p, f32(4096, 512), mesh={"dp": 8}, memory=limit, **SETTINGS)
    assert all(plan.memory <= limit for plan in found)
    assert found[0].seconds >= free[0].seconds
    assert "dp" in found[0].rules["p/layers/up"] + found[0].rules["p/layers/down"]


MEMORY: dict[str, Any] = {
    "mlp": (models.mlp_loss, models.mlp(4096, 256, 1024)),
    "block": (models.block_loss, (models.block_params(256, 8, 32, 1024), f32(64, 128, 256))),
    "scanned gpt": (models.gpt_loss, models.gpt(4, 64, 128, 256, 8, 32, 1024, 4096)),
    "checkpoint": (
        models.checkpointed_loss,
        ({"layers": models.stacked(8, models.block_params(256, 8, 32, 1024))}, f32(64, 128, 256)),
    ),
}


def of_trees(p: Any, x: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ p["a"] + p["b"]) * p["c"]) ** 2)


def of_numbers(t: Any, x: Any, n: Any) -> Any:
    return jnp.mean(jax.nn.softmax(x / jnp.exp(t), -1) ** n.astype(jnp.float32)) * t


#: Programs so small that what is predicted of their memory is far from what it is.
SMALL: dict[str, tuple[Any, ...]] = {
    "trees": (of_trees, {"a": "f32[16, 16]", "b": "f32[16]", "c": "f32[1, 16]"}, "f32[8, 16]"),
    "numbers": (of_numbers, "f32[]", "f32[16, 8]", "i32[]"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SMALL)
def test_every_plan_fits_by_its_memory_and_what_fits_by_it_is_found(name: str) -> None:
    options: dict[str, Any] = {"mesh": {"dp": 4, "tp": 2}, "compute": sh.Device({"f32": 1e9}, 1e9), "links": LINK}
    free = sh.suggest(*SMALL[name], **options)
    for limit in {(free[0].memory + free[-1].memory) / 2, free[0].memory}:
        assert all(plan.memory <= limit for plan in sh.suggest(*SMALL[name], memory=limit, **options))


@pytest.mark.one_in(11)
@pytest.mark.parametrize("name", MEMORY)
def test_the_memory_that_is_predicted_is_near_that_of_the_typed_step(name: str) -> None:
    f, args = MEMORY[name]
    found = sh.suggest(f, *args, mesh={"dp": 2, "tp": 4}, **SETTINGS)
    for plan in (found[0], found[-1]):
        assert abs(plan.point.cost.memory / plan.memory - 1) < 0.15
    assert all(later.memory < 0.99 * plan.memory for plan, later in itertools.pairwise(found))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", MEMORY)
def test_what_an_error_says_is_the_least_memory_fits(name: str) -> None:
    f, args = MEMORY[name]
    with pytest.raises(sh.ShardingTypeError, match=r"nothing fits in 1\.0 KiB") as refused:
        sh.suggest(f, *args, mesh={"dp": 8}, memory=1024, **SETTINGS)
    hint = next(hint for hint in refused.value.hints if hint.startswith("memory="))
    limit = hint.removeprefix("memory=").strip('"')
    found = sh.suggest(f, *args, mesh={"dp": 8}, memory=limit, **SETTINGS)
    assert found.limit is not None
    assert max(plan.memory for plan in found) <= found.limit


@pytest.mark.nightly
def test_what_an_error_says_is_the_least_memory_is_no_more_than_that_of_a_plan() -> None:
    """A plan that gathers a table is predicted to need less than the quickest one, and needs more."""

    def f(p: Any, i: Any, j: Any, y: Any) -> Any:
        return jnp.mean(jnp.square((p["u"][i] * p["v"][j]).sum(-1) - y))

    args = {"u": f32(32, 16), "v": f32(64, 16)}, i32(64), i32(64), f32(64)
    quickest = sh.suggest(f, *args, mesh={"dp": 8})[0]
    with pytest.raises(sh.ShardingTypeError, match=rf"needs {size(quickest.memory)}"):
        sh.suggest(f, *args, mesh={"dp": 8}, memory=0.95 * quickest.memory)


@pytest.mark.nightly
def test_plans_between_the_corners_of_the_front_are_found() -> None:
    """In half the memory, at 14 % above the bound, there is a corner; a plan that is none is at less than 5 %."""
    mesh = {"dp": 4, "tp": 4}

    def f(p: Any, x: Any) -> Any:
        step = lambda x, q: (x + jax.nn.gelu(x @ q["up"]) @ q["down"], None)  # noqa: E731
        return jnp.mean(jnp.square(jax.lax.scan(step, x, p)[0]))

    args = models.stacked(24, params(4096, 16384)), f32(8192, 4096)
    found = sh.suggest(f, *args, mesh=mesh, memory=sh.suggest(f, *args, mesh=mesh)[0].memory / 2)
    assert found[0].seconds < 1.05 * (found[0].bound or 0)


def test_a_pending_sum_that_is_sharded_before_it_is_kept_is_not_kept_whole() -> None:
    """Its reshard is a residual, and the product's result is not: of four layers, 4 x 16 MiB instead of 4 x 2."""

    def f(p: Any, x: Any) -> Any:
        step = lambda x, q: (x + jnp.tanh(x @ q["up"]) @ q["down"], None)  # noqa: E731
        return jnp.mean(jnp.square(jax.lax.scan(step, x, p)[0]))

    args = models.stacked(4, params(256, 1024)), f32(4096, 256)
    fixed = {"p/up": "[_, _@dp, _]", "p/down": "[_, _@dp, _]", "x": "[_, _@dp]"}
    plan = sh.suggest(f, *args, mesh={"dp": 8}, fixed=fixed, memory="40MiB", **SETTINGS)[0]
    assert plan.point.cost.memory <= plan.memory


def test_a_term_of_a_sum_is_not_kept_in_the_type_that_the_sum_takes_it_in() -> None:
    """Here the terms become pending, which sends nothing; the derivative of a sum needs none of them."""
    f, args = MEMORY["mlp"]
    plan = sh.suggest(f, *args, mesh={"dp": 2, "tp": 4}, **SETTINGS)[0]
    assert plan.point.cost.memory == pytest.approx(plan.memory, rel=0.05)


def test_experts_are_sharded_with_what_they_compute() -> None:
    args = models.experts(4096, 256, 1024, 8)
    found = sh.suggest(models.experts_loss, *args, mesh={"ep": 8}, **SETTINGS)[0]
    known = sent({"up": "[_@ep, _, _]", "down": "[_@ep, _, _]"}, models.experts_loss, *args, mesh={"ep": 8})
    assert found.ledger.total.bytes <= known


@pytest.mark.nightly
@pytest.mark.parametrize("d", [256, 1024])
def test_it_is_never_slower_than_what_is_written_by_hand(d: int) -> None:
    args, mesh = (models.block_params(d, 16, d // 16, 4 * d), f32(32, 128, d)), {"dp": 4, "tp": 4}
    found = sh.suggest(models.block_loss, *args, mesh=mesh, **SETTINGS)[0].seconds
    megatron = {"attn/[qkv]": "[_, _@tp, _]", "attn/o": "[_@tp, _, _]", "up": "[_, _@tp]", "down": "[_@tp, _]"}
    for known in (megatron, dict.fromkeys(("up", "down", "attn/*"), "[_@dp, ...]")):
        other = sh.suggest(models.block_loss, *args, mesh=mesh, fixed=known, inputs={"x": "[_@dp, _, _]"}, **SETTINGS)
        assert found <= other[0].seconds * 1.005


# what is said


def test_texts_with_axes_fixed_arguments_and_results_are_kept() -> None:
    mesh = {"dp": 2, "tp": 2}

    def f(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w)

    plan = sh.suggest(f, "f32[16@tp, 8]", "f32[32, 16]", mesh=mesh, grad=False, out="[_, _@dp]", **SETTINGS)[0]
    assert plan.rules["w"] == "[16@tp,8]"
    assert str(sh.check(sh.apply(f, plan), *plan.arguments).results) == "f32[32,8@dp]"
    plan = sh.suggest(f, "f32[16, 8]", "f32[32, 16]", mesh=mesh, fixed={"w": "[_, _@(dp,tp)]"}, **SETTINGS, grad=False)[
        0
    ]
    assert plan.rules["w"] == "[16,8@(dp,tp)]"


@functools.cache
def plans_of_a_gpt() -> Any:
    args = models.gpt_loss, *models.gpt(2, 8, 16, 64, 8, 8, 256, 512)
    return sh.suggest(*args, mesh={"dp": 4}, memory="100MiB", **SETTINGS)


def test_the_plan_prints_its_types_its_reshards_and_its_proof() -> None:
    found = plans_of_a_gpt()
    text = str(found)
    assert text.startswith("suggestion 1 of ")
    assert "arguments (" in text
    assert "p/layers/attn/[k,q,v]" in text
    assert "models.py:" in text
    assert f"ledger {found[0].ledger.total.bytes / 1e6:,.1f} MB" in text
    assert "<h1>" in found.to_html()
    assert math.isclose(found[0].bytes, found[0].ledger.total.bytes, rel_tol=2e-3)
    assert found[0].communication >= 0.99 * found[0].ledger.time(sh.cost_model(LINK))


def test_few_bytes_are_not_printed_as_no_megabytes() -> None:
    plan = sh.suggest(loss, params(8, 16), f32(64, 8), mesh={"dp": 8}, **SETTINGS)[0]
    assert 0 < plan.bytes < 1e5
    assert f"sent {plan.bytes:,.0f} B/device" in str(plan)


def test_what_is_not_chosen_says_what_it_would_cost_and_what_differs() -> None:
    found = sh.suggest(loss, params(64, 256), f32(65536, 64), mesh={"dp": 8}, **SETTINGS)
    other = found.why_not({"x": "[_, _@dp]"})
    assert isinstance(other, Plan)
    assert other.seconds > found[0].seconds
    lines = found[0].diff(other).splitlines()
    assert "x  [65536@dp,64] -> [65536,64@dp]" in lines
    assert any(line.startswith("+ test_suggest.py:") for line in lines)
    assert found[0].seconds == sh.suggest(loss, params(64, 256), f32(65536, 64), mesh={"dp": 8}, **SETTINGS)[0].seconds


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("f", "shape", "options"),
    [
        (lambda x: jnp.sum(x @ x.T), (0, 8), {}),
        (lambda x: jnp.sum(x.T @ x), (0, 8), {"memory": "1KiB"}),
        (lambda x: jnp.float32(1), (8,), {}),
        (lambda x: x, (8, 8), {"grad": False}),
        (lambda x: None, (8,), {"grad": False}),
    ],
    ids=["empty", "empty, bounded", "constant", "identity", "nothing"],
)
def test_what_takes_no_time_or_memory_has_a_plan_that_prints(f: Any, shape: Any, options: Any) -> None:
    found = sh.suggest(f, f32(*shape), mesh={"dp": 8}, **options)
    assert all((str(found), found.to_html(), found.to_json()))
    assert "+0.00 %" in found[0].diff(found.why_not({}))


@pytest.mark.nightly
def test_the_same_question_has_the_same_answer() -> None:
    args, mesh = (params(64, 256), f32(65536, 64)), {"a": 2, "b": 2, "c": 2}
    texts = {str(sh.suggest(loss, *args, mesh=mesh, **SETTINGS)) for _ in range(2)}
    assert len(texts) == 1


def test_what_hides_behind_computing_is_said_in_the_first_line() -> None:
    args = loss, params(64, 256), f32(65536, 64)
    plain, half, whole = (sh.suggest(*args, mesh={"dp": 8}, overlap=o, **SETTINGS)[0] for o in (0.0, 0.5, 1.0))
    assert "at once" not in plain.head
    assert "at once (overlap 0.5)" in half.head.splitlines()[0]
    assert math.isclose(half.seconds, half.compute + half.communication - 0.5 * min(half.compute, half.communication))
    assert math.isclose(whole.seconds, max(whole.compute, whole.communication))
    assert whole.seconds < half.seconds < plain.seconds


def test_with_overlap_communication_that_hides_is_free() -> None:
    """Weights that are gathered, as of FSDP, take no time beside much computing, and hardly any memory."""
    p = {"layers": models.stacked(8, params(1024, 4096))}

    def scanned(p: Any, x: Any) -> Any:
        step = jax.checkpoint(lambda x, q: (x + jnp.tanh(x @ q["up"]) @ q["down"], None))
        return jnp.mean(jnp.square(jax.lax.scan(step, x, p["layers"])[0]))

    found = [
        sh.suggest(
            scanned,
            p,
            f32(65536, 1024),
            mesh={"dp": 8},
            memory="1.2GiB",
            overlap=o,
            links=sh.Link(2e11),
            compute=DEVICE,
        )[0]
        for o in (0.0, 1.0)
    ]
    assert all(plan.memory <= 1.2 * 2**30 for plan in found)
    assert found[1].seconds < found[0].seconds
    assert math.isclose(found[1].seconds, found[1].compute)


@pytest.mark.nightly
@pytest.mark.parametrize("sizes", [(64, 32, 128), (4096, 256, 1024)], ids=["as long as it takes", "at once"])
def test_at_the_time_limit_there_is_a_plan_that_fits_and_is_said_to_be_unsettled(sizes: tuple[int, ...]) -> None:
    args, mesh = (models.mlp_loss, *models.mlp(*sizes)), {"a": 2, "b": 2, "c": 2}
    whole = sh.suggest(*args, mesh=mesh, **SETTINGS)
    again = sh.suggest(*args, mesh=mesh, time_limit=3600, **SETTINGS)
    assert str(again) == str(whole)
    assert again.settled
    limit = (whole[0].memory + whole[-1].memory) / 2
    short = sh.suggest(*args, mesh=mesh, time_limit=0, memory=limit, **SETTINGS)
    assert not short.settled
    assert short[0].memory <= limit
    assert "unsettled: the time limit was reached" in str(short)
    assert sh.suggest(*args, mesh=mesh, time_limit=0, **SETTINGS).solves < whole.solves


def test_work_without_products_takes_as_long_as_that_of_the_typed_step() -> None:
    def model(w: Any, x: Any) -> Any:
        rays = jnp.concatenate([jnp.sin(x), jnp.cos(x)], -1) @ w
        return jnp.sum(jax.lax.fori_loop(0, 4, lambda i, y: y + jnp.exp(-jax.nn.softplus(y)), rays))

    plan = sh.suggest(model, f32(64, 32), f32(256, 32), mesh={"x": 8})[0]
    assert plan.compute == pytest.approx(plan.work.seconds(), rel=0.15)


def lookup(table: Any, at: Any) -> Any:
    return jnp.sum(table[at])


def squares(table: Any, at: Any) -> Any:
    return jnp.sum(jnp.square(table[at]))


def maximum(x: Any) -> Any:
    return jnp.sum(jnp.max(x, 1))


@pytest.mark.parametrize(
    ("f", "operands", "arguments"),
    [
        # each device looks up the indices of all devices in its rows of the table, which divides nothing
        (lookup, ("table", "broadcast_in_dim"), (f32(64, 32), jax.ShapeDtypeStruct((256,), jnp.int32))),
        # the derivative reads the masks of the lookup too, which XLA computes there again
        (squares, ("table", "broadcast_in_dim"), (f32(64, 32), jax.ShapeDtypeStruct((256,), jnp.int32))),
        (maximum, ("x",), (f32(64, 4096),)),  # an even share, and its derivative
    ],
    ids=["lookup", "squares", "maximum"],
)
def test_an_op_across_shards_is_priced_by_the_work_of_its_algorithm(f: Any, operands: Any, arguments: Any) -> None:
    line = f"test_suggest.py:{f.__code__.co_firstlineno + 1}"
    spec = "[_, _@x]" if f is maximum else "[_@x, _]"
    plan = sh.suggest(f, *arguments, mesh={"x": 8}, fixed={f"{line} <- {name}": spec for name in operands})[0]
    assert plan.compute == pytest.approx(plan.work.seconds(), rel=0.1)


@pytest.mark.parametrize(("mesh", "settled"), [({"a": 2, "b": 2, "c": 2}, False), ({"a": 2, "b": 2}, True)], ids=str)
def test_more_than_two_axes_have_a_time_limit_by_default(
    mesh: dict[str, int], settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shtypes.suggestions.suggest._TIME_LIMIT", 0.0)
    args = lambda x: jnp.sum(jnp.sin(x)), f32(8)
    assert sh.suggest(*args, mesh=mesh).settled is settled
    assert sh.suggest(*args, mesh=mesh, time_limit=math.inf).settled


def test_the_page_has_the_front_as_a_picture_and_each_plan_as_tables() -> None:
    found = plans_of_a_gpt()
    assert len(found) > 1
    (svg,) = (ET.fromstring(picture) for picture in found.pictures())
    circles = [e for e in svg.iter() if e.tag.endswith("circle") and e.get("r") == "4"]
    assert [c.get("fill") for c in circles] == ["currentColor", *["none"] * (len(found) - 1)]
    across, down = ([float(c.get(name) or 0) for c in circles] for name in ("cx", "cy"))
    assert across == sorted(across, reverse=True)  # the quickest first: each needs less memory, and more time
    assert down == sorted(down, reverse=True)
    assert "bound 100.0 MiB" in [e.text for e in svg.iter()]
    page = found.to_html()
    assert page.count("<svg") == 1
    assert page.count("arguments (") == len(found)
    assert f"suggestion {len(found)} of {len(found)}: step" in page
    assert "<svg" in found._repr_html_()


def _wrong() -> Iterator[Any]:
    yield pytest.param({"overlap": 2}, "`overlap` of `suggest` is 2", id="overlap")
    yield pytest.param({"time_limit": -1}, "`time_limit` of `suggest` is -1", id="time limit")
    yield pytest.param({"fixed": {"weights": "[_, _]"}}, "no argument has the path `weights`", id="path")
    yield pytest.param({"memory": "10 apples"}, "`memory` of `suggest` is '10 apples'", id="memory")
    yield pytest.param({"memory": 1000}, "nothing fits in", id="too little")
    yield pytest.param({"state": -2.0}, "`state` of `suggest` is -2.0", id="state")
    yield pytest.param({"links": "string"}, "there is no link", id="links")
    yield pytest.param({"links": {"dq": "infiniband-ndr"}}, "`links` of `suggest` has 'dq'", id="links of no axis")
    yield pytest.param({"mesh": {}}, "`mesh` of `suggest` has no axis", id="no axis")
    yield pytest.param({"compute": "abacus"}, "there is no device", id="device")
    yield pytest.param({"grad": 5}, "`suggest` has no positional argument 5", id="grad")
    yield pytest.param({"fixed": {"w": "[_, _]{U:dp}"}}, "cannot be", id="pending")
    turned = {"fixed": {"w": "[_@(c,b,a), _]"}, "mesh": {"a": 2, "b": 2, "c": 2}}
    yield pytest.param(turned, "mesh's order", id="order")
    yield pytest.param({"out": ["[]", "[]"]}, "`out` of `suggest` says 2 types", id="out")


@pytest.mark.parametrize(("options", "message"), list(_wrong()))
def test_what_cannot_be_is_refused(options: Any, message: str) -> None:
    with pytest.raises(sh.ShardingTypeError, match=message):
        sh.suggest(
            lambda w, x: jnp.sum(jnp.tanh(x @ w)),
            "f32[16, 8]",
            "f32[32, 16]",
            **{"mesh": {"dp": 2}, **SETTINGS, **options},
        )


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["fixed", "typed", "why_not"])
def test_one_of_the_layers_that_are_alike_may_be_given_a_type_of_its_own(how: str) -> None:
    """Layers are decided together; one whose types are said is not like the others."""
    args, more = models.gpt(4, 8, 8, 16, 8, 4, 32, 64, scanned=False), {"mesh": {"dp": 2}, **SETTINGS}
    said = {"layers/1/up": "[_@dp, _]"}
    if how == "typed":
        up = sh.ShType.parse("f32[16@dp,32]", sh.abstract_mesh({"dp": 2}))
        args[0]["layers"][1] = {**args[0]["layers"][1], "up": up}
        plan = sh.suggest(models.gpt_loss, *args, **more)[0]
    elif how == "fixed":
        plan = sh.suggest(models.gpt_loss, *args, fixed=said, **more)[0]
    else:
        plan = sh.suggest(models.gpt_loss, *args, **more).why_not(said)
    assert [str(layer["up"]) for layer in plan.arguments[0]["layers"]] == [
        "f32[16,32]",
        "f32[16@dp,32]",
        *["f32[16,32]"] * 2,
    ]
    assert plan.ledger.total.bytes == pytest.approx(plan.point.cost.sent, rel=2e-3)


@pytest.mark.nightly
def test_layers_that_are_given_one_type_are_decided_together() -> None:
    args = models.gpt(4, 8, 8, 16, 8, 4, 32, 64, scanned=False)
    plan = sh.suggest(models.gpt_loss, *args, mesh={"dp": 2}, fixed={"layers/*/up": "[_@dp, _]"}, **SETTINGS)[0]
    assert plan.rules["p/layers/*/up"] == "[16@dp,32]"


def test_reshards_and_annotations_of_the_model_give_way_to_those_of_the_plan() -> None:
    def f(w: Any, x: Any) -> Any:
        y = sh.reshard(jnp.tanh(x @ w), "[_, _@dp]")
        return jnp.mean(jax.lax.with_sharding_constraint(y, jax.P(None, "tp")))

    def g(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w))

    one, other = (sh.suggest(h, "f32[16, 8]", "f32[32, 16]", mesh={"dp": 2, "tp": 2}, **SETTINGS)[0] for h in (f, g))
    assert one.rules == other.rules
    assert one.ledger.total == other.ledger.total


#: Programs with what is one operation to the solver: branches, loops, derivative rules, sorts, random numbers.
ODD: dict[str, Any] = {
    "branches": lambda w, x: jnp.sum(jax.lax.cond(x[0, 0] > 0, jnp.sin, lambda y: y * 2, x @ w)),
    "scan in scan": lambda w, x: jnp.mean(
        jax.lax.fori_loop(0, 2, lambda i, y: jax.lax.fori_loop(0, 2, lambda j, z: jnp.tanh(z @ w), y), x)
    ),
    "stacks": lambda w, x: jnp.mean(jax.lax.scan(lambda c, r: (c + jnp.sum(r), jnp.tanh(r @ w)), jnp.zeros(()), x)[1]),
    "own derivative": lambda w, x: jnp.mean(jax.nn.relu(x @ w) * jax.nn.silu(x @ w)),
    "sort": lambda w, x: jnp.mean(jnp.sort(x @ w, -1)[:, :4]),
    "argmax": lambda w, x: jnp.mean(jnp.take_along_axis(x @ w, jnp.argmax(x @ w, -1)[:, None], -1)),
    "random": lambda w, x: jnp.mean(jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, x.shape), x, 0.0) @ w),
    "gradient inside": lambda w, x: jnp.sum(jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)),
    "checkpoint twice": lambda w, x: jnp.mean(
        (lambda f: f(f(x)))(jax.checkpoint(lambda x: jnp.tanh(jnp.tanh(x @ w) @ w.T)))
    ),
    "unused": lambda w, x: jnp.sum(w),
}


# what runs


@pytest.mark.one_in(19)
@pytest.mark.parametrize("name", ODD)
def test_odd_programs_send_what_is_predicted_and_compute_what_one_device_does(name: str) -> None:
    f, mesh, shapes = ODD[name], {"dp": 2, "tp": 2}, (f32(16, 16), f32(32, 16))
    plan = sh.suggest(f, *shapes, mesh=mesh, links=sh.Link(1e9), compute=sh.Device({"f32": 1e12}, 1e11))[0]
    assert math.isclose(plan.bytes, plan.ledger.total.bytes, rel_tol=2e-3, abs_tol=16)
    values = models.arrays(shapes)
    with sh.use_mesh(sh.make_mesh(mesh)):
        placed = jax.tree.map(sh.array, values, plan.arguments)
        found = jax.tree.map(lambda y: y.to_jax(), sh.jit(sh.train_step(sh.apply(f, plan)))(*placed))
        jax.block_until_ready(found)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(jax.value_and_grad(f))(*values)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * float(np.abs(b).max()))


@pytest.mark.nightly
def test_an_applied_plan_takes_plain_arrays_and_computes_what_one_device_does() -> None:
    shapes = models.gpt(2, 8, 8, 16, 8, 4, 32, 64)
    values = models.arrays(shapes)
    found = sh.suggest(models.gpt_loss, *shapes, mesh={"dp": 2, "tp": 4}, **SETTINGS)
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})):
        value = jax.block_until_ready(sh.jit(sh.apply(models.gpt_loss, found))(*values).to_jax())
    np.testing.assert_allclose(value, models.gpt_loss(*values), rtol=1e-5)


@pytest.mark.nightly
def test_a_plan_that_fits_is_found_where_little_more_is_needed_than_arguments() -> None:
    def factors(w: Any, rows: Any, columns: Any, rating: Any) -> Any:
        u, v = w["users"][rows], w["items"][columns]
        error = jnp.sum(u * v, -1) + w["bu"][rows] + w["bi"][columns] - rating
        return jnp.mean(error**2) + 1e-3 * (jnp.sum(u * u) + jnp.sum(v * v))

    w = {"users": "f32[512, 16]", "items": "f32[256, 16]", "bu": "f32[512]", "bi": "f32[256]"}
    plan = sh.suggest(factors, w, "i32[128]", "i32[128]", "f32[128]", mesh={"dp": 2, "tp": 4}, memory=35_600)[0]
    assert plan.memory <= 35_600


@pytest.mark.nightly
def test_what_needs_least_is_measured_before_a_bound_is_refused() -> None:
    """More is predicted to fit than does, of a recurrence whose gates are matrices."""

    def recurrence(p: Any, x: Any) -> Any:
        u = x @ p["x"]
        heads = u.reshape(*u.shape[:2], 4, 8)
        r, i = (jax.nn.sigmoid(jnp.einsum("bshi,hij->bshj", heads, p[n]).reshape(u.shape)) for n in "ai")
        a = jnp.exp(-8 * r * jax.nn.softplus(p["L"]))
        gated = a, u * i * jnp.sqrt(1 - a * a)
        _, h = jax.lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), gated, axis=1)
        return jnp.mean(jnp.square(h * jax.nn.gelu(x @ p["y"]) @ p["o"]))

    weights = {"x": "[16,32]", "y": "[16,32]", "o": "[32,16]", "L": "[32]", "a": "[4,8,8]", "i": "[4,8,8]"}
    args = {name: f"f32{shape}" for name, shape in weights.items()}, "f32[8, 8, 16]"
    options: dict[str, Any] = {"mesh": {"dp": 4, "tp": 2}, "links": sh.Link(1e9, launch=1e-6)}
    smallest = sh.suggest(recurrence, *args, **options)[-1].memory
    assert sh.suggest(recurrence, *args, memory=smallest, **options)[0].memory <= smallest


def test_a_saved_plan_is_decisions_and_applies_to_the_program_that_it_is_of(tmp_path: Path) -> None:
    args = models.mlp(64, 32, 128)
    found = sh.suggest(models.mlp_loss, *args, mesh={"dp": 2, "tp": 2}, **SETTINGS)
    path = tmp_path / "plan.json"
    path.write_text(found.to_json())
    assert not {"seconds", "bytes", "memory"} & set(json.loads(path.read_text())["plans"][0])
    types = found[0].arguments
    with sh.use_mesh(sh.abstract_mesh({"dp": 2, "tp": 2})):
        one, other = (sh.ledger(sh.train_step(sh.apply(models.mlp_loss, p)), *types) for p in (found, path))
        assert one == other
        for plan in (found, found[0], path):
            with pytest.raises(sh.ShardingTypeError, match="the plan is not of"):
                sh.check(sh.apply(loss, plan), *types)


def test_what_is_no_plan_is_refused(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        return jnp.sum(x * x)

    found = sh.suggest(f, "f32[8]", mesh={"dp": 2})
    saved, path = found[0].to_dict(), tmp_path / "plan.json"
    with sh.use_mesh(sh.abstract_mesh({"dp": 2})):
        changes: Any = ({"arguments": None}, {"reshards": 3}, {"joined": {"a": 1}}, {"checkpoint": None})
        for text in ("", "[]", "{}", '{"plans": []}', *(json.dumps(saved | change) for change in changes)):
            path.write_text(text)
            with pytest.raises(sh.ShardingTypeError, match="holds no plan"):
                sh.check(sh.apply(f, path), "f32[8]")
        for other in (tmp_path / "none.json", 3):
            with pytest.raises(sh.ShardingTypeError, match="holds no plan"):
                sh.apply(f, other)  # type: ignore[arg-type]
    with pytest.raises(sh.ShardingTypeError, match="`diff` compares plans, not 3"):
        found[0].diff(3)  # type: ignore[arg-type]


def test_an_applied_function_closes_over_what_it_does_now() -> None:
    scale = {"of": jnp.ones(32)}

    def scaled(w: Any, x: Any) -> Any:
        return jnp.sum(x @ w * scale["of"])

    mesh = sh.make_mesh({"dp": 2})
    typed = sh.apply(scaled, sh.suggest(scaled, f32(8, 32), f32(4, 8), mesh=mesh, **SETTINGS))
    w, x = np.ones((8, 32), np.float32), np.ones((4, 8), np.float32)
    with sh.use_mesh(mesh):
        first = host(typed(w, x))
        scale["of"] = 2 * jnp.ones(32)
        second = host(typed(w, x))
    assert (first, second) == (scaled(w, x) / 2, scaled(w, x))


def test_a_key_of_random_numbers_is_an_argument(tmp_path: Path) -> None:
    def noisy(w: Any, key: Any) -> Any:
        return jnp.sum(jnp.sin(w + jax.random.normal(key, w.shape)))

    w, key = np.ones((8, 4), np.float32), jax.random.key(1)
    plan = sh.suggest(noisy, w, key, mesh={"x": 4})[0]
    (path := tmp_path / "plan.json").write_text(plan.to_json())
    with sh.use_mesh(sh.make_mesh({"x": 4})):
        assert host(sh.apply(noisy, path)(w, key)) == pytest.approx(float(noisy(w, key)), rel=1e-5)


def test_numbers_around_a_jitted_function_are_known_in_it() -> None:
    clipped = jax.jit(lambda x, low: jnp.maximum(x, low) * low)
    plan = sh.suggest(lambda x: jnp.sum(clipped(x, 0.5)), "f32[8]", mesh={"x": 2})[0]
    assert plan.bytes == plan.ledger.total.bytes


@jax.custom_vjp
def gated(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def _gated_backward(residuals: Any, g: Any) -> Any:
    x, w, y = residuals
    g = g * (1 - y * y)
    return g @ w.T, x.T @ g


gated.defvjp(lambda x, w: (y := gated(x, w), (x, w, y)), _gated_backward)


#: Products in the bodies of equations, and whether there is a gradient.
IN_BODIES: dict[str, tuple[Any, bool]] = {
    "a derivative rule": (lambda w, x: jnp.sum(gated(gated(x, w), w)), True),
    "a branch": (lambda w, x: jnp.sum(jax.lax.cond(x[0, 0] > 0, lambda x: gated(x, w), jnp.sin, x)), False),
    "a while loop": (
        lambda w, x: jnp.sum(jax.lax.while_loop(lambda x: x[0, 0] > 1, lambda x: jnp.tanh(x @ w), x)),
        False,
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", IN_BODIES)
def test_products_in_bodies_of_equations_are_work_as_others_are(name: str) -> None:
    f, grad = IN_BODIES[name]
    slow = sh.Device({"f32": 1e9}, 1e12)
    plan = sh.suggest(f, f32(64, 64), f32(128, 64), mesh={"x": 4}, compute=slow, grad=grad)[0]
    assert plan.compute == pytest.approx(plan.work.seconds(), rel=0.02)


@pytest.mark.parametrize("f", [lambda x: x * 2, lambda x: (x.sum(), x), lambda x: (x > 0).sum()])
def test_what_has_no_gradient_is_refused_before_the_search(f: Any) -> None:
    with pytest.raises(sh.ShardingTypeError, match="does not return one floating number") as caught:
        sh.suggest(f, f32(16, 8), mesh={"dp": 8})
    assert "grad=False" in str(caught.value)
    assert sh.suggest(f, f32(16, 8), mesh={"dp": 8}, grad=False)


@pytest.mark.parametrize("grad", [True, 0, (0, 1)], ids=str)
@pytest.mark.parametrize("ids", ["i32[8]", {"ids": "i32[8]", "x": "f32[4]"}], ids=["alone", "beside floats"])
def test_an_argument_without_a_gradient_is_named_with_those_that_have_one(ids: Any, grad: Any) -> None:
    def loss(ids: Any, table: Any) -> Any:
        return jnp.sum(table[ids["ids"] if isinstance(ids, dict) else ids])

    with pytest.raises(sh.ShardingTypeError, match=r"argument 0(\['ids'\])? of type int32\[8\](.|\n)*try: +grad=1\n"):
        sh.suggest(loss, ids, "f32[16, 4]", mesh={"x": 4}, grad=grad)
    assert sh.suggest(loss, ids, "f32[16, 4]", mesh={"x": 4}, grad=1)
