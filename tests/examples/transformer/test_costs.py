"""What a step of the language model sends: by the ledger, as compiled, and by the formulas of the literature."""

from __future__ import annotations

import dataclasses
import tomllib
from typing import Any

import pytest

import shtypes as sh
from examples.transformer import costs, model, training
from examples.transformer.layouts import FILE, Layout, read
from tests.traced.compiled import assert_compiled_as_said

pytestmark = pytest.mark.one_in(9)

LAYOUTS = read()
#: What those with stages compile to is in `test_pipeline`.
WHOLE = [name for name, layout in LAYOUTS.items() if not layout.schedule]
SMALL = model.Sizes(vocab=64, layers=2, hidden=32, heads=8, key_heads=4, head=4, inner=32, dtype="f32")
DAILY = {("ring_tp", "jax", "none")}


def run(layout: Layout, capacity: float | None = 1.25, accumulate: int = 1, **sizes: Any) -> training.Run:
    mixture: dict[str, Any] = {"experts": 8, "capacity": capacity, "group": 8} if "expert" in layout.dims else {}
    small = dataclasses.replace(SMALL, **{"layers": 2 * layout.stages, **mixture, **sizes})
    return training.Run(layout, small, batch=16, seq=16, accumulate=accumulate)


@pytest.mark.parametrize(
    ("name", "policy", "remat"),
    [
        pytest.param(*case, marks=() if case in DAILY else pytest.mark.nightly)
        for case in ((n, p, r) for n in WHOLE for p in ("partial", "jax") for r in ("none", "everything"))
    ],
)
def test_the_compiled_step_sends_what_the_ledger_says(name: str, policy: str, remat: str) -> None:
    with sh.policy(policy), LAYOUTS[name].use():
        small = run(LAYOUTS[name], remat=remat)
        step, args = training.step(small), training.abstract(small)
        assert_compiled_as_said(step, *args)


def assert_sends_what_the_literature_says(small: training.Run) -> None:
    with small.layout.use(abstract=True):
        found = sh.ledger(training.step(small), *training.abstract(small))
        assert abs(found.bytes - costs.sent(small)) <= len(found.entries), "the ledger counts whole bytes"


@pytest.mark.one_in(43)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_step_sends_what_the_literature_says(name: str) -> None:
    for dtype, remat in (("f32", "none"), ("bf16", "everything")):
        assert_sends_what_the_literature_says(run(LAYOUTS[name], dtype=dtype, remat=remat))


#: Layouts that are not in the file: a name, a mesh, strategies, ZeRO, schedule and microbatches.
OTHERS: list[tuple[dict[str, int], list[str], int, str, int]] = [
    ({"pp": 2, "dp": 2, "ep": 2, "tp": 2}, ["pipeline", "data", "expert", "tensor"], 0, "gpipe", 2),
    ({"pp": 2, "dp": 2, "ep": 2}, ["pipeline", "data", "expert"], 3, "1f1b", 4),
    ({"pp": 2, "cp": 2, "tp": 2}, ["pipeline", "ring", "tensor", "sequence"], 0, "1f1b", 1),
    ({"pp": 2, "dp": 4}, ["pipeline", "data"], 2, "gpipe", 1),
    ({"pp": 1, "dp": 2, "tp": 2}, ["pipeline", "data", "tensor"], 0, "1f1b", 4),
    ({"dp": 2, "ep": 4}, ["data", "expert"], 1, "", 0),
    ({"ep": 2, "cp": 2, "tp": 2}, ["expert", "ring", "tensor", "sequence"], 0, "", 0),
    ({"dp": 2, "idle": 2, "tp": 2}, ["data", "tensor"], 3, "", 0),
]


def other(mesh: dict[str, int], uses: list[str], zero: int, schedule: str, microbatches: int) -> Layout:
    """A layout of strategies of the file."""
    strategies = tomllib.loads(FILE.read_text())["strategies"]
    dims: dict[str, tuple[str, ...]] = {}
    for strategy in uses:
        dims |= {dim: (*dims.get(dim, ()), axis) for dim, axis in strategies[strategy].items()}
    over: tuple[str, ...] = tuple(axis for axis in ("dp", "ep", "cp") if axis in mesh)
    masters = {"hidden": over, "features": tuple(axis for axis in over if axis != "ep")} if zero else {}
    return Layout("other", mesh, dims, masters, zero, schedule, microbatches)


@pytest.mark.nightly
@pytest.mark.one_in(69)
@pytest.mark.parametrize("capacity", [1.25, None])
@pytest.mark.parametrize("case", OTHERS, ids=lambda case: "_".join(case[0]) + case[3])
@pytest.mark.parametrize("layers", [1, 2])
def test_layouts_that_are_not_in_the_file_send_it_too(capacity: float | None, case: Any, layers: int) -> None:
    layout = other(*case)
    for dtype, remat in (("f32", "none"), ("bf16", "everything")):
        sizes = {"dtype": dtype, "remat": remat, "layers": layers * layout.stages}
        accumulate = 1 if layout.schedule else 2
        assert_sends_what_the_literature_says(run(layout, capacity, accumulate, **sizes))


def test_a_layout_for_which_there_is_no_formula_is_refused() -> None:
    layout = Layout("odd", {"tp": 4}, {"stream": ("tp",)})
    with layout.use(abstract=True), pytest.raises(sh.ShardingTypeError, match="no formula for layout `odd`"):
        costs.sent(run(layout))


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
