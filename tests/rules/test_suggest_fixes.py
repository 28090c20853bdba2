"""Fixes: each types, costs what it says, and comes in order of its price."""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Callable

import pytest

import shtypes as sh
from shtypes.errors import ShardingTypeError
from shtypes.resharding import price
from shtypes.rules.along_dims import reduce_nonlinear
from shtypes.rules.einsum_like import einsum
from shtypes.rules.elementwise import additive, multilinear, nonlinear, select_n
from shtypes.rules.price_fixes import Candidate
from shtypes.rules.shape import concatenate, reshape
from shtypes.rules.suggest_fixes import MAX_TRIED, Search, fixes
from shtypes.rules.typing import Typing
from shtypes.types import ShType
from shtypes.types.mesh import Mesh

MESH = Mesh({"x": 2, "y": 4})
Rule = Callable[[tuple[ShType, ...]], Typing]


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


_REFUSED: dict[str, tuple[Rule, tuple[str, ...]]] = {
    "two labels": (lambda o: einsum("bh,hi->bi", o, "f32"), ("f32[8,16@y]", "f32[16,32@y]")),
    "other order": (lambda o: einsum("bh,hi->bi", o, "f32"), ("f32[8,16@(x,y)]", "f32[16@(y,x),32]")),
    "sharded and unreduced terms": (lambda o: additive("add", o, "f32"), ("f32[8@x]", "f32[8]{U:x}")),
    "two dims": (lambda o: additive("add", o, "f32"), ("f32[8@x,16]", "f32[8,16@x]")),
    "unreduced factors": (lambda o: multilinear("mul", o, "f32"), ("f32[8]{U:x}", "f32[8]{U:x}")),
    "nonlinear": (lambda o: nonlinear("silu", o, "f32"), ("f32[8,16@y]{U:x}",)),
    "nonlinear in both": (lambda o: nonlinear("max", o, "f32"), ("f32[8]{U:x}", "f32[8]{U:x}")),
    "reduction": (lambda o: reduce_nonlinear("max", o[0], 0, False, "f32"), ("f32[8@x,16@y]",)),
    "reshape": (lambda o: reshape(o[0], (32,)), ("f32[8,4@x]",)),
    "three, sharded along": (lambda o: concatenate(o, 1, "f32"), ("f32[8,16@y]", "f32[8,16@y]", "f32[8,16@y]")),
    "six": (lambda o: nonlinear("max", o, "f32"), ("f32[8]{U:x}",) * 3 + ("f32[8@x]",) * 3),
    "bool": (lambda o: nonlinear("less", o, "bool"), ("i32[8]{U:x}", "i32[8]")),
}


@pytest.mark.parametrize(("rule", "operands"), _REFUSED.values(), ids=_REFUSED)
def test_every_fix_types_and_costs_what_it_says(rule: Rule, operands: tuple[str, ...]) -> None:
    given = tuple(map(t, operands))
    names = tuple("abcdef")[: len(given)]
    with pytest.raises(ShardingTypeError):
        rule(given)
    found = fixes(rule, given, names)
    assert 1 <= len(found) <= 4
    for fix in found:
        changed = dict(zip(names, given, strict=True))
        for name, target in re.findall(r'sh\.reshard\((\w+), "(.*?)"\)', fix.code):
            changed[name] = t(changed[name].dtype_name + target)
        typing = rule(tuple(changed.values()))
        moves = [*zip(given, changed.values(), strict=True), *zip(changed.values(), typing.operands, strict=True)]
        assert fix.bytes_forward == sum(price(src, dst).forward_bytes for src, dst in moves)
        assert fix.bytes_backward == sum(price(src, dst).backward_bytes for src, dst in moves)


@pytest.mark.parametrize(("rule", "operands"), _REFUSED.values(), ids=_REFUSED)
def test_the_cheapest_fix_comes_first(rule: Rule, operands: tuple[str, ...]) -> None:
    costs = [f.order for f in fixes(rule, tuple(map(t, operands)))]
    assert costs == sorted(costs)


