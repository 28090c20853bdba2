"""Ops that move elements, against JAX on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import source

rng = np.random.default_rng(3)
X = rng.normal(size=(4, 8)).astype(np.float32)
AXES = {"x": 2, "y": 2}
BAD: Any = "ab"  # where integers belong


@pytest.fixture(autouse=True)
def mesh() -> Iterator[Any]:
    with sh.use_mesh(sh.make_mesh(AXES)) as found:
        yield found


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: sh.transpose(x, (0, 0)),
        lambda x: sh.transpose(x, (0,)),
        lambda x: sh.transpose(x, BAD),
        lambda x: sh.swapaxes(x, 0, 2),
        lambda x: sh.moveaxis(x, 0, 5),
        lambda x: sh.moveaxis(x, 7, 0),
        lambda x: sh.moveaxis(x, (0, 0), (0, 1)),
        lambda x: sh.moveaxis(x, BAD, 0),
        lambda x: sh.reshape(x, (5, -1)),
        lambda x: sh.reshape(x, (-1, -1)),
        lambda x: sh.reshape(x, "ab"),
        lambda x: sh.reshape(x, (4.0, 8)),
        lambda x: x.reshape(None),
        lambda x: sh.broadcast_to(x, (8,)),
        lambda x: sh.broadcast_to(x, (4, 9)),
        lambda x: sh.broadcast_to(x, BAD),
        lambda x: sh.broadcast_in_dim(x, (4, 3, 8), (2, 0)),
        lambda x: sh.expand_dims(x, 5),
        lambda x: sh.expand_dims(x, (0, 0)),
        lambda x: sh.squeeze(x, 0),
        lambda x: sh.squeeze(x, BAD),
        lambda x: sh.reshape(sh.reshard(x, y=1), (-1,)),
        lambda x: sh.matrix_transpose(sh.sum(x)),
    ],
    ids=source,
)
def test_bad_arguments_are_refused_with_the_line(fn: Callable[[Any], Any]) -> None:
    with pytest.raises(sh.ShardingTypeError) as raised:
        fn(sh.array(X, "[4@x,8]"))
    assert raised.value.where.startswith("test_shape.py:")
