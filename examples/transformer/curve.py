"""The curve of a run's losses, as a picture that any browser shows."""

from __future__ import annotations

import math
from collections.abc import Mapping

WIDTH, HEIGHT, MARGIN = 640, 320, 40


def svg(losses: Mapping[int, float]) -> str:
    """Draws losses by step: each as it was, faint, and their running mean. Losses that are not finite are left out."""
    found = {step: loss for step, loss in losses.items() if math.isfinite(loss)}
    if not found:
        raise ValueError("there is no finite loss to draw")
    last, low, high = max(found), min(found.values()), max(found.values())

    def points(values: Mapping[int, float]) -> str:
        wide, tall = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
        return " ".join(
            f"{MARGIN + wide * step / last:.1f},{HEIGHT - MARGIN - tall * (value - low) / ((high - low) or 1):.1f}"
            for step, value in values.items()
        )

    mean, means = next(iter(found.values())), {}
    for step, loss in found.items():
        mean += (loss - mean) / 10
        means[step] = mean
    bottom = HEIGHT - MARGIN
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>
<path d="M{MARGIN},{MARGIN}V{bottom}H{WIDTH - MARGIN}" fill="none" stroke="#888"/>
<text x="{MARGIN - 4}" y="{MARGIN + 4}" text-anchor="end">{high:.2f}</text>
<text x="{MARGIN - 4}" y="{bottom}" text-anchor="end">{low:.2f}</text>
<text x="{WIDTH - MARGIN}" y="{bottom + 18}" text-anchor="end">step {last}</text>
<polyline points="{points(found)}" fill="none" stroke="#bbd" stroke-width="1"/>
<polyline points="{points(means)}" fill="none" stroke="#226" stroke-width="2"/>
</svg>
"""
