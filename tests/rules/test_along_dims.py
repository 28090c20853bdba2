"""Ops along dims that every device must hold whole, against the meaning oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules import along_dims, elementwise
from shtypes.rules.along_dims import ResultDims, unary_along
from shtypes.rules.typing import Typing
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.policy import policy
from tests.meaning import Array, Site
from tests.rules.cases import Case, case, problems

MESH = Mesh({"x": 2, "y": 4})


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


def whole_case(
    name: str,
    shape: tuple[int, ...],
    along: tuple[int, ...],
    f: Callable[[Array], Array],
    *,
    linear: bool,
    sources: Sequence[int | None] | None = None,
) -> Case:
    """An op that acts along dims, as `rules.unary_along` types it from the shape that it makes."""
    out = f(np.zeros(shape, np.int64)).shape
    dims = tuple(zip(out, range(len(out)) if sources is None else sources, strict=True))
    return case(
        f"{name} {shape}",
        [shape],
        lambda operands, site: np.asarray(f(operands[0])),
        lambda types: unary_along(name, types[0], along, (ResultDims("f32", dims),), linear),
    )


def _band(operands: Sequence[Array], site: Site) -> Array:
    """``tril`` by the global index."""
    (x,), (start,) = operands, site.starts
    rows, columns = (np.arange(n) + at for n, at in zip(x.shape[-2:], start[-2:], strict=True))
    return np.asarray(x * (columns <= rows[:, None] + 1))


def _trace(operands: Sequence[Array], site: Site) -> Array:
    (x,), (start,) = operands, site.starts
    rows, columns = (np.arange(n) + at for n, at in zip(x.shape, start, strict=True))
    return np.asarray((x * (columns == rows[:, None] + 1)).sum())


def _one_of(typing: Typing, index: int) -> Typing:
    return Typing(typing.operands, typing.results[index : index + 1])


def cases(n: int) -> list[Case]:
    m = 2 * n
    return [
        whole_case("pad 0", (m, n), (0,), lambda x: np.pad(x, ((1, n - 1), (0, 0))), linear=True),
        whole_case("tile", (m, n), (1,), lambda x: np.tile(x, (1, 2)), linear=True),
        whole_case("roll", (m, n), (0,), lambda x: np.roll(x, 1, 0), linear=True),
        whole_case("sort", (m, n), (1,), lambda x: x.sum(1, keepdims=True) * x, linear=False),
        whole_case(
            "inv",
            (m, n, n),
            (1, 2),
            lambda x: np.einsum("bij,bjk->bik", x, x),
            linear=False,
            sources=(0, None, None),
        ),
        whole_case("det", (m, n), (1,), lambda x: x.sum(1) ** 2, linear=False, sources=(0,)),
        case(
            "split",
            [(m, n)],
            lambda operands, site: operands[0][:, n // 2 :],
            lambda types: _one_of(
                unary_along(
                    "split",
                    types[0],
                    (1,),
                    (ResultDims("f32", ((m, 0), (n // 2, 1))), ResultDims("f32", ((m, 0), (n - n // 2, 1)))),
                    True,
                ),
                1,
            ),
        ),
        case("tril", [(m, m)], _band, lambda types: elementwise.linear_unary("tril", types[0], "f32")),
        case("trace", [(m, m)], _trace, lambda types: along_dims.reduce_sum("trace", types[0], (0, 1), False, "f32")),
    ]


_NAMES = [c.op.name for c in cases(2)]


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("index", range(len(_NAMES)), ids=_NAMES)
def test_rules_along_dims_are_what_the_meanings_say(index: int, n: int) -> None:
    assert problems(cases(n)[index], (n,)) == []


@pytest.mark.one_in(13)
@pytest.mark.parametrize("index", [0, 3, 7, 8], ids=lambda i: _NAMES[i])
def test_rules_along_dims_are_right_on_two_by_two_devices_and_under_the_other_policy(index: int) -> None:
    with policy("jax"):
        assert problems(cases(2)[index], (2, 2)) == []


def test_a_dim_of_another_size_has_no_name() -> None:
    made = ResultDims("f32", ((8, 0), (20, 1)))
    (got,) = unary_along("pad", t("f32[seq=8@x,hidden=16]"), (1,), (made,), True).results
    assert (got, got.names) == (t("f32[8@x,20]"), ("seq", None))


def test_an_error_names_every_axis_of_every_dim_that_must_be_whole() -> None:
    with pytest.raises(ShardingTypeError) as info:
        unary_along("inv", t("f32[8@x,8@y]"), (0, 1), (ResultDims("f32", ((8, None), (8, None))),), False)
    assert info.value.axes == ("x", "y")
    assert info.value.what == "`inv` acts along dim 0, which is sharded on mesh axis `x`"