def test_a_typing_that_is_left_out_on_purpose_is_offered() -> None:
    first, *_ = fixes(lambda o: additive("add", o, "f32"), (t("f32[8@x]"), t("f32[8]{U:x}")))
    assert str(first) == 'sh.reshard(lhs, "[8]{U:x}")   [free, but each device holds all of it]'


def test_terms_sharded_differently_are_offered_as_pending_sums_of_all_of_them() -> None:
    first, *_ = fixes(lambda o: additive("add", o, "f32"), (t("f32[8@x,16]"), t("f32[8,16@x]")), ("a", "b"))
    assert str(first) == (
        'sh.reshard(a, "[8,16]{U:x}"); sh.reshard(b, "[8,16]{U:x}")   [free, but each device holds all of them]'
    )
    crossed = (t("f32[8@x,16@y]"), t("f32[8@y,16@x]"))
    first, *_ = fixes(lambda o: additive("add", o, "f32"), crossed, ("a", "b"))
    assert not first.bytes_forward
    assert not first.bytes_backward


def test_a_reduced_term_is_offered_as_invariant_where_else_an_invariant_one_would_pay() -> None:
    first, *_ = fixes(lambda o: additive("add", o, "f32"), (t("f32[8@y]{I:x}"), t("f32[8]{U:y}")), ("a", "b"))
    assert str(first) == (
        'sh.reshard(a, "[8]{U:y, I:x}"); sh.reshard(b, "[8]{U:y, I:x}")   [free, but each device holds all of it]'
    )


def test_two_operands_change_only_where_one_is_not_enough() -> None:
    one = fixes(lambda o: multilinear("mul", o, "f32"), (t("f32[8]{U:x}"),) * 2)
    both = fixes(lambda o: nonlinear("max", o, "f32"), (t("f32[8]{U:x}"),) * 2)
    assert all(fix.code.count("reshard") == 1 for fix in one)
    assert all(fix.code.count("reshard") == 2 for fix in both)


def test_two_operands_change_where_that_sends_less() -> None:
    operands = (t("f32[16@y,32]"), t("f32[32,32@y]"))
    first, second, *_ = fixes(lambda o: einsum("bh,ho->bo", o, "f32"), operands)
    assert first.code == 'sh.reshard(lhs, "[16,32@y]"); sh.reshard(rhs, "[32@y,32]")'
    assert second.code == 'sh.reshard(lhs, "[16,32]")'
    # each device sends three quarters of its 128 and 256 floats, instead of three times its 128
    assert (first.bytes_forward, second.bytes_forward) == (3 * (32 + 64) * 4, 3 * 128 * 4)


def test_the_price_counts_the_casts_that_follow() -> None:
    # Gathered to invariant, lhs would be cast to reduced beside the sharded rhs: the gradient pays for it.
    first, *_ = fixes(lambda o: einsum("bh,hi->bi", o, "f32"), (t("f32[8,16@y]"), t("f32[16,32@y]")))
    assert str(first) == (
        'sh.reshard(lhs, "[8,16]")   '
        "[forward: all-gather over `y`, 384 B/device; backward: reduce-scatter over `y`, 384 B/device]"
    )


def test_nothing_is_advised_where_no_reshard_would_help() -> None:
    assert fixes(lambda o: multilinear("mul", o, "f32"), (t("f32[8]"), t("f32[16]"))) == ()
    assert fixes(lambda o: multilinear("mul", o, "f32"), (t("f32[8]"), t("f32[8]"))) == ()
    assert fixes(lambda o: nonlinear("max", o, "f32"), (t("f32[8]{V:x}"), t("f32[8]{V:x}"))) == ()


