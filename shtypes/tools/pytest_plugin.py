"""The pytest plugin: a marker, fixtures and assertions about communication. JAX is imported only when a test needs it.

- ``@pytest.mark.no_comm``, ``no_comm("forward")``, ``no_comm("backward")``: forbids communication in the test.
- ``abstract_mesh(dp=2, tp=4)``: sets a mesh without devices until the test ends.
- ``each_policy``: runs the test under "partial" and under "jax".
- ``assert_comm(f, *args, forward=..., backward=...)``: `shtypes.assert_comm`, which also takes types as strings.
- ``pinned_comm(f, *args)``: compares the communication of ``f`` with a file beside the test; ``--update-comm`` writes
it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import shtypes as sh
from shtypes.types import ShType
from shtypes.types.policy import current_policy, policy

#: The folder, beside a test file, of pinned communication.
FOLDER: Final = "__comm__"
_MARKER: Final = (
    'no_comm(direction="both"): what the test traces must not communicate, forward, backward or both (shtypes)'
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--update-comm``."""
    group = parser.getgroup("shtypes")
    group.addoption("--update-comm", action="store_true", help="Write what tests with `pinned_comm` communicate.")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Runs a marked test in a scope without communication."""
    marker = item.get_closest_marker("no_comm")
    if marker is None:
        return (yield)
    try:
        scope = sh.no_comm(*marker.args, **marker.kwargs)
    except (TypeError, sh.ShardingTypeError) as error:
        raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.no_comm: {error}") from None
    with scope:
        return (yield)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explains two different types by mesh axis, and two different ledgers by collective."""
    if op != "==":
        return None
    if isinstance(left, ShType) and isinstance(right, ShType):
        return [f"{left} == {right}", *_type_differences(left, right)]
    module = sys.modules.get("shtypes.traced.ledger")
    if module is not None and isinstance(left, module.Ledger) and isinstance(right, module.Ledger):
        from shtypes.analysis import golden

        records = (golden.record(ledger, Path.cwd()) for ledger in (right, left))
        return ["the ledgers differ (- only right, + only left)", *golden.differences("", *records)[1:]]
    return None


def _type_differences(left: Any, right: Any) -> Iterator[str]:
    if left.mesh is not right.mesh:
        yield f"mesh: {left.mesh} and {right.mesh}"
        return
    if left.dtype_name != right.dtype_name:
        yield f"dtype: {left.dtype_name} and {right.dtype_name}"
    if left.shape != right.shape:
        yield f"shape: {left.shape} and {right.shape}"
    for axis in left.mesh.axis_names:
        states = [_state(t, axis) for t in (left, right)]
        if states[0] != states[1]:
            yield f"mesh axis {axis}: {states[0]} and {states[1]}"
    if [d.axes for d in left.dims] != [d.axes for d in right.dims] and left.states == right.states:
        yield f"sharding: {[d.axes for d in left.dims]} and {[d.axes for d in right.dims]}"


def _state(t: Any, axis: str) -> str:
    dim = t.dim_of(axis)
    name: str = t.state(axis).name.lower()
    return name if dim is None else f"{name} (dim {dim})"


# fixtures


@pytest.fixture
def abstract_mesh() -> Iterator[Callable[..., Any]]:
    """Makes a mesh without devices, ``abstract_mesh(dp=2, tp=4)``, and sets it until the test ends."""
    with contextlib.ExitStack() as scopes:

        def make(**axes: int) -> Any:
            mesh = sh.abstract_mesh(axes)
            scopes.enter_context(sh.use_mesh(mesh))
            return mesh

        yield make


@pytest.fixture(params=["partial", "jax"])
def each_policy(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test under both policies; its value is the policy's name."""
    with policy(request.param):
        yield request.param


@pytest.fixture
def assert_comm() -> Callable[..., Any]:
    """`shtypes.assert_comm`."""

    def check(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        return sh.assert_comm(f, *args, **options)

    return check


@pytest.fixture
def pinned_comm(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Compares the communication of a function with a file beside the test, ``__comm__/<test file>.json``.

    ``pinned_comm(f, *args, grad=True, name="step")``: the arguments are values, types or types as strings; ``grad``
    adds the backward pass; ``name`` separates several in one test. ``pytest --update-comm`` writes the file.
    """
    test = re.sub(r"\W+", "-", request.node.name).strip("-") if request.node.name.isascii() else request.node.name
    path = Path(request.node.path)
    file = path.parent / FOLDER / f"{path.stem}.json"

    def check(f: Callable[..., Any], *args: Any, grad: bool = False, name: str = "", **kwargs: Any) -> Any:
        __tracebackhide__ = True
        from shtypes.analysis import golden
        from shtypes.analysis.check import signature_of
        from shtypes.analysis.target import target_of

        ledger = signature_of(target_of(f, args, kwargs), grad=grad).ledger
        record = golden.record(ledger, request.config.rootpath, policy=current_policy(), grad=grad)
        key = f"{test}:{name}" if name else test
        if request.config.getoption("--update-comm"):
            with _locked(file):
                golden.write(file, {**golden.read(file), key: record})
            return ledger
        lines = golden.differences(key, golden.read(file).get(key), record)
        if lines:
            pytest.fail("\n".join([*lines, "if that is meant: pytest --update-comm"]), pytrace=False)
        return ledger

    return check


@contextlib.contextmanager
def _locked(file: Path, seconds: float = 30.0) -> Iterator[None]:
    """Locks the file against other processes of the same run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = file.with_suffix(".lock")
    until = time.monotonic() + seconds
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            if time.monotonic() > until:
                raise pytest.UsageError(f"`{lock}` is there: another run writes, or one was cut off") from None
            time.sleep(0.01)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
