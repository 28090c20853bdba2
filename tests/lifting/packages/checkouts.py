"""Repositories of published programs that are no packages; `python -m tests.lifting.packages.checkouts` gets them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

import pytest

#: Where they lie, one folder for each.
FOLDER: Final = Path(os.environ.get("SHTYPES_CHECKOUTS", Path(__file__).parents[3] / "build" / "checkouts"))


class Checkout(NamedTuple):
    """A commit of a repository."""

    repository: str
    commit: str

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return FOLDER / self.repository.partition("/")[2]

    def module(self, name: str, folder: str = "") -> ModuleType:
        """A module as it was published, imported from a folder; without a checkout, the test is skipped."""
        path = self.folder / folder
        if not path.exists():
            get = "python -m tests.lifting.packages.checkouts"
            pytest.skip(f"no checkout of {self.repository}: {get}", allow_module_level=True)
        before = set(sys.modules)
        sys.path.insert(0, str(path))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what they import
                return importlib.import_module(name)
        finally:
            sys.path.remove(str(path))
            for other in (
                set(sys.modules) - before
            ):  # files that are no packages have names that other programs' have too
                found = sys.modules[other]
                if (
                    "." not in other
                    and not hasattr(found, "__path__")
                    and str(path) in str(getattr(found, "__file__", ""))
                ):
                    del sys.modules[other]


LLMS: Final = Checkout("jax-ml/jax-llm-examples", "8b4b24602e0652100e9835ec6d91fed58bbea472")
FLAX: Final = Checkout("google/flax", "18f8f311c275d57f46d95e41b15aa97b454754c0")
HALIAX: Final = Checkout("stanford-crfm/haliax", "f41e7d40c63dc486b69c5d854270a9158fe3dd39")
RING: Final = Checkout("haoliuhl/ringattention", "6305e2fb15a4ba5402ccfb9b43be97bf3d4437b7")


def _fetch(checkout: Checkout) -> None:
    """Fetches the one commit."""
    checkout.folder.mkdir(parents=True, exist_ok=True)
    git = ["git", "-C", str(checkout.folder)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    source = f"https://github.com/{checkout.repository}"
    subprocess.run([*git, "fetch", "--quiet", "--depth=1", source, checkout.commit], check=True)
    subprocess.run([*git, "checkout", "--quiet", "FETCH_HEAD"], check=True)


if __name__ == "__main__":
    for each in (LLMS, FLAX, HALIAX, RING):
        print(f"{each.repository} at {each.commit[:12]}", flush=True)
        _fetch(each)
