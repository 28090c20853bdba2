"""The gated MLP of the post: each line's type, forward and backward, under both policies; and what the demo prints."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import shtypes as sh
from shtypes.analysis.explain.document import lines_of
from shtypes.analysis.explain.explanation import Explanation
from shtypes.tools.demo import gated_mlp as model
from shtypes.tools.demo.show import ARGNUMS, MESH, SIZES, TYPES, show
from shtypes.traced.ledger import ledger

GOLDEN = Path(__file__).parents[2] / "golden" / "demo.txt"

# The post's own listing, line by line; what its types leave unmentioned is what ours do under "jax".
POST_ARGUMENTS = {
    "x": "f32[seq, batch@dp, hidden]",
    "w1": "f32[hidden, intermediate@tp]",
    "w3": "f32[hidden, intermediate@tp]",
    "w2": "f32[intermediate@tp, hidden]",
}
POST_FORWARD = {
    "rx": "f32[seq, batch@dp, hidden]{R:tp}",
    "rw1": "f32[hidden, intermediate@tp]{R:dp}",
    "rw3": "f32[hidden, intermediate@tp]{R:dp}",
    "rw2": "f32[intermediate@tp, hidden]{R:dp}",
    "h1": "f32[seq, batch@dp, intermediate@tp]",
    "h3": "f32[seq, batch@dp, intermediate@tp]",
    "h": "f32[seq, batch@dp, intermediate@tp]",
    "out": "f32[seq, batch@dp, hidden]{U:tp}",
}
POST_BACKWARD = {
    "g_out": "f32[seq, batch@dp, hidden]{R:tp}",
    "g_h": "f32[seq, batch@dp, intermediate@tp]",
    "g_rw2": "f32[intermediate@tp, hidden]{U:dp}",
    "g_silu_h1": "f32[seq, batch@dp, intermediate@tp]",
    "g_h3": "f32[seq, batch@dp, intermediate@tp]",
    "g_h1": "f32[seq, batch@dp, intermediate@tp]",
    "g_rx_from_h3": "f32[seq, batch@dp, hidden]{U:tp}",
    "g_rw3": "f32[hidden, intermediate@tp]{U:dp}",
    "g_rx_from_h1": "f32[seq, batch@dp, hidden]{U:tp}",
    "g_rw1": "f32[hidden, intermediate@tp]{U:dp}",
    "g_rx": "f32[seq, batch@dp, hidden]{U:tp}",
    "g_w2": "f32[intermediate@tp, hidden]",
    "g_w1": "f32[hidden, intermediate@tp]",
    "g_w3": "f32[hidden, intermediate@tp]",
    "g_x": "f32[seq, batch@dp, hidden]",
}
#: The equations of the post's backward pass.
POST_EINSUMS = {
    "g_h": "einsum[sbh,ih->sbi] g_out rw2",
    "g_rw2": "einsum[sbi,sbh->ih] h g_out",
    "g_rx_from_h3": "einsum[sbi,hi->sbh] g_h3 rw3",
    "g_rw3": "einsum[sbh,sbi->hi] rx g_h3",
    "g_rx_from_h1": "einsum[sbi,hi->sbh] g_h1 rw1",
    "g_rw1": "einsum[sbh,sbi->hi] rx g_h1",
}


def arguments() -> list[Any]:
    mesh = sh.abstract_mesh(MESH)
    with sh.dims(**SIZES):
        return [sh.abstract_array(t, mesh) for t in TYPES]


def listed(policy: str, block: Any) -> tuple[Explanation, dict[str, str], dict[str, str]]:
    with sh.policy(policy):
        found = sh.explain(block, *arguments(), grad=True)
        forward = {line.name: str(line.type) for line in (*found.arguments, *lines_of(found.forward))}
        return found, forward, {line.name: str(line.type) for line in (*found.seeds, *lines_of(found.backward))}


def without_casts(types: dict[str, str]) -> dict[str, str]:
    """The post's types as the partial policy prints them: reduced is what is not mentioned."""
    return {name: re.sub(r"\{R:\w+\}", "", t) for name, t in types.items() if name[:3] not in ("g_w", "g_x")}


@pytest.mark.core
def test_every_line_has_the_type_of_the_post_under_jax_with_its_casts() -> None:
    _, forward, backward = listed("jax", model.mlp_with_casts)
    assert {name: forward[name] for name in POST_ARGUMENTS | POST_FORWARD} == POST_ARGUMENTS | POST_FORWARD
    assert backward == POST_BACKWARD


@pytest.mark.core
def test_every_line_has_the_type_of_the_post_under_partial_without_annotations() -> None:
    found, forward, backward = listed("partial", model.mlp)
    assert not any("reshard" in line.op or "cast" in line.op for line in found.lines)
    assert {name: forward[name] for name in POST_FORWARD} == without_casts(POST_FORWARD)
    assert backward == without_casts(POST_BACKWARD)


def test_the_backward_equations_are_those_of_the_post() -> None:
    found, _, _ = listed("partial", model.mlp)
    made = {line.name: " ".join((line.op, *line.operands)) for line in lines_of(found.backward)}
    assert {name: made[name] for name in POST_EINSUMS} == POST_EINSUMS


def test_under_partial_nothing_communicates_and_the_weight_gradients_stay_pending() -> None:
    args = arguments()
    step = sh.value_and_grad(model.loss, argnums=ARGNUMS)
    assert len(ledger(step, *args)) == 0


@pytest.mark.parametrize("loss", [model.loss, model.loss_with_casts], ids=["inserted", "written"])
def test_under_jax_the_weights_are_reduced_over_dp_and_the_input_over_tp(loss: Any) -> None:
    with sh.policy("jax"):
        entries = ledger(sh.value_and_grad(loss, argnums=ARGNUMS), *arguments())
    assert sorted((e.kind, e.axes, e.direction) for e in entries) == [
        ("all-reduce", ("dp",), "backward"),
        ("all-reduce", ("dp",), "backward"),
        ("all-reduce", ("dp",), "backward"),
        ("all-reduce", ("tp",), "backward"),
    ]


def test_the_demo_prints_what_it_printed_and_every_value_is_right() -> None:
    text = io.StringIO()
    assert show(Console(file=text, width=140, highlight=False))
    printed = re.sub(r"\d\.\de-\d\d", "0.0e-00", text.getvalue())
    assert "\n".join(line.rstrip() for line in printed.splitlines()) + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_the_readme_quotes_what_the_demo_prints() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    quoted = re.findall(r"```text\n(.*?)```", readme, re.S)
    assert quoted
    assert all(block in GOLDEN.read_text(encoding="utf-8") for block in quoted)
