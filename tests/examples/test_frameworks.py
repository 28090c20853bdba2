"""The transformers of frameworks: trained on a mesh under both policies, they have the losses of one device."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import shtypes as sh
from tests.tolerance import SHORT, assert_within, eps
from tests.traced.compiled import assert_compiled_as_said

FOLDER = Path(__file__).parents[2] / "examples" / "frameworks"
#: The roundings of a loss after some steps: each step has a chain of a few hundred, and Adam divides by small numbers.
ROUNDINGS = 20 * 4 * SHORT


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "needs"), [("nnx", "flax"), ("linen", "flax"), ("equinox", "equinox"), ("haiku", "haiku")]
)
def test_a_transformer_of_a_framework_trains_as_on_one_device_and_sends_what_the_ledger_says(
    name: str, needs: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(needs)
    training = importlib.import_module("examples.frameworks.training")
    train = training.trained

    def trained(step: Any, params: Any, state: Any, batch: Any) -> list[float]:
        if isinstance(batch[0], sh.Array):
            assert_compiled_as_said(step.__wrapped__, params, state, *batch, jits=[sh.jit])
        losses: list[float] = train(step, params, state, batch)
        return losses

    monkeypatch.setattr(training, "trained", trained)
    losses = importlib.import_module(f"examples.frameworks.{name}_transformer").main()
    wanted = losses.pop("one device")
    assert wanted[-1] < wanted[0] / 4
    for policy, found in losses.items():
        assert_within(found, wanted, ROUNDINGS * eps("float32"), policy)
    out = capsys.readouterr().out
    assert "hidden@tp" in out
    assert "B/device" in out


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*_transformer.py")), ids=lambda path: path.stem)
def test_a_transformer_of_a_framework_is_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 120
    assert text.endswith('\n\nif __name__ == "__main__":\n    main()\n')
