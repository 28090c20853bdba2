"""What a step of the language model sends: by the ledger, as compiled, and by the formulas of the literature."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import shtypes as sh
from examples.transformer import costs, model, training
from examples.transformer.layouts import Layout, read
from tests.traced.compiled import compiled_text, sent_by_compiled, sent_by_ledger

#: Those with stages are in `test_pipeline`.
LAYOUTS = {name: layout for name, layout in read().items() if not layout.schedule}
SMALL = model.Sizes(vocab=64, layers=2, hidden=32, heads=8, key_heads=4, head=4, inner=32, dtype="f32")
DAILY = {("zero3_tp_sp", "partial", "everything"), ("ring_tp", "jax", "none")}


def run(layout: Layout, **sizes: Any) -> training.Run:
    mixture: dict[str, Any] = {"experts": 8, "capacity": 1.25, "group": 8} if "expert" in layout.dims else {}
    return training.Run(layout, dataclasses.replace(SMALL, **mixture, **sizes), batch=16, seq=16)


@pytest.mark.parametrize(
    ("name", "policy", "remat"),
    [
        pytest.param(*case, marks=() if case in DAILY else pytest.mark.nightly)
        for case in ((n, p, r) for n in LAYOUTS for p in ("partial", "jax") for r in ("none", "everything"))
    ],
)
def test_the_compiled_step_sends_what_the_ledger_says(name: str, policy: str, remat: str) -> None:
    with sh.policy(policy), LAYOUTS[name].use():
        small = run(LAYOUTS[name], remat=remat)
        step, args = training.step(small), training.abstract(small)
        said = sh.ledger(step, *args)
        assert not said.not_covered
        assert sent_by_compiled(compiled_text(sh.jit(step), *args)) == sent_by_ledger(said)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_step_sends_what_the_literature_says(name: str) -> None:
    with LAYOUTS[name].use(abstract=True):
        for dtype, remat in (("f32", "none"), ("bf16", "everything")):
            small = run(LAYOUTS[name], dtype=dtype, remat=remat)
            found = sh.ledger(training.step(small), *training.abstract(small))
            assert abs(found.bytes - costs.sent(small)) <= len(found.entries), "the ledger counts whole bytes"


def test_it_is_as_much_on_thousands_of_devices() -> None:
    wide = Layout("wide", {"dp": 64, "cp": 4, "tp": 8}, LAYOUTS["dp_cp_tp_sp"].dims, {"hidden": ("dp", "cp")}, zero=3)
    sizes = model.Sizes(vocab=32_768, layers=32, hidden=4096, heads=32, key_heads=8, head=128, inner=14_336)
    with wide.use(abstract=True):
        large = training.Run(wide, sizes, batch=256, seq=8192)
        found = sh.ledger(training.step(large), *training.abstract(large)).bytes
        assert found == pytest.approx(costs.sent(large), rel=1e-9)


def test_microbatches_are_summed_on_each_device_and_once_over_all() -> None:
    counted = {}
    for accumulate in (1, 4):
        with LAYOUTS["dp"].use():
            small = training.Run(LAYOUTS["dp"], SMALL, batch=32, seq=16, accumulate=accumulate)
            found = sh.ledger(training.step(small), *training.abstract(small))
            counted[accumulate] = [(e.kind, e.bytes, e.times) for e in found.entries]
    assert counted[1] == counted[4]
    assert [kind for kind, *_ in counted[4]] == ["all-reduce"] * 2  # the gradients, and the loss
