"""The examples print what they printed: whole outputs as golden text. SHTYPES_UPDATE_GOLDEN=1 writes it anew."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

import shtypes as sh

GOLDEN = Path(__file__).parent.parent / "golden" / "examples"
#: The examples that are programs with an output of their own.
EXAMPLES = ("pallas_attention", "replicate_forwards", "sharding_and_communication", "tutorial_collectives")


def compared(name: str, text: str) -> None:
    """Compares a text with the golden one."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("SHTYPES_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_its_types_and_what_it_sends(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with sh.policy("partial"):
        importlib.import_module(f"examples.{name}").main()
    compared(name, capsys.readouterr().out)
