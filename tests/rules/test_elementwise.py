"""Constants, names, casts and messages of elementwise rules; their states are judged by the meaning oracle."""

from __future__ import annotations

import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules.elementwise import additive, cast, divide, linear_unary, multilinear, narrows, nonlinear, select_n
from shtypes.rules.typing import Typing
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.policy import policy

MESH = Mesh({"x": 2, "y": 4})
SECOND = frozenset({1})


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


@pytest.mark.parametrize(("name", "word"), [("partial", "R"), ("jax", "I")])
def test_a_result_of_constants_alone_is_replicated_as_the_policy_says(name: str, word: str) -> None:
    ids = t("i32[8]")
    with policy(name):
        assert additive("add", (ids, ids), "f32").results[0].canonical() == f"f32[8]{{{word}:(x,y)}}"
        assert nonlinear("exp", (ids,), "f32").results[0].canonical() == f"f32[8]{{{word}:(x,y)}}"
        assert cast(ids, "f32").results[0].canonical() == f"f32[8]{{{word}:(x,y)}}"


@pytest.mark.parametrize("given", ["f32[8@x]{R:y}", "f32[8]{U:x,R:y}", "f32[8]{V:(x,y)}"])
def test_a_constant_term_becomes_what_the_other_term_is(given: str) -> None:
    one = ShType.parse("f32[8]{R:(x,y)}", MESH)
    typing = additive("add", (t(given), one), "f32", SECOND)
    assert typing.operands == (t(given), t(given))
    assert typing.results == (t(given),)


def test_a_constant_costs_no_cast_beside_an_invariant_operand() -> None:
    weight, one = t("f32[8]{I:(x,y)}"), t("f32[]{R:(x,y)}")
    assert multilinear("mul", (weight, one), "f32", SECOND) == Typing((weight, one), (weight,))


def test_where_no_gradient_flows_invariant_and_reduced_meet_without_a_cast() -> None:
    lhs, rhs = t("f32[8]{I:(x,y)}"), t("f32[8]{R:(x,y)}")
    assert nonlinear("less", (lhs, rhs), "bool") == Typing((lhs, rhs), (t("bool[8]"),))


def test_a_cached_typing_keeps_the_names_of_its_own_operands() -> None:
    plain, named = t("f32[8@x]"), t("f32[seq=8@x]")
    assert multilinear("mul", (plain, plain), "f32").results[0].names == (None,)
    assert multilinear("mul", (plain, named), "f32").results[0].names == ("seq",)
    assert linear_unary("neg", named, "f32").results[0].names == ("seq",)


def test_equal_arguments_give_the_same_typing() -> None:
    assert multilinear("mul", (t("f32[8]"), t("f32[8]")), "f32") is multilinear("mul", [t("f32[8]")] * 2, "f32")


@pytest.mark.parametrize(
    ("src", "dst", "result"),
    [
        *(("bf16[8]{U:x}", "f32", "f32[8]{U:x}"), ("i32[8]{U:x}", "f32", "f32[8]{U:x}")),
        *(("i32[8]{U:x}", "i64", "i64[8]{U:x}"), ("f32[8]{I:x}", "i32", "i32[8]")),
        *(("f32[8@x]{V:y}", "bool", "bool[8@x]{V:y}"), ("f32[8@x]", "bf16", "bf16[8@x]")),
        *(("f32[8]{U:x}", "c64", "c64[8]{U:x}"), ("f32[8]{U:x}", "float32", "f32[8]{U:x}")),
    ],
)
def test_a_cast_keeps_the_states(src: str, dst: str, result: str) -> None:
    assert cast(t(src), dst).results == (t(result),)


def test_a_narrowing_cast_of_pending_terms_must_be_asked_for() -> None:
    with pytest.raises(ShardingTypeError, match="would round each term"):
        cast(t("f32[8]{U:x}"), "bf16")
    assert cast(t("f32[8]{U:x}"), "bf16", narrow=True).results == (t("bf16[8]{U:x}"),)


@pytest.mark.parametrize(("src", "dst"), [("f32[8]{U:x}", "i32"), ("i32[8]{U:x}", "bool")])
def test_a_cast_to_integers_or_bools_is_nonlinear(src: str, dst: str) -> None:
    with pytest.raises(ShardingTypeError, match="nonlinear"):
        cast(t(src), dst)


@pytest.mark.parametrize(
    ("src", "dst", "lost"),
    [
        *(("f32", "bf16", True), ("bf16", "f32", False), ("f16", "bf16", True), ("bf16", "f16", True)),
        *(("c64", "f32", False), ("c128", "c64", True)),
    ],
)
def test_a_cast_narrows_where_exponent_or_mantissa_lose_bits(src: str, dst: str, lost: bool) -> None:
    assert narrows(src, dst) is lost


def test_shapes_that_do_not_broadcast_are_refused_by_both_names() -> None:
    with pytest.raises(ShardingTypeError) as info:
        multilinear("mul", (t("f32[seq=8,16]"), t("f32[4,1]")), "f32")
    assert info.value.what == "`mul` cannot broadcast dim 0 (`seq`) of lhs, of size 8, with dim 0 of rhs, of size 4"


def _error(call: object) -> str:
    with pytest.raises(ShardingTypeError) as info:
        call()  # type: ignore[operator]
    return str(info.value)


def test_an_unreduced_operand_of_a_nonlinear_op_is_told_what_goes_wrong() -> None:
    assert _error(lambda: nonlinear("silu", (t("f32[8]{U:x}"),), "f32")) == (
        "`silu` is nonlinear in the operand, which is unreduced on mesh axis `x`\n"
        "  why:   each device holds one term of the sum, and silu(a + b) is not silu(a) + silu(b)"
    )


def test_an_unreduced_denominator_is_told_what_goes_wrong() -> None:
    assert _error(lambda: divide(t("f32[8]"), t("f32[8]{U:x}"), "f32")) == (
        "`divide` is nonlinear in rhs, which is unreduced on mesh axis `x`\n"
        "  why:   each device holds one term of the sum, and a / (b + c) is not a / b + a / c"
    )


def test_a_pending_sum_beside_slices_is_told_what_goes_wrong() -> None:
    assert _error(lambda: additive("add", (t("f32[8@x]"), t("f32[8]{U:x}")), "f32")) == (
        "`add` cannot combine sharded with unreduced on mesh axis `x`\n"
        "  why:   each device holds one term of rhs but only a slice of lhs: a term would meet only its own device's "
        "slice"
    )


def test_a_family_beside_slices_is_told_what_goes_wrong() -> None:
    assert _error(lambda: select_n("where", (t("bool[8]{V:x}"), t("f32[8@x]"), t("f32[]")), "f32")) == (
        "`where` cannot combine varying with sharded on mesh axis `x`\n"
        "  why:   operand 0 is a family of values, one per device, and each device holds only a slice of operand 1, "
        "which has one value"
    )
