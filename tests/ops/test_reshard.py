"""`reshard` and its named forms: every target, values and gradients, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import Case, assignments, check, host, source

m: Any = sh  # for calls that a type checker refuses too

X = np.random.default_rng(5).normal(size=(4, 8)).astype(np.float32)
AXES = {"x": 2, "y": 2}
HALF: Any = 0.5  # where a dim belongs


pytestmark = pytest.mark.mesh(AXES)


def to(*target: Any, **states: Any) -> Callable[..., Any]:
    return lambda m, x: m.reshard(x, *target, **states)


@pytest.mark.one_in(9)
@pytest.mark.core
@pytest.mark.parametrize("axes", [{"x": 2}, {"x": 4}, AXES], ids=lambda axes: "x".join(map(str, axes.values())))
def test_a_reshard_keeps_the_value_and_its_transpose_the_gradient(axes: dict[str, int]) -> None:
    mesh = sh.make_mesh(axes)
    types = list(assignments(mesh, X.shape))
    pairs = [(src, dst) for src in types for dst in types]
    if len(axes) > 1:
        pairs = [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))[:40]]
    with sh.use_mesh(mesh):
        check(mesh, [Case(to(dst), (X,), (src,), out=dst, id=dst) for src, dst in pairs])


FORMS: list[tuple[str, Callable[..., Any], str]] = [
    ("[4@x,8]", to("[_@y,_]"), "[4@y,8]{R:x}"),
    ("[4@x,8]{I:y}", to("[...]"), "[4@x,8]{R:y}"),
    ("[4@x,8]", to("[..., _@x]"), "[4,8@x]{R:y}"),
    ("[4@x,8]{I:y}", to("{U:x}"), "[4,8]{U:x,R:y}"),
    ("[4@x,8]", to("f32[4,8@(y,x)]"), "[4,8@(y,x)]"),
    ("[4@x,8]", to("[rows@x,_]{I:y}"), "[4@x,8]{I:y}"),
    ("[4@x,8]", to(jax.P(None, "x")), "[4,8@x]{R:y}"),
    ("[4@x,8]", to(jax.P("x", unreduced={"y"})), "[4@x,8]{U:y}"),
    ("[4@x,8]{I:y}", to(x="U"), "[4,8]{U:x,I:y}"),
    ("[4@x,8]{I:y}", to(x=sh.State.INVARIANT, y=-1), "[4,8@y]{I:x}"),
    ("[4@x,8@y]", to(x=1), "[4,8@(y,x)]"),
    ("[4@x,8@y]", to(x=np.int64(1), y=0), "[4@y,8@x]"),
    ("[4,8]{U:(x,y)}", lambda m, x: m.all_reduce(x), "[4,8]{R:(x,y)}"),
    ("[4,8]{U:(x,y)}", lambda m, x: m.all_reduce(x, "y", to="I"), "[4,8]{U:x,I:y}"),
    ("[4,8]{U:x,I:y}", lambda m, x: m.reduce_scatter(x, "x", -1), "[4,8@x]{I:y}"),
    ("[4@(x,y),8]", lambda m, x: m.all_gather(x, "x"), "[4@y,8]{R:x}"),
    ("[4@x,8@y]", lambda m, x: m.all_gather(x, "x", "y", to=sh.State.INVARIANT), "[4,8]{I:(x,y)}"),
    ("[4@x,8]", lambda m, x: m.all_to_all(x, "x", 1), "[4,8@x]{R:y}"),
    ("[4@x,8]{I:y}", lambda m, x: m.shard(x, "y", 0), "[4@(x,y),8]"),
    ("[4,8]", lambda m, x: m.shard(x, "y", 1), "[4,8@y]{R:x}"),
]


def test_every_form_of_target_gives_its_type() -> None:
    cases = [Case(fn, (X,), (src,), out=dst, id=f"{src} to {dst}") for src, fn, dst in FORMS]
    check(sh.make_mesh(AXES), cases)


def test_unmentioned_axes_follow_the_policy() -> None:
    x = sh.array(X, "[4@x,8]{R:y}")
    with sh.policy("jax"):
        assert sh.reshard(x, "[4,8]").type == sh.ShType.parse("f32[4,8]{I:(x,y)}")
        assert sh.all_gather(x, "x").type == sh.ShType.parse("f32[4,8]{I:x,R:y}")


def test_a_plain_array_in_a_mesh_has_no_sum_to_finish_and_the_error_says_where_it_has() -> None:
    for plain in (X, jax.numpy.asarray(X)):
        with pytest.raises(sh.ShardingTypeError, match="`all_reduce` needs mesh axis `x` unreduced") as raised:
            sh.all_reduce(plain, "x")
        assert raised.value.hints[0].startswith("in a mesh a plain array is replicated: sh.lift of the function")
    with pytest.raises(sh.ShardingTypeError) as raised:
        sh.all_reduce(sh.array(X, "[4,8]"), "x")
    assert raised.value.hints == ("sh.reshard(x, type) goes from any type to any other",)


def test_plain_arrays_are_taken_as_constants() -> None:
    assert sh.reshard(X, "[4@x,8]").type == sh.ShType.parse("f32[4@x,8]")
    assert sh.reshard(3, "[]{U:x}").type == sh.ShType.parse("i32[]{U:x}")


@pytest.mark.parametrize(
    "fn",
    [
        sh.reshard,
        lambda x: sh.reshard(x, "[...]", x="R"),
        lambda x: sh.reshard(x, "bf16[...]"),
        lambda x: sh.reshard(x, "[4]"),
        lambda x: sh.reshard(x, "[4,9]"),
        lambda x: sh.reshard(x, "[_@x,_@x]"),
        lambda x: sh.reshard(x, "[_@z,_]"),
        lambda x: sh.reshard(x, "[_,_]{V:x}"),
        lambda x: sh.reshard(x, "garbage["),
        lambda x: sh.reshard(x, ""),
        lambda x: sh.reshard(x, 3),
        lambda x: sh.reshard(x, jax.P("x", "y", None)),
        lambda x: sh.reshard(x, sh.array(X.T).type),
        lambda x: sh.reshard(x, x=5),
        lambda x: sh.reshard(x, x="S"),
        lambda x: sh.reshard(x, x=sh.State.SHARDED),
        lambda x: sh.reshard(x, x=sh.State.VARYING),
        lambda x: sh.reshard(x, x=True),
        lambda x: sh.reshard(x, x=1.0),
        lambda x: sh.reshard(x, z="R"),
        lambda x: sh.reshard(x > 0, x="U"),
        lambda x: m.reshard([1.0], "[1]"),
        lambda x: sh.all_reduce(x, "x"),
        lambda x: sh.all_reduce(x, "z"),
        lambda x: sh.all_reduce(sh.reshard(x, x="U"), to="S"),
        lambda x: sh.reduce_scatter(x, "y", 0),
        lambda x: sh.reduce_scatter(sh.reshard(x, x="U"), "x", 2),
        lambda x: sh.reduce_scatter(sh.reshard(x, x="U"), "x", HALF),
        sh.all_gather,
        lambda x: sh.all_gather(x, "y"),
        lambda x: sh.all_to_all(x, "y", 1),
        lambda x: sh.shard(x, "x", 1),
        lambda x: sh.shard(x, "z", 1),
        lambda x: sh.shard(sh.zeros((3,)), "x", 0),
    ],
    ids=source,
)
def test_bad_arguments_are_refused_with_the_line(fn: Callable[[Any], Any]) -> None:
    with pytest.raises(sh.ShardingTypeError) as raised:
        fn(sh.array(X, "[4@x,8]"))
    assert raised.value.where.startswith("test_reshard.py:")


#: From a state to varying and back, and what the error says to write instead.
VARYING = {
    "[4,8]{R:x}": ('sh.lax.pvary(x, "x")', 'sh.reinterpret(x, x="V")'),
    "[4,8]{I:x}": ('sh.lax.pvary(x, "x")', 'sh.reinterpret(x, x="V")'),
    "[4@x,8]": ('sh.reinterpret(x, x="V") takes the slices as values',),
    "[4,8]{U:x}": ('sh.lax.pvary(sh.all_reduce(x, "x"), "x")',),
}
BACK = {
    "[4,8]{R:x}": 'sh.lax.psum(x, "x", to="reduced") adds the values',
    "[4,8]{I:x}": 'sh.lax.psum(x, "x", to="invariant") adds the values',
    "[4@x,8]": "sh.reinterpret(x, x=dim) puts the values together along a dim",
    "[4,8]{U:x}": 'sh.reinterpret(x, x="U") takes the values as terms of a sum',
}


def written(hint: str, x: Any) -> Any:
    """What a hint gives."""
    return eval(hint.split(" takes")[0].split(" puts")[0].split(" adds")[0], {"sh": sh, "x": x, "dim": 0})


@pytest.mark.parametrize("text", VARYING)
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_a_reshard_makes_no_family_of_values_and_no_value_of_a_family(text: str, policy: str) -> None:
    with sh.policy(policy):
        x = sh.array(X, text)
        for target in ("[4,8]{V:x}", sh.State.VARYING):
            with pytest.raises(sh.ShardingTypeError, match="only one of them varies over mesh axis `x`") as raised:
                sh.reshard(x, target) if isinstance(target, str) else sh.reshard(x, x=target)
            assert raised.value.hints == VARYING[text]
        for hint in raised.value.hints:
            assert sh.typeof(written(hint, x)).state("x") is sh.State.VARYING
        family = sh.reinterpret(sh.array(X, "[4,8]"), x="V")
        with pytest.raises(sh.ShardingTypeError, match="only one of them varies over mesh axis `x`") as raised:
            sh.reshard(family, text)
        assert raised.value.hints == (BACK[text],)
        assert sh.typeof(written(BACK[text], family)).state("x") is sh.ShType.parse(f"f32{text}").state("x")


@pytest.mark.parametrize("lifted", [False, True], ids=["typed", "lifted"])
def test_a_mapping_has_a_target_for_each_type(lifted: bool) -> None:
    targets = {"[_@y, _]": "[_, _@y]", "f32[4, 8@x]": "[_@(x,y), _]", "[_]": "[_@x]"}
    f = lambda x: sh.reshard(x, targets)  # noqa: E731
    call = sh.lift(f) if lifted else f
    for of, goal in {"[4@y, 8]": "[4, 8@y]", "[4, 8@x]": "[4@(x,y), 8]", "[4@x, 8@y]": "[4@x, 8@y]"}.items():
        y = call(sh.array(X, of))
        assert sh.typeof(y) == goal
        np.testing.assert_array_equal(host(y), X)


def test_a_mapping_of_what_is_no_type_is_refused() -> None:
    x = sh.array(X, "[4@x, 8]")
    with pytest.raises(sh.ShardingTypeError, match="the mesh has no axis `tp`"):
        sh.reshard(x, {"[_@tp, _]": "[_, _]"})
    with pytest.raises(sh.ShardingTypeError, match="`reshard` has a target for `0`, which is no type"):
        sh.reshard(x, {0: "[_, _]"})
    with pytest.raises(sh.ShardingTypeError, match="the mesh has no axis `tp`"):  # also of those after the value's type
        sh.reshard(x, {"[_@x, _]": "[_, _]", "[_@tp, _]": "[_, _]"})
