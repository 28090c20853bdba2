"""Eight CPU devices, hypothesis profiles, and a clean policy and mesh for every test."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

# JAX reads these when it loads, so they come first. Subprocesses (the command line's tests) inherit them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import hypothesis
import pytest

from shtypes.policy import ENVIRONMENT, set_policy

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> Iterator[None]:
    """Takes what the tests of a file leave alive, traced programs above all, out of the search for garbage."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def clean_context() -> Iterator[None]:
    """Takes back the policy and the mesh that a test leaves set; a pure test never loads JAX for it."""
    yield
    set_policy(os.environ.get(ENVIRONMENT, "partial"))
    if "jax" in sys.modules:
        sys.modules["jax"].set_mesh(None)