def test_an_op_that_is_made_of_others_offers_the_cheapest_of_fixes_with_equal_results() -> None:
    """What the inner op casts is a part of the price: an invariant operand would be cast, and its gradient summed."""
    with sh.use_mesh(sh.abstract_mesh({"x": 2})):
        lhs, rhs = sh.abstract_array("f32[8@x, 8]"), sh.abstract_array("f32[8, 8@x]")
        ops: list[Callable[[], object]] = [lambda: sh.einsum("nk,km->nm", lhs, rhs), lambda: lhs @ rhs]
        found = []
        for op in ops:
            with pytest.raises(sh.ShardingTypeError) as error:
                op()
            found.append(error.value.fixes)
        assert found[0] == found[1]
        assert found[0][0].code == 'sh.reshard(lhs, "[8,8]")'


def test_an_error_keeps_its_fixes_where_a_function_of_ours_calls_the_users() -> None:
    """The op in the user's function is no part of `check`, and its operands are the user's own."""
    with sh.use_mesh(sh.abstract_mesh({"x": 2})):
        x = sh.abstract_array("f32[8, 8]{U:x}")
        calls: list[Callable[[], object]] = [
            lambda: sh.exp(x),
            lambda: sh.check(lambda v: sh.exp(v) * 2, x),
            lambda: sh.check(sh.exp, "f32[8, 8]{U:x}"),
            lambda: sh.check(sh.vmap(lambda row: sh.exp(row) * 2), x),
        ]
        found = []
        for call in calls:
            with pytest.raises(sh.ShardingTypeError) as error:
                call()
            found.append([fix.code for fix in error.value.fixes])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4
    assert found[3][0] == 'sh.reshard(x, "[8@x]")'


def test_no_fix_makes_a_pending_sum_of_a_mask() -> None:
    mesh = Mesh({"x": 1, "y": 2})
    operands = tuple(ShType.parse(t, mesh) for t in ("bool[1,8@x,1]", "f32[]{U:(x,y)}", "f32[8@(x,y)]"))

    def rule(types: tuple[ShType, ...]) -> Typing:
        return select_n("where", types, "f32")

    found = fixes(rule, operands)
    assert found
    assert not any(re.search(r"operand_0, \"[^\"]*U:", fix.code) for fix in found)


def test_no_fixes_are_looked_for_where_nobody_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[tuple[ShType, ...]] = []
    best = Search.best

    def counted(self: Search, most: int = 4) -> list[Candidate]:
        searched.append(self.operands)
        return best(self, most)

    monkeypatch.setattr(Search, "best", counted)
    with sh.use_mesh(sh.abstract_mesh({"x": 2, "y": 4})):
        a, b = sh.abstract_array("f32[8@x, 4]"), sh.abstract_array("f32[4@y, 8@x]")
        with pytest.raises(ShardingTypeError) as caught:
            sh.linalg.multi_dot([a, b, a])  # an op made of others, whose fixes are the whole call's
        assert not searched
        assert caught.value.fixes
    assert len(searched) == 1


def test_fixes_are_those_of_where_the_error_was_raised() -> None:
    """They are read after the scopes around the op were left, and in others."""
    found = []
    for read_inside in (True, False):
        with contextlib.ExitStack() as scopes:
            scopes.enter_context(sh.use_mesh(sh.abstract_mesh({"x": 2})))
            scopes.enter_context(sh.policy("jax"))
            scopes.enter_context(sh.no_comm("backward"))
            ops: list[Callable[[], object]] = [
                lambda: sh.exp(sh.abstract_array("f32[8, 8]{U:x}")),
                lambda: sh.kron(sh.abstract_array("f32[8, 8]{U:x}"), sh.abstract_array("f32[8, 8@x]")),
                lambda: sh.max(sh.abstract_array("f32[8@x, 8]")),
            ]
            errors = []
            for op in ops:
                with pytest.raises(ShardingTypeError) as caught:
                    op()
                errors.append(caught.value)
            if read_inside:
                found.append([str(error) for error in errors])
        if not read_inside:
            with sh.use_mesh(sh.abstract_mesh({"y": 4})), sh.policy("partial"), sh.no_comm():
                found.append([str(error) for error in errors])
    assert found[0] == found[1]
    assert all("fix:" in text or "outside `no_comm" in text for text in found[0])


