"""Fixes inside a scope: those that it allows are fixes, the others are advice for outside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

import shtypes as sh


def refused(scope: Any, f: Callable[..., Any], *texts: str) -> sh.ShardingTypeError:
    """The error of a program in a scope."""
    with sh.use_mesh(sh.abstract_mesh({"x": 2, "y": 2})), pytest.raises(sh.ShardingTypeError) as caught, scope:
        jax.eval_shape(f, *map(sh.abstract_array, texts))
    return caught.value


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "an op": (sh.exp, ("f32[8]{U:x}",)),
    "an op that is made of others": (sh.kron, ("f32[8]{U:x}", "f32[8,8@x]")),
    "a reduction that may ask": (sh.max, ("f32[8@x]",)),
    "a layer": (sh.nn.rms_norm, ("f32[8]{U:x}",)),
}


@pytest.mark.parametrize("case", PROGRAMS.values(), ids=PROGRAMS)
def test_no_fix_communicates_where_nothing_may(case: tuple[Callable[..., Any], tuple[str, ...]]) -> None:
    f, texts = case
    free = refused(sh.policy(sh.current_policy()), f, *texts)
    assert free.fixes
    assert all(fix.bytes for fix in free.fixes)
    error = refused(sh.no_comm(), f, *texts)
    assert error.fixes == ()
    assert error.hints == tuple(f"{fix}, outside `no_comm`" for fix in free.fixes[:2])


def test_a_free_fix_stays() -> None:
    texts = ("f32[8@x,8]", "f32[8,8@x]")
    error = refused(sh.no_comm(), lambda a, b: a + b, *texts)
    assert [fix.code for fix in error.fixes] == ['sh.reshard(lhs, "[8,8]{U:x}"); sh.reshard(rhs, "[8,8]{U:x}")']
    assert len(error.hints) == 2
    with sh.use_mesh(sh.abstract_mesh({"x": 2, "y": 2})), sh.no_comm():
        pending = [sh.abstract_array("f32[8,8]{U:x}")] * 2
        assert str(jax.eval_shape(lambda a, b: a + b, *pending)).startswith("f32[8,8]{U:x}")


@pytest.mark.parametrize(
    ("scope", "codes"),
    [
        (sh.no_comm("backward"), ["[8]{I:x}"]),
        (sh.no_comm("forward"), []),
        (sh.comm_budget(kinds=["all-reduce"]), ["[8]{I:x}", "[8]"]),
        (sh.comm_budget(axes=["y"]), []),
        (sh.comm_budget(bytes=16), ["[8@x]"]),
        (sh.comm_budget(launches=1), ["[8@x]", "[8]{I:x}", "[8]"]),
    ],
    ids=["backward", "forward", "a kind", "an axis", "bytes", "launches"],
)
def test_a_scope_that_allows_some_keeps_those(scope: Any, codes: list[str]) -> None:
    error = refused(scope, sh.exp, "f32[8]{U:x}")
    assert [fix.code for fix in error.fixes] == [f'sh.reshard(x, "{code}")' for code in codes]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        *(('sh.all_reduce(x, "y")', "f32[8,8]{U:y}"), ('sh.all_reduce(x, "x", "y", to="I")', "f32[8,8]{U:(x,y)}")),
        *(('sh.reduce_scatter(x, "y", -1)', "f32[8,8]{U:y}"), ('sh.all_gather(x, "x", to="R")', "f32[8@x,8]")),
        *(('sh.all_to_all(x, "x", 1)', "f32[8@x,8]"), ('sh.reshard(x, "[8,8]")', "f32[8@x,8]")),
    ],
)
def test_the_advice_names_the_form_that_the_user_wrote(call: str, text: str) -> None:
    error = refused(sh.no_comm(), lambda x: eval(call, {"sh": sh, "x": x}), text)
    assert error.hints == (f"{call} before the scope",)
