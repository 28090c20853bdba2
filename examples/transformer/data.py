"""Text that is on every machine: the sources of Python's standard library, a token for each byte."""

from __future__ import annotations

import functools
import itertools
import pathlib
import sysconfig
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

import shtypes as sh

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@functools.cache
def text(part: Literal["train", "held"]) -> Bytes:
    """The modules of the standard library, one after the other; each tenth is held back from training."""
    files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    held = files[::10]
    wanted = held if part == "held" else [file for file in files if file not in held]
    return np.frombuffer(b"\0".join(file.read_bytes() for file in wanted), np.uint8)


def batches(source: Bytes, type: str | sh.ShType, first: int = 0) -> Iterator[Batch]:
    """Tokens and what follows each, as i32: this process's rows of each batch from number ``first`` on.

    A batch depends on its number alone, so that a run that was interrupted goes on with the batches that it would have
    had, in however many processes.

    Args:
        source: The text to take windows of.
        type: The type of the tokens of a batch, with its sizes.
        first: The number of the first batch.
    """
    batch, length = sh.ShType.parse(type).shape if isinstance(type, str) else type.shape
    rows, places = sh.addressable_slices(type)
    for number in itertools.count(first):
        starts = np.random.default_rng(number).integers(0, len(source) - length, batch)[rows]
        windows = source[starts[:, None] + np.arange(length + 1)].astype(np.int32)
        yield windows[:, :-1][:, places], windows[:, 1:][:, places]
