"""A plot of the bytes that each device sends, for each group of mesh axes and each direction."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from shtypes.analysis.explain.listed import Listing
from shtypes.traced.ledger import Ledger

DIRECTIONS: Final = ("forward", "recomputed", "backward")
_COLOURS: Final = {"forward": "#2b7bb9", "recomputed": "#b8a93a", "backward": "#a2558f"}


class MissingPlotError(ImportError):
    """Matplotlib is not installed."""


def plot(found: Listing, path: str | Path | None = None) -> Any:
    """Draws the plot; see `Explanation.plot`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPlotError("a plot needs matplotlib: pip install 'shtypes[plot]'") from None
    sent = bytes_sent(found.ledger)
    groups = list(dict.fromkeys(axes for axes, _ in sent)) or ["no collectives"]
    directions = [d for d in DIRECTIONS if any(key[1] == d for key in sent)]
    figure = Figure(figsize=(max(4.5, 1.6 + 1.3 * len(groups)), 3.4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(len(directions), 1)
    for i, direction in enumerate(directions):
        places = [g - 0.4 + width * (i + 0.5) for g in range(len(groups))]
        heights = [sent.get((group, direction), 0) for group in groups]
        bars = axes.bar(places, heights, width * 0.94, label=direction, color=_COLOURS[direction])
        axes.bar_label(bars, labels=[f"{h:,}" if h else "" for h in heights], fontsize=7, padding=2)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlabel("mesh axes")
    axes.set_ylabel("bytes that each device sends")
    axes.set_title(f'{found.function}, policy "{found.policy}"', fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.15)
    if directions:
        axes.legend(frameon=False)
    if path is not None:
        figure.savefig(path, dpi=160)
    return figure


def bytes_sent(ledger: Ledger) -> dict[tuple[str, str], int]:
    """The bytes for each group of axes, joined with commas, and each direction."""
    found: dict[tuple[str, str], int] = {}
    for axes in ledger.by_axes():
        of_axes = ledger.select(lambda entry, axes=axes: entry.axes == axes)  # type: ignore[misc]
        for direction, total in of_axes.by_direction().items():
            found[", ".join(axes), direction] = total.bytes
    return found
