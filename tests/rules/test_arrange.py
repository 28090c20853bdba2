"""Ops along whole dims, and those that know where a device's elements are, against the meaning oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules import arrange, elementwise, linalg, reduce
from shtypes.rules.typing import Typing
from shtypes.rules.whole import WholeResult, nonlinear_along_all, whole
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
    """An op that acts along dims, as `rules.whole` types it from the shape that it makes."""
    out = f(np.zeros(shape, np.int64)).shape
    dims = tuple(zip(out, range(len(out)) if sources is None else sources, strict=True))
    return case(
        f"{name} {shape}",
        [shape],
        lambda operands, site: np.asarray(f(operands[0])),
        lambda types: whole(name, types[0], along, (WholeResult("f32", dims),), linear),
    )


def _band(operands: Sequence[Array], site: Site) -> Array:
    """``tril`` by the global index."""
    (x,), (start,) = operands, site.starts
    rows, columns = (np.arange(n) + at for n, at in zip(x.shape[-2:], start[-2:], strict=True))
    return np.asarray(x * (columns <= rows[:, None] + 1))


def _diag(operands: Sequence[Array], site: Site) -> Array:
    """The own rows of a diagonal matrix."""
    (v,), ((start,),) = operands, site.starts
    out = np.zeros((len(v), site.out_shape[1]), v.dtype)
    if site.out_shape[0] != len(v) or start + len(v) > site.out_shape[1]:
        raise ValueError
    out[np.arange(len(v)), start + np.arange(len(v))] = v
    return out


def _diagonal(operands: Sequence[Array], site: Site) -> Array:
    """The element right of the main diagonal in each row."""
    (x,), (start,) = operands, site.starts
    columns = np.arange(len(x)) + start[0] + 1 - start[1]
    if columns[0] < 0 or columns[-1] >= x.shape[1]:
        raise ValueError
    return np.asarray(x[np.arange(len(x)), columns])


def _trace(operands: Sequence[Array], site: Site) -> Array:
    (x,), (start,) = operands, site.starts
    rows, columns = (np.arange(n) + at for n, at in zip(x.shape, start, strict=True))
    return np.asarray((x * (columns == rows[:, None] + 1)).sum())


def _apart(operands: Sequence[Array]) -> Array:
    """Linear in the right-hand side, quadratic in the matrices."""
    a, b = operands
    return np.asarray(np.einsum("...ij,...jk,...kl->...il", a, a, b))


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
                whole(
                    "split",
                    types[0],
                    (1,),
                    (WholeResult("f32", ((m, 0), (n // 2, 1))), WholeResult("f32", ((m, 0), (n - n // 2, 1)))),
                    True,
                ),
                1,
            ),
        ),
        case(
            "repeat",
            [(m, n)],
            lambda operands, site: np.repeat(operands[0], 3, 0),
            lambda types: arrange.repeat(types[0], 0, 3),
        ),
        case("tril", [(m, m)], _band, lambda types: elementwise.linear_unary("tril", types[0], "f32")),
        case("diag", [(m,)], _diag, lambda types: arrange.diag(types[0]), out_shape=(m, m)),
        case("diagonal", [(n, m)], _diagonal, lambda types: arrange.diagonal(types[0], 0, 1, n)),
        case("trace", [(m, m)], _trace, lambda types: reduce.reduce_sum(types[0], (0, 1), False, "f32", "trace")),
        case(
            "solve",
            [(n, m, m), (n, m, n)],
            lambda operands, site: _apart(operands),
            lambda types: linalg.solve(types[0], types[1], False, "f32"),
        ),
        case(
            "solve one",
            [(m, m), (m,)],
            lambda operands, site: operands[0] @ operands[0] @ operands[1],
            lambda types: linalg.solve(types[0], types[1], True, "f32"),
        ),
        case(
            "solve from the right",
            [(n, m, m), (n, n, m)],
            lambda operands, site: _apart([operands[0], operands[1].swapaxes(1, 2)]).swapaxes(1, 2),
            lambda types: linalg.solve(types[0], types[1], False, "f32", left=False),
        ),
        case(
            "masked softmax",
            [(m, n), (n,)],
            lambda operands, site: (operands[0] * operands[1] ** 2).sum(1, keepdims=True) * operands[0],
            lambda types: nonlinear_along_all("softmax", types, (1,), "f32", frozenset({1})),
            constants=frozenset({1}),
        ),
    ]


_NAMES = [c.op.name for c in cases(2)]


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("index", range(len(_NAMES)), ids=_NAMES)
def test_rules_along_dims_are_what_the_meanings_say(index: int, n: int) -> None:
    assert problems(cases(n)[index], (n,)) == []


@pytest.mark.one_in(6)
@pytest.mark.parametrize("index", [0, 3, 7, 8, 9, 10, 11, 13], ids=lambda i: _NAMES[i])
def test_rules_along_dims_are_right_on_two_by_two_devices_and_under_the_other_policy(index: int) -> None:
    with policy("jax"):
        assert problems(cases(2)[index], (2, 2)) == []


def test_a_dim_of_another_size_has_no_name() -> None:
    made = WholeResult("f32", ((8, 0), (20, 1)))
    (got,) = whole("pad", t("f32[seq=8@x,hidden=16]"), (1,), (made,), True).results
    assert (got, got.names) == (t("f32[8@x,20]"), ("seq", None))
    (got,) = arrange.repeat(t("f32[seq=8@x,hidden=16]"), 0, 2).results
    assert (got, got.names) == (t("f32[16@x,16]"), (None, "hidden"))


def test_an_error_names_every_axis_of_every_dim_that_must_be_whole() -> None:
    with pytest.raises(ShardingTypeError) as info:
        whole("inv", t("f32[8@x,8@y]"), (0, 1), (WholeResult("f32", ((8, None), (8, None))),), False)
    assert info.value.axes == ("x", "y")
    assert info.value.what == "`inv` acts along dim 0, which is sharded on mesh axis `x`"


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: arrange.repeat(t("f32[8]"), 0, -1), "`repeat` needs a count of at least 0, not -1"),
        (lambda: arrange.repeat(t("f32[8@x]"), 0, 0), "`repeat` acts along dim 0, which is sharded on mesh axis `x`"),
        (
            lambda: linalg.solve(t("f32[4,4]{U:x}"), t("f32[4,2]"), False, "f32"),
            "`solve` is nonlinear in the matrix, which is unreduced on mesh axis `x`",
        ),
        (
            lambda: linalg.solve(t("f32[4,4]"), t("f32[4@x,2]"), False, "f32"),
            "`solve` acts along dim 0, which is sharded on mesh axis `x`",
        ),
        (
            lambda: linalg.solve(t("f32[4,8]"), t("f32[4,2]"), False, "f32"),
            "`solve` needs square matrices and right-hand sides of as many rows",
        ),
        (
            lambda: nonlinear_along_all("softmax", (t("f32[8,4]"), t("f32[8,4@x]")), (1,), "f32"),
            "`softmax` acts along dim 1, which is sharded on mesh axis `x`",
        ),
    ],
)
def test_what_does_not_type_says_why(call: Callable[[], Typing], what: str) -> None:
    with pytest.raises(ShardingTypeError) as info:
        call()
    assert info.value.what == what
