"""Ops that move elements, against JAX on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import check, sampled, some, source

rng = np.random.default_rng(3)
X = rng.normal(size=(4, 8)).astype(np.float32)
Z = rng.normal(size=(4, 1, 8)).astype(np.float32)
AXES = {"x": 2, "y": 2}
BAD: Any = "ab"  # where integers belong


@pytest.fixture(autouse=True)
def mesh() -> Iterator[Any]:
    with sh.use_mesh(sh.make_mesh(AXES)) as found:
        yield found


FORMS: dict[str, tuple[Callable[..., Any], Any]] = {
    "T": (lambda m, x: x.T, X),
    "mT": (lambda m, x: x.mT, Z),
    "transpose": (lambda m, x: m.transpose(x, (2, -3, 1)), Z),
    "transpose by method": (lambda m, x: x.transpose(1, 0, 2), Z),
    "transpose of nothing": (lambda m, x: x.transpose((0, 1)), X),
    "permute_dims": (lambda m, x: m.permute_dims(x, (1, 0)), X),
    "matrix_transpose": (lambda m, x: m.matrix_transpose(x), Z),
    "swapaxes": (lambda m, x: m.swapaxes(x, 0, -1), Z),
    "moveaxis": (lambda m, x: m.moveaxis(x, 0, -1), Z),
    "moveaxis of two": (lambda m, x: m.moveaxis(x, (0, 1), (-1, 0)), Z),
    "reshape splits": (lambda m, x: m.reshape(x, (2, 2, 8)), X),
    "reshape splits minor": (lambda m, x: x.reshape(4, 2, -1), X),
    "reshape merges": (lambda m, x: x.reshape(-1), X),
    "reshape regroups": (lambda m, x: x.reshape((8, 4)), X),
    "reshape drops ones": (lambda m, x: x.reshape(4, 8, 1), Z),
    "reshape by name": (lambda m, x: m.reshape(x, shape=(np.int64(32),)), X),
    "ravel": (lambda m, x: m.ravel(x), X),
    "broadcast_to": (lambda m, x: m.broadcast_to(x, (2, 4, 8)), X),
    "broadcast_to stretches": (lambda m, x: m.broadcast_to(x, (4, 3, 8)), Z),
    "broadcast_in_dim": (lambda m, x: m.broadcast_in_dim(x, (4, 3, 8, 2), (0, 2)), X),
    "expand_dims": (lambda m, x: m.expand_dims(x, -1), X),
    "expand_dims of two": (lambda m, x: m.expand_dims(x, (0, 2)), X),
    "squeeze": (lambda m, x: m.squeeze(x), Z),
    "squeeze one": (lambda m, x: x.squeeze(1), Z),
    "a chain": (lambda m, x: m.swapaxes(x.reshape(4, 4, 2), 0, 1).reshape(4, 8) * 2, X),
}


@pytest.mark.one_in(4)
@pytest.mark.core
@pytest.mark.parametrize("axes", [{"x": 2}, AXES], ids=lambda axes: "x".join(map(str, axes.values())))
def test_every_move_that_types_is_right_forward_and_backward(axes: dict[str, int]) -> None:
    mesh = sh.make_mesh(axes)
    cases = [
        c
        for i, (name, (fn, x)) in enumerate(FORMS.items())
        for c in sampled(mesh, fn, x, id=name, count=some(2, 6), seed=i)
    ]
    assert len(cases) > len(FORMS)
    check(mesh, cases)


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
