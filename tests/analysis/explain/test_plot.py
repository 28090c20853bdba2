"""The plot of bytes by axes and direction."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shtypes.analysis.explain.page import bytes_sent
from tests.analysis.explain.test_listing import explained


def test_without_matplotlib_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'shtypes\[plot\]'"):
        explained("custom").plot()


def test_the_bars_are_the_bytes_of_the_ledger(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = explained("transformer")
    figure = found.plot(tmp_path / "bytes.png")
    assert (tmp_path / "bytes.png").read_bytes().startswith(b"\x89PNG")
    bars = {
        (group, container.get_label()): bar.get_height()
        for container in figure.axes[0].containers
        for group, bar in zip([t.get_text() for t in figure.axes[0].get_xticklabels()], container, strict=True)
    }
    assert bars == bytes_sent(found.ledger)
    assert sum(bars.values()) == found.ledger.bytes


def test_a_program_that_sends_nothing_has_a_plot_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    explained("custom").plot(tmp_path / "bytes.svg")
    assert "no collectives" in (tmp_path / "bytes.svg").read_text(encoding="utf-8")
