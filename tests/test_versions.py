"""Which Pythons and which JAX are supported: `pyproject.toml` says the oldest, the README the newest tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import jax
import pytest

from shtypes._compat import RELEASES, private
from shtypes._compat.patches import PATCHES, Patch

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OLDEST = next(d.partition(">=")[2] for d in PROJECT["project"]["dependencies"] if d.startswith("jax>="))
PYTHON = PROJECT["project"]["requires-python"].removeprefix(">=")
NAMED = ("README.md", "CONTRIBUTING.md", "Makefile", "constraints.txt", "docs/index.md", ".ci/run")


def text(name: str) -> str:
    return (ROOT / name).read_text()


def releases() -> list[str]:
    """The releases of JAX that the README says are tested, oldest first."""
    found = re.search(r"JAX ([\d., and]+) are tested", text("README.md"))
    assert found
    return re.findall(r"[\d.]*\d", found[1])


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@pytest.mark.parametrize("name", NAMED)
def test_pages_and_scripts_name_the_oldest_versions_that_the_project_asks_for(name: str) -> None:
    found = text(name)
    assert set(re.findall(r"JAX (\d[\d.]*\d) or newer", found)) <= {OLDEST}
    assert set(re.findall(r"Python \d\.\d+ gets JAX ([\d.]*\d)", found)) <= {OLDEST}
    newer = set(re.findall(r"Python (\d\.\d+) or newer", found)) - {"3.12"}  # what the newest JAX needs
    assert newer <= {PYTHON}
    assert set(re.findall(r"sys.version_info < \((\d, \d+)\)", found)) <= {PYTHON.replace(".", ", ")}


def test_readers_find_the_oldest_versions() -> None:
    for page in ("README.md", "docs/index.md"):
        assert f"Python {PYTHON} or newer and JAX {OLDEST} or newer" in text(page)


def test_types_are_checked_and_classified_for_the_oldest_python() -> None:
    assert PROJECT["tool"]["mypy"]["python_version"] == PYTHON
    assert f"Programming Language :: Python :: {PYTHON}" in PROJECT["project"]["classifiers"]


def test_the_releases_that_are_tested_start_with_the_oldest() -> None:
    assert releases()[0] == OLDEST
    assert releases() == sorted(releases(), key=number)
    assert (releases()[0], releases()[-1]) == RELEASES, (
        "the README's limits and `RELEASES` of _compat/__init__.py differ"
    )
    assert number(jax.__version__) >= number(OLDEST)


@pytest.mark.parametrize("name", ["Makefile", "CONTRIBUTING.md"])
def test_examples_name_a_release_that_is_tested(name: str) -> None:
    assert set(re.findall(r"JAX=([\d.]*\d)", text(name))) <= set(releases())


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.path)
def test_the_page_says_up_to_which_release_a_patch_is_needed(patch: Patch) -> None:
    row = next(line for line in text("docs/architecture.md").splitlines() if patch.path in line)
    assert re.findall(r"up to ([\d.]*\d)", row) == ([patch.last] if patch.last else []), row
    assert patch.needed() or patch.last, (
        f"this release does not need the patch of {patch.name}: say which the `last` is"
    )


@pytest.mark.parametrize(("module", "name"), [("jax._src.core", "no_such_name"), ("jax._src.no_such_module", "core")])
def test_a_release_that_lacks_a_private_name_is_refused_by_that_name(module: str, name: str) -> None:
    with pytest.raises(ImportError, match=rf"JAX {jax.__version__} has no `{module}.{name}`"):
        private(module, name)
