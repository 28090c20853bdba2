"""Reductions along sharded dims: values and gradients of one device, and no more sent than one number for each row."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import Case, check, host, some
from tests.tolerance import assert_close

pytestmark = pytest.mark.one_in(9)

AXES = {"x": 2, "y": 2}
rng = np.random.default_rng(0)
X = rng.normal(size=(4, 8, 2)).astype(np.float32)
#: Each row reaches its extremes several times, on one device and on several.
TIES = np.asarray([[3, 3, 1, 0, 3, 0, 0, 1], [0, 1, 2, 3, 4, 4, 4, 4]] * 2, np.float32)
MASK = rng.random((4, 8, 2)) > 0.4
NAN = TIES.copy()
NAN[1, 2], NAN[1, 6], NAN[3, 5] = np.nan, np.nan, np.inf
COMPLEX = (X + 1j * rng.normal(size=X.shape)).astype(np.complex64)
WEIGHTS = rng.uniform(0.5, 1.5, (8,)).astype(np.float32)

#: Over dim 1 and over all dims, of each kind of operand.
ROWS, ALL = ("[4@x,8@y,2]", "[4,8@(x,y),2]", "[4,8@y,2]{I:x}"), ("[4@x,8@y,2]", "[4,8@(y,x),2]")


def asked(f: Callable[..., Any]) -> Callable[..., Any]:
    """The expression where communication is allowed."""

    def run(m: Any, *operands: Any) -> Any:
        with sh.implicit_comm():
            return f(m, *operands)

    return run


def norm(**options: Any) -> Callable[..., Any]:
    return lambda m, a: (m.linalg if m is sh else jnp.linalg).norm(a, **options)


EXPRESSIONS: dict[str, tuple[Callable[..., Any], Any, tuple[str, ...]]] = {
    "max": (lambda m, a: m.max(a, 1), X, ROWS),
    "max of ties": (lambda m, a: m.max(a, 1, keepdims=True), TIES, ("[4@x,8@y]", "[4,8@(y,x)]")),
    "min of ties": (lambda m, a: a.min(), TIES, ("[4@x,8@y]", "[4@y,8]{I:x}")),
    "max where": (lambda m, a: m.max(a, (0, 1), where=MASK, initial=0.25), X, ROWS),
    "max of nan": (lambda m, a: m.max(a, 1), NAN, ("[4@x,8@y]",)),
    "min of nan in bf16": (lambda m, a: m.min(a, 1), NAN.astype(jnp.bfloat16), ("[4@x,8@y]",)),
    "nanmax": (lambda m, a: m.nanmax(a, 1), np.where(TIES > 3, np.nan, TIES), ("[4@x,8@y]",)),
    "nanmin of nothing": (lambda m, a: m.nanmin(a * np.nan, 0), TIES, ("[4@x,8@y]",)),
    "max of integers": (lambda m, a: m.max(a, 1), TIES.astype(np.int32), ("[4@x,8@y]",)),
    "ptp": (lambda m, a: m.ptp(a, 1), X, ROWS[:1]),
    "any": (lambda m, a: m.any(a > 2, 1, where=MASK), X, ROWS),
    "all": (lambda m, a: m.all(a > -2), X, ALL),
    "prod": (lambda m, a: m.prod(a, 1, initial=2.0), X, ROWS),
    "prod with zeros": (lambda m, a: a.prod(1), TIES - 1, ("[4@x,8@y]", "[4,8@(x,y)]")),
    "argmax": (lambda m, a: m.argmax(a, 1), TIES, ("[4@x,8@y]", "[4,8@(x,y)]", "[4,8@(y,x)]")),
    "argmax of all": (lambda m, a: m.argmax(a), TIES, ("[4@x,8@y]", "[4@y,8@x]", "[4,8@(y,x)]")),
    "argmax of nan": (lambda m, a: m.argmax(a, 1, keepdims=True), NAN, ("[4@x,8@y]", "[4,8@(x,y)]")),
    "argmin of bools": (lambda m, a: m.argmin(a > 0, 0), X, ("[4@y,8@x,2]",)),
    "var": (lambda m, a: m.var(a, 1, ddof=1), X, ROWS),
    "var where": (lambda m, a: m.var(a, 1, where=MASK), X, ROWS[:2]),
    "var of complex": (lambda m, a: m.var(a, (0, 1)), COMPLEX, ROWS[:1]),
    "std": (lambda m, a: a.std(), X, ALL),
    "std of integers": (lambda m, a: a.std(1), TIES.astype(np.int32), ("[4@x,8@y]",)),
    "logsumexp": (lambda m, a: m.logsumexp(a, 1, keepdims=True), X, ROWS),
    "logsumexp of infinities": (lambda m, a: m.logsumexp(m.log(a), 1), TIES * np.eye(4, 8), ("[4@x,8@y]",)),
    "logsumexp with factors": (lambda m, a: m.logsumexp(a, 1, b=m.exp(a), return_sign=False), X, ROWS[:1]),
    "norm": (norm(), X, ALL),
    "norm of complex rows": (norm(axis=1), COMPLEX, ROWS[:2]),
    "norm 1": (norm(ord=1, axis=1), X, ROWS[:1]),
    "norm inf": (norm(ord=np.inf, axis=1), X, ROWS[:1]),
    "norm 3": (norm(ord=3, axis=1), X, ROWS[:1]),
    "norm of matrices": (norm(ord=1, axis=(1, 0)), X, ROWS),
    "norm of matrices, inf": (norm(ord=np.inf, axis=(1, 0), keepdims=True), X, ROWS[:1]),
    "softmax": (lambda m, a: m.softmax(a, 1), X, ROWS),
    "softmax where": (lambda m, a: m.softmax(a, 1, where=MASK), X, ROWS[:2]),
    "log_softmax": (lambda m, a: m.log_softmax(a, (0, 1)), X, ROWS),
    "standardize": (lambda m, a: m.standardize(a, 1), X, ROWS),
    "mean where": (lambda m, a: m.mean(a, 1, where=a > 0), X, ROWS),
    "average": (lambda m, a: m.average(a, 1, weights=m.exp(a)), X, ROWS),
}  # fmt: skip
EXPRESSIONS = {name: (asked(f), *rest) for name, (f, *rest) in EXPRESSIONS.items()}


def cases(names: Any = EXPRESSIONS, most: int | None = None) -> list[Case]:
    return [
        Case(f, (x,), (t,), id=name, grad="inf" not in name and "nan" not in name)
        for name in names
        for f, x, types in [EXPRESSIONS[name]]
        for t in types[:most]
    ]


#: Those of the quick test.
SOME = (
    "max of ties", "max where", "max of nan", "nanmax", "any", "prod with zeros", "argmax of nan", "argmin of bools",
    "var where", "std",
    "logsumexp with factors", "norm", "norm of matrices", "softmax where", "log_softmax", "mean where",
)  # fmt: skip


@pytest.mark.nightly
@pytest.mark.core
def test_reductions_along_sharded_dims_are_those_of_one_device() -> None:
    check(sh.make_mesh(AXES), cases(SOME[:: some(2, 1)], most=1))


@pytest.mark.nightly
def test_they_are_in_every_layout() -> None:
    check(sh.make_mesh(AXES), cases())


@pytest.mark.nightly
def test_pending_sums_are_reduced_first_where_a_scope_allows_it() -> None:
    functions = [
        lambda m, x: m.amin(x, axis=(0, 2)),
        lambda m, x: m.var(x, axis=1),
        lambda m, x: m.logsumexp(x, axis=1),
        lambda m, x: m.prod(x, axis=1),
        lambda m, x: m.softmax(x, axis=1),
    ]
    found = [Case(asked(f), (X,), (t,)) for f in functions for t in ("[4,8@x,2]{U:y}", "[4@x,8,2]{U:y}")]
    check(sh.make_mesh(AXES), found)


@pytest.mark.nightly
def test_they_are_under_jax_s_policy_and_without_a_region() -> None:
    with sh.policy("jax"):
        check(sh.make_mesh(AXES), cases(["max of ties", "softmax"], most=1), eager=True)


SENT: dict[str, tuple[Callable[[Any], Any], Counter[str]]] = {
    "max": (lambda a: sh.max(a, 1, "[4@x]{I:y}"), Counter({"all-reduce": 2})),
    "prod": (lambda a: sh.prod(a, 1, out="[4@x]{I:y}"), Counter({"all-gather": 1})),
    "var": (lambda a: sh.var(a, 1, out="[4@x]{I:y}"), Counter({"all-reduce": 3})),
    "logsumexp": (lambda a: sh.logsumexp(a, 1, out="[4@x]{I:y}"), Counter({"all-reduce": 2})),
    "norm": (lambda a: sh.linalg.norm(a, axis=1, out="[4@x]{I:y}"), Counter({"all-reduce": 1})),
    "softmax": (lambda a: sh.softmax(a, 1, out="[4@x,_@y]"), Counter({"all-reduce": 3})),
}


@pytest.mark.parametrize("name", SENT)
def test_they_send_one_number_for_each_row(name: str) -> None:
    f, wanted = SENT[name]
    with sh.use_mesh(sh.abstract_mesh(AXES)):
        x = sh.abstract_array("f32[4@x,4096@y]")
        entries = sh.ledger(sh.value_and_grad(lambda x: sh.sum(f(x))), x).entries
    assert Counter(e.kind for e in entries) == wanted
    assert all(e.bytes == 2 * 4 and e.axes == ("y",) for e in entries)  # two rows on each device


GOLDEN = """\
`max` reduces dim 1, which is sharded on mesh axis `y`
  where: HERE: max(f32[4@x,4096@y])
  why:   each device holds only its slice of that dim, and the result needs all of it
  fix:   sh.max(..., out="[4@x]{I:y}")   [forward: 2 times all-reduce over `y`, 16 B/device; backward: none; \
later: all-reduce over `y`, 8 B/device]
  fix:   sh.max(..., out="[4@x]")   [forward: 2 times all-reduce over `y`, 16 B/device; backward: all-reduce over `y`, \
8 B/device]
  fix:   sh.reshard(x, "[4@(x,y),4096]")   [forward: all-to-all over `y`, 8192 B/device; backward: all-to-all \
over `y`, 8192 B/device]
  fix:   sh.reshard(x, "[4@x,4096]{I:y}")   [forward: all-gather over `y`, 16384 B/device; backward: none; \
later: all-reduce over `y`, 8 B/device]"""


def refusal(f: Callable[[Any], Any], t: str) -> sh.ShardingTypeError:
    with sh.use_mesh(sh.abstract_mesh(AXES)), pytest.raises(sh.ShardingTypeError) as caught:
        f(sh.abstract_array(t))
    return caught.value


def test_an_error_offers_to_ask_for_it_and_says_what_that_sends() -> None:
    first, where, *rest = str(refusal(lambda x: sh.max(x, 1), "f32[4@x,4096@y]")).split("\n")
    assert "test_sharded_reductions.py" in where
    assert "\n".join([first, "  where: HERE: " + where.split(": ", 2)[2], *rest]) == GOLDEN


@pytest.mark.parametrize(
    ("f", "t", "what", "fix"),
    [
        (lambda x: sh.softmax(x, 1), "f32[4,8@y]", "`softmax` reduces dim 1", 'sh.softmax(..., out="[4,8@y]")'),
        (sh.var, "f32[4@x,8@y]", "`var` acts along dim 0", 'sh.var(..., out="[]{U:(x,y)}")'),
        (lambda x: sh.var(x, 1, where=x > 0), "f32[4,8@y]", "`div` is nonlinear in rhs", 'sh.var(..., out="[4]{I:y}")'),
        (lambda x: sh.std(x, 1, mean=0.5), "f32[4,8@y]", "`std` acts along dim 1", 'sh.std(..., out="[4]{I:y}")'),
        (lambda x: sh.argmax(x, 1), "f32[4,8@y]", "`argmax` reduces dim 1", 'sh.argmax(..., out="[4]")'),
        (sh.linalg.norm, "f32[8@y]", "`linalg.norm` acts along dim 0", 'sh.linalg.norm(..., out="[]'),
        (lambda x: sh.logsumexp(x, b=2.0), "f32[8@y]", "`logsumexp` reduces dim 0", 'sh.logsumexp(..., out="[]{I:y}")'),
        (lambda x: sh.mean(x, where=x > 0), "f32[8@y]", "`div` is nonlinear in rhs", 'sh.mean(..., out="[]'),
        (lambda x: sh.average(x, weights=x), "f32[8@y]", "`div` is nonlinear in rhs", 'sh.average(..., out="[]'),
    ],
)  # fmt: skip
def test_what_nobody_asked_for_is_refused(f: Callable[[Any], Any], t: str, what: str, fix: str) -> None:
    error = refusal(f, t)
    assert error.what.startswith(what)
    assert fix in str(error)
    assert error.where.startswith("test_sharded_reductions.py")


def test_no_comm_forbids_what_out_allows() -> None:
    def f(x: Any) -> Any:
        with sh.no_comm():
            return sh.max(x, 1, "[4]{I:y}")

    assert refusal(f, "f32[4,8@y]").what.startswith("`no_comm` forbids all-reduce over `y` in the forward pass")


@pytest.mark.nightly
def test_they_work_in_regions_loops_checkpoints_and_maps() -> None:
    mesh = sh.make_mesh(AXES)
    sh.set_mesh(mesh)

    def step(m: Any, a: Any) -> Any:
        out = {"out": "[_@x,1]{I:y}"} if m is sh else {}
        return a - m.max(a, 1, keepdims=True, **out) * m.logsumexp(a, 1, keepdims=True, **out) / 8

    def looped(a: Any) -> Any:
        body = sh.checkpoint(functools.partial(step, sh))
        return sh.scan(lambda c, _: (body(c), None), a, None, length=3)[0]

    def wanted(a: Any) -> Any:
        for _ in range(3):
            a = step(type("M", (), {"max": jnp.max, "logsumexp": jax.nn.logsumexp}), a)
        return a

    x = sh.array(TIES, "[4@x,8@y]")
    run = sh.jit(sh.value_and_grad(lambda a: sh.sum(looped(a) * WEIGHTS)))
    value, slope = jax.block_until_ready(run(x))
    value_of_one, slope_of_one = jax.jit(jax.value_and_grad(lambda a: jnp.sum(wanted(a) * WEIGHTS)))(TIES)
    assert_close(host(value), value_of_one)
    assert_close(host(slope), slope_of_one)
    stack = sh.array(np.stack([TIES, -TIES]), "[2,4@x,8@y]")
    mapped = jax.block_until_ready(sh.vmap(lambda a: sh.argmax(a, 1, "[_@x]"))(stack))
    np.testing.assert_array_equal(host(mapped), np.stack([TIES, -TIES]).argmax(2))
    tangent = jax.jvp(lambda a: sh.max(a, 1, "[_@x]{I:y}"), (x,), (x,))[1]
    assert_close(host(tangent), TIES.max(1))


@pytest.mark.parametrize("t", ["[4@x,8@y,2]", "[4,8,2]{U:x,I:y}", "[4@x,8,2]{U:y}"])
def test_sums_and_means_take_masks_and_initial_values(t: str) -> None:
    expressions = [
        lambda m, a: m.sum(a, 1, where=MASK, initial=3.0),
        lambda m, a: m.sum(a, where=MASK[:, :1], keepdims=True),
        lambda m, a: m.sum(a, (0, 1), None, None, True, 1.5),
        lambda m, a: m.mean(a, 2, where=MASK),
    ]
    check(sh.make_mesh(AXES), [Case(f, (X,), (t,), id=str(i)) for i, f in enumerate(expressions)])


def test_a_mask_of_a_whole_dim_needs_nothing_to_be_asked() -> None:
    with sh.use_mesh(sh.make_mesh(AXES)), sh.no_comm():
        y = sh.mean(sh.array(X, "[4,8@y,2]"), 1, where=sh.array(MASK, "[4@x,8,2]"))
        assert y.type == sh.ShType.parse("f32[4@x,2]{U:y}", y.type.mesh)
    assert_close(host(y), X.mean(1, where=MASK))


def test_an_initial_value_is_added_once() -> None:
    sh.set_mesh(sh.make_mesh(AXES))
    total = sh.sum(sh.array(X, "[4@x,8@y,2]"), initial=2, out="[]")
    assert_close(host(total), X.sum() + 2)


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_scopes_know_what_runs_backward(policy: str) -> None:
    def backward_free(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return sh.no_comm("backward")(f)

    with sh.use_mesh(sh.abstract_mesh(AXES)), sh.policy(policy):
        x, labels = sh.abstract_array("f32[4,8@y]"), sh.abstract_array("i32[4]")
        backward_free(lambda x: sh.logsumexp(x, 1, out="[4]{I:y}"))(x)
        backward_free(lambda x: sh.nn.cross_entropy(x, labels, out="[4]{I:y}"))(x)
        backward_free(lambda x: sh.argmax(x * np.ones(8, np.float32), 1, "[4]"))(x)
        for refused in (lambda x: sh.max(x, 1, "[4]{I:y}"), lambda x: sh.softmax(x, out="[4,8@y]")):
            with pytest.raises(sh.ShardingTypeError, match="in the backward pass"):
                backward_free(refused)(x)


@pytest.mark.parametrize(
    ("f", "operands"),
    [
        (functools.partial(sh.max, axis=1, initial=0.5), ["f32[4,8@y]"]),
        (functools.partial(sh.prod, axis=1, initial=2.0), ["f32[4,8@y]"]),
        (lambda x, mask, **more: sh.max(x, 1, where=mask, initial=0.0, **more), ["f32[4,8]{I:x}", "bool[4,8@y]"]),
        (lambda x, mask, **more: sh.var(x, 1, where=mask, **more), ["f32[4,8@y]{I:x}", "bool[8@y]"]),
        (lambda x, mask, **more: sh.logsumexp(x, 1, where=mask, **more), ["f32[4,8]{I:y}", "bool[8@y]"]),
    ],
    ids=["max", "prod", "masked max", "masked var", "masked logsumexp"],
)
def test_what_an_error_says_of_asking_is_true_whatever_else_is_given(
    f: Callable[..., Any], operands: list[str]
) -> None:
    with sh.use_mesh(sh.abstract_mesh(AXES)):
        with pytest.raises(sh.ShardingTypeError) as caught:
            sh.check(f, *operands)
        asking = [fix for fix in caught.value.fixes if ', out="' in fix.code]
        assert asking
        for fix in asking:
            out = fix.code.split('out="')[1].removesuffix('")')
            ledger = sh.check(functools.partial(f, out=out), *operands, grad=True).ledger
            sent = [sum(e.bytes for e in ledger if (e.direction == "forward") is way) for way in (True, False)]
            assert sent == [fix.bytes_forward, fix.bytes_backward]


@pytest.mark.parametrize("name", ["any", "all", "softmax", "logsumexp", "argmax"])
def test_they_are_defined_without_elements(name: str) -> None:
    # The reduced dim has none, or for an index, which of none there is not, another dim.
    shape, text = ((4, 0), "f32[4@x,0]") if name == "argmax" else ((0, 4), "f32[0@x,4]")
    nothing = np.zeros(shape, np.float32)
    m = jax.nn if name in ("softmax", "logsumexp") else jnp
    with sh.use_mesh(sh.make_mesh(AXES)), sh.implicit_comm():
        found = getattr(sh, name)(sh.array(nothing, text), 0)
        wanted = getattr(m, name)(nothing, 0)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(host(found), wanted)
