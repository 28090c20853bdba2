"""Runs the command in this process, and says what it printed and how it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from shtypes.tools.cli import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*args: str) -> Ran:
        path = list(sys.path)
        with pytest.raises(SystemExit) as ended:
            main(args)
        sys.path[:] = path  # a process of the command ends here, and leaves nothing behind
        code = ended.value.code
        return Ran(code if isinstance(code, int) else int(bool(code)), *capsys.readouterr())

    return run
