"""Garbage collections while programs are decided: fewer of them, and afterwards as before."""

from __future__ import annotations

import gc

import pytest

from shtypes.context.garbage import fewer_collections


@pytest.mark.parametrize("threshold", [(700, 10, 10), (0, 10, 10), (10**6, 5, 5)], ids=str)
def test_collections_are_as_before_after_the_outermost_scope(threshold: tuple[int, int, int]) -> None:
    before = gc.get_threshold()
    gc.set_threshold(*threshold)
    try:
        one, other = fewer_collections(), fewer_collections()
        one.__enter__()
        other.__enter__()
        assert (gc.get_threshold() == threshold) is (threshold[0] != 700)
        one.__exit__(None, None, None)  # as of two threads
        other.__exit__(None, None, None)
        assert gc.get_threshold() == threshold
    finally:
        gc.set_threshold(*before)
