"""Eight CPU devices, hypothesis profiles, and a clean policy and mesh for every test."""

from __future__ import annotations

import fcntl
import gc
import importlib.metadata
import os
import pathlib
import sys
from collections.abc import Generator, Iterator

# JAX reads these when it loads, so they come first. Subprocesses (the command line's tests) inherit them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

# Thousands of small programs are compiled, and each runs once or twice: XLA need not make them quick. Only the machine
# code differs, not what the partitioner makes. What the caller says in XLA_FLAGS comes last, and counts.
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_parallel_codegen_split_count=1",  # a small program is not worth splitting: a sixth of compiling
        # Later releases do not know it, and stop. These emitters are most of the time that compiling takes.
        "--xla_cpu_use_fusion_emitters=false" * importlib.metadata.version("jaxlib").startswith("0.10."),
        os.environ.get("XLA_FLAGS", ""),
    ]
)

# Nobody reads the Python frames in a lowered program, which take a tenth of a test's time, and without them programs of
# several tests are the same.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

# No folder is set for programs that later processes may read, but of each JAX makes the key: a tenth of compiling.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

import shtypes as sh
from shtypes.context.settings import ENVIRONMENT
from shtypes.types.policy import set_policy

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=20)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(PROFILE := os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Numbers and texts of our sources are examples too, one in twenty; to find them each worker parses every file.
if PROFILE == "ci":
    providers._get_local_constants = lambda: providers._local_constants


# Traced programs are many small objects that live on: looked through at JAX's pace, they cost a fifth of the time.
gc.set_threshold(100_000, 20, 20)


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Leaves out the programs of other packages, all nightly, where they do not run: to import those takes seconds."""
    return True if collection_path.name == "packages" and "not nightly" in config.getoption("markexpr") else None


@pytest.hookimpl(trylast=True)  # once a test has its cases
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Marks all but one in ``n`` cases of a test that says so as nightly, and makes no nightly case that is not run."""
    calls, mark_of = metafunc._calls, metafunc.definition.get_closest_marker
    if (one_in := mark_of("one_in")) is not None:
        for i, call in enumerate(calls):
            call.marks.extend([pytest.mark.nightly.mark] if i % one_in.args[0] else [])
    if "not nightly" in metafunc.config.getoption("markexpr"):  # most of all cases: to make them takes seconds
        run = [call for call in calls if all(mark.name != "nightly" for mark in call.marks)]
        calls[:] = calls[:1] if mark_of("nightly") or not run else run


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collects by one worker at a time: the others read what the first one has compiled, which takes half as long."""
    with (session.config.rootpath / "pyproject.toml").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_finish() -> None:
    """What is imported by now stays: nobody need look through it for garbage."""
    if "jax" in sys.modules:
        from tests.compiling import compile_each_program_once

        compile_each_program_once()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> Iterator[None]:
    """Lets go of what the tests of a file traced and compiled: it is no other file's."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def clean_context(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sets the mesh that a test is marked with, and takes back the policy and the mesh; a pure test never loads JAX."""
    mark = request.node.get_closest_marker("mesh")
    if mark is not None:
        sh.set_mesh(sh.make_mesh(*mark.args))
    yield
    set_policy(os.environ.get(ENVIRONMENT, "partial"))
    if "jax" in sys.modules:
        sys.modules["jax"].set_mesh(None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how much processor time the run took, with its workers and what they started."""
    spent = os.times()
    terminalreporter.write_line(f"processor time: {sum(spent[:4]):.0f} s")
