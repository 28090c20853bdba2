"""How an attack is written, and what its inputs hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.random_programs import Program, Step


def floats(*shape: int) -> Any:
    return np.asarray(np.random.default_rng(len(shape)).integers(-8, 9, shape) / 8, np.float32)


def ints(*values: int, dtype: Any = np.int32) -> Any:
    return np.asarray(values, dtype)


def attack(
    name: str,
    mesh: dict[str, int],
    inputs: dict[str, Any],
    *texts: str,
    policy: str = "partial",
    nightly: bool = False,
) -> Any:
    """A program by hand; a text that begins with ``!`` must be refused. Long ones run with the nightly tests."""
    steps = tuple(Step(f"v{i}", t.removeprefix("!"), t.startswith("!")) for i, t in enumerate(texts))
    marks = [pytest.mark.nightly] if nightly else []
    return pytest.param(Program(mesh, policy, inputs, steps, name), id=name.replace(" ", "_"), marks=marks)


#: Its meshes.
X, XY = {"x": 2}, {"x": 2, "y": 2}
FOUR = floats(4)
