"""One cache of mypy for the tests of a worker: to read the package and its libraries is most of a run."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.editor.running import configured, run_mypy, stop_server


@pytest.fixture(scope="session")
def mypy_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A worker's copy of the cache that the first of them fills."""
    own = tmp_path_factory.getbasetemp() / "mypy_cache"
    run = tmp_path_factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else own.parent
    first, config = run / "first_mypy_cache", configured(tmp_path_factory.mktemp("empty"))
    with (run / "first_mypy_cache.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not first.exists():
            run_mypy(["-c", "import shtypes"], config, first)
    shutil.copytree(first, own)
    yield own
    stop_server()
