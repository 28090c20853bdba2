"""`compare`: what differs between the policies, as text, JSON and HTML."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated as A
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

import shtypes as sh
from shtypes.analysis.changes import changes_of, uses_of
from shtypes.tools.demo import gated_mlp as model
from tests.golden import golden
from tests.tolerance import assert_close

MESH = sh.abstract_mesh({"dp": 2, "tp": 2})
SIZES = {"seq": 4, "batch": 8, "hidden": 16, "intermediate": 32}


def gated_mlp(**options: Any) -> sh.Comparison:
    return sh.compare(model.loss, model.X, model.W1, model.W3, model.W2, mesh=MESH, dims=SIZES, **options)


def microbatches(w: Any, xs: Any) -> Any:
    """The gradient of several microbatches, one after the other: pending until the end where the policy lets it be."""

    def step(total: Any, x: Any) -> tuple[Any, None]:
        return total + sh.grad(lambda w: sh.sum(sh.silu(x @ w)))(w), None

    zero = sh.zeros("f32[16,16]" if sh.current_policy() == "jax" else "f32[16,16]{U:dp}")
    total, _ = sh.scan(step, zero, xs)
    return sh.all_reduce(total) if sh.typeof(total).axes(sh.State.UNREDUCED) else total


@pytest.mark.core
def test_the_comparison_of_the_gated_mlp_prints_what_it_printed() -> None:
    golden("compare.txt", str(gated_mlp(model="h100-nvlink")))


def test_the_cotangents_that_the_backward_pass_is_given_are_no_lines_of_it() -> None:
    def block(x: Any, up: Any, down: Any) -> Any:
        return sh.all_reduce(sh.silu(x @ up) @ down, "tp")

    found = sh.compare(block, "f32[8@dp,16]", "f32[16,32@tp]", "f32[32@tp,16]", mesh=MESH)
    assert [(change.direction, change.what) for change in found.types] == [
        ("gradient", name) for name in ("x", "up", "down")
    ]


def test_its_totals_are_those_of_the_ledgers() -> None:
    found = gated_mlp(model=sh.cost_model(sh.Link(1e9, latency=1e-6)))
    for side in (found.jax, found.partial):
        with sh.policy(side.policy), sh.use_mesh(MESH), sh.dims(**SIZES):
            args = [sh.abstract_array(t) for t in (model.X, model.W1, model.W3, model.W2)]
            assert side.ledger.total == sh.ledger(sh.grad(model.loss, argnums=(0, 1, 2, 3)), *args).total
    assert found.seconds() == pytest.approx((4 * (2e-6 + 1024 / 1e9), 0.0))
    assert gated_mlp().seconds() is None


def test_an_all_reduce_of_each_microbatch_moves_after_the_last() -> None:
    found = sh.compare(microbatches, "f32[16,16]", "f32[5, 8@dp, 16]", mesh=sh.abstract_mesh({"dp": 4}))
    assert not found.grad  # it takes gradients itself
    (change,) = found.collectives
    assert change.what == "moves"
    assert change.jax is not None
    assert change.partial is not None
    assert (change.jax.direction, change.jax.launches, change.partial.direction, change.partial.launches) == (
        "backward", 5, "forward", 1,
    )  # fmt: skip
    assert [c.what for c in found.types] == ["full", "add"]


LAYERS, MICROBATCHES = 3, 5


def accumulate(ws: Any, xs: Any) -> Any:
    """The gradients of several layers over several microbatches, reduced once where the policy lets them be pending."""

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = sh.silu(x @ w)
        return sh.sum(x)

    def step(totals: Any, x: Any) -> tuple[Any, None]:
        return [t + g for t, g in zip(totals, sh.grad(loss)(ws, x), strict=True)], None

    pending = sh.current_policy() == "partial"
    zeros = [sh.zeros("f32[16,16]{U:dp}" if pending else "f32[16,16]") for _ in ws]
    totals, _ = sh.scan(step, zeros, xs)
    return [sh.all_reduce(t) if pending else t for t in totals]


def test_accumulation_reduces_once_under_partial_and_each_time_under_jax_with_equal_values() -> None:
    rng = np.random.default_rng(0)
    ws = [rng.normal(size=(16, 16)).astype(np.float32) for _ in range(LAYERS)]
    xs = rng.normal(size=(MICROBATCHES, 8, 16)).astype(np.float32)
    values = []
    with sh.use_mesh(sh.make_mesh({"dp": 4})):
        found = sh.compare(accumulate, ["f32[16,16]"] * LAYERS, f"f32[{MICROBATCHES}, 8@dp, 16]")
        for policy in ("jax", "partial"):
            with sh.policy(policy):
                args = [sh.array(w) for w in ws], sh.array(xs, "[_, _@dp, _]")
                values.append([np.asarray(g) for g in jax.block_until_ready(sh.jit(accumulate)(*args))])
    assert found.jax.ledger.by_axes() == {("dp",): (LAYERS * MICROBATCHES * 1536, LAYERS * MICROBATCHES)}
    assert found.partial.ledger.by_axes() == {("dp",): (LAYERS * 1536, LAYERS)}
    assert {change.what for change in found.collectives} == {"moves"}
    for one, other in zip(*values, strict=True):
        assert_close(one, other)


def test_values_and_types_keep_what_they_mean_under_the_other_policy() -> None:
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 2})):
        args = (sh.ones("f32[8@dp,16]"), sh.ones("f32[16,32@tp]"), sh.typeof(sh.ones("f32[32@tp,16]{U:dp}")))
        found = sh.compare(lambda x, w, u: sh.silu(x @ w), *args)
    assert [t.canonical() for t in found.jax.signature.arguments.values()] == [  # type: ignore[union-attr]
        "f32[8@dp,16]{I:tp}",
        "f32[16,32@tp]{I:dp}",
        "f32[32@tp,16]{U:dp}",
    ]
    assert found.jax.ledger.bytes > found.partial.ledger.bytes == 0


def test_the_annotations_are_the_arguments_where_none_are_given() -> None:
    def f(x: A[sh.Array, "f32[b=8@dp, h=4]"], w: A[sh.Array, "f32[h, h]"]) -> Any:
        return x @ w

    assert "gradient  " in str(sh.compare(f, mesh=MESH))


def only_partial(x: Any) -> Any:
    return sh.reshard(x, "[_]{R:(dp,tp)}") if sh.current_policy() == "partial" else sh.silu(sh.reshard(x, dp="U"))


def test_a_program_that_types_under_one_policy_only_says_so() -> None:
    found = sh.compare(only_partial, "f32[8@dp]", mesh=MESH)
    assert not found.typed
    assert found.partial.error is None
    assert 'Under "jax" it does not type: `silu` is nonlinear' in str(found)
    assert "does not type" in found.to_html()
    assert json.loads(found.to_json())["jax"]["error"].startswith("`silu` is nonlinear")


def test_the_title_says_which_passes_are_compared_and_on_what() -> None:
    def f() -> Any:
        return sh.all_reduce(sh.zeros("f32[8]{U:dp}"))

    assert str(sh.compare(f, mesh=MESH)).startswith("f on dp=2, tp=2, forward and backward: ")
    assert str(sh.compare(f, mesh=MESH, grad=False)).startswith("f on dp=2, tp=2, forward: ")
    taken = sh.compare(sh.grad(sh.sum), "f32[8@dp]", mesh=MESH)
    assert "with the gradients that it takes" in taken.title
    assert (taken.grad, taken.takes) == (False, True)


def test_a_program_that_types_under_neither_is_an_error() -> None:
    with pytest.raises(sh.ShardingTypeError, match="`silu` is nonlinear"):
        sh.compare(sh.silu, "f32[8]{U:dp}", mesh=MESH)


def test_changes_pair_what_moved_and_leave_nothing_out() -> None:
    found = gated_mlp()
    forth = list(changes_of(uses_of(found.jax.ledger), uses_of(found.partial.ledger)))
    back = list(changes_of(uses_of(found.partial.ledger), uses_of(found.jax.ledger)))
    assert [c.what for c in forth] == ["vanishes"] * 4
    assert [c.what for c in back] == ["appears"] * 4
    assert {c.what for c in changes_of(uses_of(found.jax.ledger), uses_of(found.jax.ledger))} == {"same"}


def test_a_line_that_sends_another_amount_changes() -> None:
    def f(x: Any) -> Any:
        return sh.all_reduce(x, "dp")

    small, large = (uses_of(sh.check(f, f"f32[{n}]{{U:dp}}", mesh=MESH).ledger) for n in (8, 16))
    (change,) = changes_of(small, large)
    assert change.what == "changes"
    assert change.jax is not None
    assert change.partial is not None
    assert (change.jax.bytes, change.partial.bytes) == (32, 64)


def test_the_json_has_its_documented_keys() -> None:
    found = json.loads(gated_mlp(model="h100-nvlink").to_json(indent=1))
    page = (Path(__file__).parents[2] / "docs" / "communication.md").read_text()
    section = page.partition("## The two policies side by side")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.M)) | {"jax", "partial"} == set(found)
    assert found["schema"] == 1
    assert [c["what"] for c in found["collectives"]] == ["vanishes"] * 4
    assert found["jax"]["ledger"]["totals"]["bytes"] == 4096


def test_the_page_is_well_formed_and_needs_nothing_else() -> None:
    text = gated_mlp().to_html()
    stack: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not {"src", "href"} & {name for name, _ in attrs}
            if tag != "meta":
                stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert stack.pop() == tag

    Reader().feed(text)
    assert not stack
    assert "f32[hidden, intermediate@tp]{U:dp}" in text
    assert "einsum(&quot;sbi,ih-&gt;sbh&quot;" in text


def test_rich_prints_the_same_rows() -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(gated_mlp())
    assert "all-reduce over dp" in out.getvalue()
    assert "f32[hidden, intermediate@tp]{U:dp}" in out.getvalue()