def test_an_error_is_pickled_with_its_fixes() -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 2})), pytest.raises(ShardingTypeError) as caught:
        sh.exp(sh.abstract_array("f32[8]{U:x}"))
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.fixes
    assert str(again) == str(caught.value)


def _refuse(types: tuple[ShType, ...]) -> Typing:
    raise ShardingTypeError("never", axes=types[0].mesh.axis_names)


_LARGE = Mesh({"x": 2, "y": 4, "z": 2, "w": 2})
_MANY: dict[str, tuple[Rule, tuple[str, ...]]] = {
    "an einsum of four": (
        lambda o: einsum("ab,bc,cd,de->ae", o, "f32"),
        ("f32[16@x,16@y]{U:z}", "f32[16@z,16@x]", "f32[16,16@(y,x)]", "f32[16@w,16]{U:(x,y)}"),
    ),
    "twenty operands": (
        lambda o: concatenate(o, 0, "f32"),
        ("f32[16@x,16@y]{U:z}", "f32[16@z,16@x]", "f32[16,16@(y,x)]", "f32[16@w,16]{U:(x,y)}") * 5,
    ),
    "four axes and six dims": (
        lambda o: nonlinear("max", o, "f32"),
        ("f32[16,16,16,16,16,16]{U:(x,y,z,w)}", "f32[16@x,16@y,16@z,16,16,16@w]"),
    ),
    "nothing types": (_refuse, ("f32[16@x,16@y]{U:z}", "f32[16@z,16@x]", "f32[16,16@(y,x)]")),
}


@pytest.mark.parametrize(("rule", "operands"), _MANY.values(), ids=_MANY)
def test_the_rule_is_asked_a_bounded_number_of_times(rule: Rule, operands: tuple[str, ...]) -> None:
    given = tuple(ShType.parse(text, _LARGE) for text in operands)
    asked = []

    def counted(types: tuple[ShType, ...]) -> Typing:
        asked.append(types)
        return rule(types)

    for most in (10, 40, MAX_TRIED):
        asked.clear()
        search = Search(counted, given, most_tried=most)
        found = search.best()
        assert search.tried == len(asked) - 1 <= most
        assert len(set(asked)) == len(asked)
        assert bool(found) == (rule is not _refuse)


def test_a_fix_that_sends_nothing_says_what_it_costs() -> None:
    (first, *others) = fixes(lambda o: additive("add", o, "f32"), (t("f32[8@x]"), t("f32[8]{U:x}")))
    assert first.note == "each device holds all of it"
    assert not any(fix.note for fix in others)
    (both, *_) = fixes(lambda o: additive("add", o, "f32"), (t("f32[8@x,16]"), t("f32[8,16@x]")))
    assert both.note == "each device holds all of them"


def test_no_fix_reshards_to_varying_which_only_a_cast_can() -> None:
    found = fixes(lambda o: multilinear("mul", o, "f32"), (t("f32[8]{V:x}"), t("f32[8@x]")))
    assert found
    assert all('sh.reshard(rhs, "' in fix.code and "V:" not in fix.code for fix in found)


def test_of_axes_at_fault_together_the_one_that_is_free_to_move_is_moved() -> None:
    (first, *_) = fixes(lambda o: additive("add", o, "f32"), (t("f32[8@(x,y),4]"), t("f32[8@y,4]")))
    assert first.code == 'sh.reshard(lhs, "[8@x,4]{U:y}"); sh.reshard(rhs, "[8@x,4]{U:y}")'
    assert not first.bytes


def test_a_fix_prints_the_names_of_its_own_dims() -> None:
    for name in ("model", "hidden"):  # types that differ in them are equal
        first, *_ = fixes(lambda o: nonlinear("silu", o, "f32"), (t(f"f32[batch=8, {name}=4]{{U:y}}"),))
        assert f"{name}" in first.code
