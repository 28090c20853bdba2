"""Batches of host arrays, a few ahead, as typed values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import shtypes as sh

pytestmark = pytest.mark.mesh({"dp": 2, "tp": 2})


def _batches(count: int, taken: list[int]) -> Iterator[dict[str, Any]]:
    for i in range(count):
        taken.append(i)
        yield {"x": np.full((4, 3), i, np.float32), "labels": (np.full(4, i), np.full((), i))}


TYPES = {"x": "f32[batch@dp, _]", "labels": ("i32[batch@dp]", "[]")}


@pytest.mark.parametrize("size", [1, 2, 5])
def test_batches_come_in_order_and_as_many_as_said_are_ahead(size: int) -> None:
    taken: list[int] = []
    for i, batch in enumerate(sh.prefetch_to_device(_batches(4, taken), TYPES, size=size)):
        assert len(taken) == min(i + 1 + size, 4)
        assert [str(t) for t in (batch["x"].type, batch["labels"][0].type)] == ["f32[batch@dp, 3]", "i32[batch@dp]"]
        np.testing.assert_array_equal(np.asarray(batch["x"]), i)
        assert int(batch["labels"][1]) == i
    assert i == 3


def test_one_type_is_for_all_arrays_below() -> None:
    (batch,) = sh.prefetch_to_device([(np.ones(4), {"y": np.ones((4, 2))})], "f32[batch@dp, ...]")
    assert [str(t) for t in (batch[0].type, batch[1]["y"].type)] == ["f32[batch@dp]", "f32[batch@dp, 2]"]


def test_what_a_loader_raises_arrives_after_the_batches_before_it() -> None:
    def failing() -> Iterator[Any]:
        yield np.zeros(4)
        yield np.ones(4)
        raise OSError("the file is gone")

    batches = sh.prefetch_to_device(failing(), "f32[4@dp]", size=3)
    assert [float(np.asarray(next(batches))[0]) for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="the file is gone"):
        next(batches)


def test_a_batch_that_does_not_fit_is_refused_at_the_line_that_takes_it() -> None:
    with pytest.raises(sh.ShardingTypeError, match="3 cannot be sharded in 2") as caught:
        list(sh.prefetch_to_device([np.ones(3)], "[_@dp]"))
    assert caught.value.where.startswith("test_batches.py:")


def test_types_of_another_structure_than_a_batch_are_refused() -> None:
    with pytest.raises(sh.ShardingTypeError, match="of another structure than a batch") as caught:
        list(sh.prefetch_to_device([{"tokens": np.ones(4)}], {"targets": "[_@dp]"}))
    assert caught.value.where.startswith("test_batches.py:")
    assert "tokens" in caught.value.why


def test_none_ahead_is_refused_at_once() -> None:
    with pytest.raises(sh.ShardingTypeError, match="at least 1 batch ahead, not 0"):
        sh.prefetch_to_device([], "f32[4]", size=0)


def test_what_is_no_series_of_batches_is_refused_at_once() -> None:
    for wrong in (3, None):
        with pytest.raises(sh.ShardingTypeError, match="takes batches one after another") as caught:
            sh.prefetch_to_device(wrong, "f32[4]")  # type: ignore[arg-type]
        assert caught.value.where.startswith("test_batches.py:")
        assert "not iterable" in caught.value.why
