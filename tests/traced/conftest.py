"""A mesh, and each policy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import shtypes as sh
from tests.traced.random_programs import AXES


@pytest.fixture
def on_a_mesh() -> Iterator[None]:
    with sh.use_mesh(sh.make_mesh(AXES)):
        yield


@pytest.fixture(params=["partial", "jax"])
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    with sh.policy(request.param):
        yield request.param
