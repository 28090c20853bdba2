"""The rule of products over dims that no equation names, against the meaning oracle: convolutions, solutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from jax import lax

from shtypes.errors import ShardingTypeError
from shtypes.rules import Typing
from shtypes.rules.einsum_like import ProductDims, contraction, conv_plan
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from tests.meaning import Array, Site
from tests.rules.cases import Case, case, problems

NUMBERS = lax.ConvDimensionNumbers((0, 1, 2), (0, 1, 2), (0, 1, 2))
MESH = Mesh({"x": 2, "y": 4})


def _convolve(operands: Sequence[Array], site: Site) -> Array:
    """Batch, features and positions by made features, features and window; the groups are those that fit."""
    x, w = operands
    groups, made = x.shape[1] // w.shape[1], w.shape[0]
    if not groups or made % groups or x.shape[1] % w.shape[1]:
        raise ValueError("the groups do not fit")
    xs = x.reshape(x.shape[0], groups, w.shape[1], x.shape[2])
    ws = w.reshape(groups, made // groups, w.shape[1], w.shape[2])
    last = x.shape[2] - w.shape[2] + 1
    parts = [np.einsum("ngcs,gocs->ngo", xs[..., i : i + w.shape[2]], ws) for i in range(last)]
    return np.stack(parts, -1).reshape(x.shape[0], made, last)


def _conv_case(x: tuple[int, ...], w: tuple[int, ...]) -> Case:
    shape = (x[0], w[0], x[2] - w[2] + 1)
    plan = conv_plan(NUMBERS, shape, x[1] // w[1], alone=[0] if w[2] == 1 else [])
    return case(f"conv {x} {w}", [x, w], _convolve, lambda types: contraction("conv", types, plan, "f32"))


@pytest.mark.parametrize(
    "op", [_conv_case((2, 2, 4), (2, 2, 2)), _conv_case((1, 4, 3), (4, 2, 2)), _conv_case((2, 2, 2), (2, 2, 1))],
    ids=lambda op: op.op.name,
)  # fmt: skip
def test_convolutions_are_what_the_meanings_say(op: Case) -> None:
    assert problems(op, (2,)) == []


def _solve(operands: Sequence[Array], site: Site) -> Array:
    """Linear in the right-hand side, quadratic in the matrices."""
    a, b = operands
    return np.asarray(np.einsum("...ij,...jk,...kl->...il", a, a, b))


@pytest.mark.parametrize("n", [2, 3])
def test_systems_that_are_linear_in_the_right_hand_side_alone_are_what_the_meanings_say(n: int) -> None:
    labels = ("batch", "equation", "unknown"), ("batch", "row", "column")
    result = ("batch", n), ("row", 2 * n), ("column", n)
    plan = ProductDims(labels, result, frozenset(("equation", "unknown", "row")), nonlinear=frozenset({0}))
    shapes = [(n, 2 * n, 2 * n), (n, 2 * n, n)]
    assert problems(case("solve", shapes, _solve, lambda types: contraction("solve", types, plan, "f32")), (n,)) == []


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


def conv(x: str, w: str, groups: int = 1) -> Typing:
    operands = (t(x), t(w))
    shape = (operands[0].shape[0], operands[1].shape[0], operands[0].shape[2] - operands[1].shape[2] + 1)
    return contraction("conv", operands, conv_plan(NUMBERS, shape, groups), "f32")


@pytest.mark.parametrize(
    ("x", "w", "groups", "out"),
    [
        ("f32[batch=8@x,c=4,6]", "f32[o=8@y,c=4,3]", 1, "f32[batch=8@x,o=8@y,4]"),
        ("f32[batch=8@x,c=4@y,6]", "f32[o=8,c=4,3]", 1, "f32[batch=8@x,o=8,4]{U:y}"),
        ("f32[8,4@y,6]", "f32[o=16,1,3]", 4, "f32[8,o=16@y,4]"),
        ("f32[8,4,6]{U:x}", "f32[8,4,3]{I:x}", 1, "f32[8,8,4]{U:x}"),
    ],
)
def test_results_have_the_axes_and_names_of_their_dims(x: str, w: str, groups: int, out: str) -> None:
    (result,) = conv(x, w, groups).results
    assert (result, result.names) == (t(out), t(out).names)


@pytest.mark.parametrize(
    ("x", "w", "groups", "what"),
    [
        ("f32[8,4,6@x]", "f32[8,4,3]", 1, "`conv` acts along dim 2, which is sharded on mesh axis `x`"),
        ("f32[8,4@x,6]", "f32[8@x,4,3]", 1, "`conv` meets two different dims sharded on mesh axis `x`"),
        (
            "f32[8,8@(x,y),6]",
            "f32[4,4,3]",
            2,
            "`conv` has 2 groups along dim 1, which is sharded on mesh axes `x`, `y`",
        ),
        ("f32[8,8,6]", "f32[4,4@x,3]", 2, "`conv` acts along dim 1, which is sharded on mesh axis `x`"),
        ("f32[8,4,6]{U:x}", "f32[8,4,3]{U:x}", 1, "`conv` cannot combine unreduced with unreduced"),
    ],
)
def test_what_needs_other_devices_is_refused(x: str, w: str, groups: int, what: str) -> None:
    with pytest.raises(ShardingTypeError) as info:
        conv(x, w, groups)
    assert info.value.what.startswith(what)


def test_counts_are_no_terms_of_a_sum() -> None:
    plan = ProductDims((("rows",), ("groups",)), (("rows", 8),), frozenset({"groups"}), ids=frozenset({1}))
    with pytest.raises(ShardingTypeError, match="`ragged_dot` is nonlinear in rhs"):
        contraction("ragged_dot", (t("f32[8]"), t("i32[4]{U:x}")), plan, "f32")
